r"""The recurrence by chunks of C tokens, as matrix products.

With G the cumulative log decay inside a chunk and S the state that enters it, unrolling gives (arXiv 2412.06464, 2510.26692)

    S_t = e^{G_t} S + \sum_{j<=t} e^{G_t - G_j} k_j u_j^T
    (I + M) U = beta (V - (K e^G) S),   M_tj = beta_t \sum_k k_tk k_jk e^{G_tk - G_jk}  for j < t
    O = (Q e^G) S + A U,                A_tj =        \sum_k q_tk k_jk e^{G_tk - G_jk}  for j <= t

and U = V where nothing is erased (beta is None). Decays may be as strong as e^-40 a token, so nothing is ever divided by a cumulative decay:
M and A are built by doubling, the later half of each block meeting the earlier half at their boundary, and every exponent is <= 0.

Documents: G restarts with each, and what pairs tokens of two documents is masked. A difference of G across a start may be positive before its
product is masked, hence the clamp; it touches nothing else.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 32      # tokens at most, and the least power of two that holds a shorter row


def decayed_scores(q_nCK: Tensor, k_nCK: Tensor, G_nCK: Tensor) -> Tensor:
    """A_tj = sum_k q_tk k_jk exp(G_tk - G_jk) for j <= t, else 0: (..., C, C), with C a power of two."""
    n = q_nCK.shape[-2]
    blocks = (q_nCK * k_nCK).sum(-1)[..., None, None]                       # (..., C/L, L, L) with L = 1
    size = 1
    while size < n:
        shape = (*q_nCK.shape[:-2], n // (2 * size), 2, size, q_nCK.shape[-1])
        q, k, G = q_nCK.view(shape), k_nCK.view(shape), G_nCK.view(shape)
        boundary = G[..., 0, -1:, :]
        late = q[..., 1, :, :] * (G[..., 1, :, :] - boundary).clamp(max=0).exp()
        early = k[..., 0, :, :] * (boundary - G[..., 0, :, :]).clamp(max=0).exp()
        cross = late @ early.mT
        upper = torch.cat([blocks[..., 0::2, :, :], torch.zeros_like(cross)], dim=-1)
        blocks = torch.cat([upper, torch.cat([cross, blocks[..., 1::2, :, :]], dim=-1)], dim=-2)
        size *= 2
    return blocks.squeeze(-3)


def linear_attention_chunked(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, log_decay_BTHK: Tensor, beta_BTH: Tensor | None, state_BHKV: Tensor, starts_BT: Tensor | None
) -> tuple[Tensor, Tensor]:
    """O(T C) work, T / C sequential steps, fp32 inside; differentiable by autograd."""
    T = q_BTHK.shape[1]
    C = min(CHUNK, 1 << (T - 1).bit_length())
    pad = -T % C

    def chunks(x: Tensor) -> Tensor:                                        # (B, T, H, ·) -> (B, H, N, C, ·)
        padded = F.pad(x, (0, 0, 0, 0, 0, pad))
        return padded.reshape(len(x), -1, C, *x.shape[2:]).permute(0, 3, 1, 2, 4)

    q, k, v = chunks(q_BTHK), chunks(k_BTHK), chunks(v_BTHV)
    if starts_BT is None:
        G = chunks(log_decay_BTHK).cumsum(dim=-2)
    else:
        begun = F.pad(starts_BT, (0, pad)).reshape(len(starts_BT), 1, -1, C).cumsum(-1)    # (B, 1, N, C)
        same = begun[..., :, None] == begun[..., None, :]
        G = same.tril().to(q.dtype) @ chunks(log_decay_BTHK)               # a product, so that not even a gradient's rounding crosses
    scores = decayed_scores(q, k, G)
    into, out, keep = G.exp(), (G[..., -1:, :] - G).clamp(max=0).exp(), G[..., -1, :].exp()
    if starts_BT is not None:
        scores = scores * same
        into, out = into * (begun == 0)[..., None], out * (begun == begun[..., -1:])[..., None]
        keep = keep * (begun[..., -1] == 0)[..., None]
    write = v
    absorb = None
    if beta_BTH is not None:
        beta = chunks(beta_BTH[..., None])
        erase = beta * decayed_scores(k, k, G).tril(-1)
        if starts_BT is not None:
            erase = erase * same
        right = torch.cat([beta * v, beta * k * into], dim=-1)
        solved = torch.linalg.solve_triangular(erase, right, upper=False, unitriangular=True)
        write, absorb = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    read, store = q * into, k * out
    local = scores @ write
    state, outputs = state_BHKV, []
    for n in range(q.shape[2]):
        new = write[:, :, n]
        if absorb is None:
            outputs.append(local[:, :, n] + read[:, :, n] @ state)
        else:
            correction = absorb[:, :, n] @ state
            new = new - correction
            outputs.append(local[:, :, n] - scores[:, :, n] @ correction + read[:, :, n] @ state)
        state = keep[:, :, n, :, None] * state + store[:, :, n].mT @ new
    o = torch.stack(outputs, dim=2).permute(0, 2, 3, 1, 4).flatten(1, 2)[:, :T]
    return o, state
