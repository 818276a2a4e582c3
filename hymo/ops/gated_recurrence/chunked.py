"""The recurrence in chunks, in plain PyTorch: products inside a chunk, one state from chunk to chunk. The mathematics is in the package's docstring.

Written for CPU training: a handful of batched products in place of T small steps, and a backward by hand that keeps the operands and one
state a chunk, and computes the rest again.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hymo.ops.gated_recurrence.interface import compute_dtype

CHUNK = 32                  # tokens at most, and the least power of two that holds a shorter row; a power of two
FOREVER = 1e30              # the gate of a document's first token: its decay is zero, and sums of it stay finite


def gated_recurrence_chunked(
    v_BTHD: Tensor, b_BTHS: Tensor, c_BTHS: Tensor, g_BTH: Tensor, A_HS: Tensor, initial_state_BHSD: Tensor | None, starts_BT: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Same function as the reference, to rounding; differentiable once, in v, b, c, g, A and the initial state."""
    dtype = compute_dtype(v_BTHD)
    B, _, H, D = v_BTHD.shape
    v, b, c, g, A = (x.to(dtype) for x in (v_BTHD, b_BTHS, c_BTHS, g_BTH, A_HS))
    state = v.new_zeros(B, H, A.shape[1], D) if initial_state_BHSD is None else initial_state_BHSD.to(dtype)
    o_BTHD, final_state_BHSD = _Chunked.apply(v, b, c, g, A, state, starts_BT)  # type: ignore[no-untyped-call]
    return o_BTHD.to(v_BTHD.dtype), final_state_BHSD


class _Level(NamedTuple):
    """One level of the hierarchy: in each block of 2L tokens the upper half meets the lower half at their boundary."""

    upper_C1: Tensor        # True for tokens of an upper half
    between_CC: Tensor      # [j, t] is 1 when the gate of token j lies between token t and the boundary of t's block
    meets_CC: Tensor        # [t, u] is 1 when t is in the upper half and u in the lower half of one block


@cache
def _levels(C: int, dtype: torch.dtype, device: torch.device) -> tuple[_Level, ...]:
    """The levels L = 1, 2, 4, …; every pair t > u of a chunk meets at exactly one, the highest bit in which t and u differ."""
    j, t = torch.arange(C, device=device)[:, None], torch.arange(C, device=device)
    levels = []
    for bit in range(C.bit_length() - 1):
        upper = (t >> bit) & 1 == 1
        between = (j >> bit == t >> bit) & torch.where(upper, j <= t, j > t)
        meets = ((j ^ t) >> bit == 1) & (j > t)
        levels.append(_Level(upper[:, None], between.to(dtype), meets.to(dtype)))
    return tuple(levels)


@cache
def _edges(C: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """[j, t] is 1 when the gate of token j lies between the chunk's start and t, t included; and between t and the chunk's end."""
    j, t = torch.arange(C, device=device)[:, None], torch.arange(C, device=device)
    return (j <= t).to(dtype), (j > t).to(dtype)


def _to_chunks(x: Tensor) -> Tensor:
    """(B, T, H, …) to (B, H, N, C, …); zeros after the end neither add to the state nor decay it."""
    C = min(CHUNK, 1 << (x.shape[1] - 1).bit_length())
    padding = -x.shape[1] % C
    if padding:
        x = torch.cat([x, x.new_zeros(x.shape[0], padding, *x.shape[2:])], dim=1)
    return torch.unflatten(x, 1, (-1, C)).movedim(3, 1).contiguous()


def _from_chunks(x: Tensor, T: int) -> Tensor:
    return x.movedim(1, 3).flatten(1, 2)[:, :T]


def _decay(A_HS: Tensor, gates_BHN: Tensor) -> Tensor:
    """exp(A·gates) of sums of gates (B, H, N, …): never a positive exponent, and exactly zero across a document start."""
    A = A_HS.view(A_HS.shape[0], *[1] * (gates_BHN.ndim - 2), -1)
    return torch.where((gates_BHN < FOREVER)[..., None], torch.exp(A * gates_BHN[..., None]), 0.0)


def _scan(decay_BHNS: Tensor, local_BHNSD: Tensor, state_BHSD: Tensor, reverse: bool = False) -> tuple[Tensor, Tensor]:
    """X ← decay ⊙ X + local, chunk after chunk: the state that each chunk meets, and the last one."""
    met_BHNSD = torch.empty_like(local_BHNSD)
    order = range(local_BHNSD.shape[2])
    for n in reversed(order) if reverse else order:
        met_BHNSD[:, :, n] = state_BHSD
        state_BHSD = torch.addcmul(local_BHNSD[:, :, n], decay_BHNS[:, :, n, :, None], state_BHSD)
    return met_BHNSD, state_BHSD


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor, b: Tensor, c: Tensor, g: Tensor, A: Tensor, state: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
        T = v.shape[1]
        gates = g if starts is None else g.masked_fill(starts[:, :, None], FOREVER)
        v, b, c, gates = (_to_chunks(x) for x in (v, b, c, gates))
        before_CC, after_CC = _edges(v.shape[3], v.dtype, v.device)
        entering, final = _scan(_decay(A, gates.sum(-1)), (b * _decay(A, gates @ after_CC)).mT @ v, state)
        scores = torch.diag_embed((c * b).sum(-1))
        for level in _levels(v.shape[3], v.dtype, v.device):
            x = torch.where(level.upper_C1, c, b) * _decay(A, gates @ level.between_CC)
            scores.addcmul_(x @ x.mT, level.meets_CC)
        o = (c * _decay(A, gates @ before_CC)) @ entering + scores @ v
        ctx.save_for_backward(v, b, c, gates, A, entering)
        ctx.T = T
        return _from_chunks(o, T), final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do_BTHD: Tensor, dfinal: Tensor) -> tuple[Tensor | None, ...]:
        v, b, c, gates, A, entering = ctx.saved_tensors
        do = _to_chunks(do_BTHD)
        before_CC, after_CC = _edges(v.shape[3], v.dtype, v.device)
        decay_in, decay_out, decay_across = _decay(A, gates @ before_CC), _decay(A, gates @ after_CC), _decay(A, gates.sum(-1))
        c_in, b_out = c * decay_in, b * decay_out
        dleaving, dstate = _scan(decay_across, c_in.mT @ do, dfinal, reverse=True)

        # Through the states. q gathers the gradient of each token's log decay g·A: an exponent's gradient goes to every gate in its sum.
        dc_in, db_out = do @ entering.mT, v @ dleaving.mT
        dc, db = dc_in * decay_in, db_out * decay_out
        q = before_CC @ (dc_in * c_in) + after_CC @ (db_out * b_out) + (decay_across * (entering * dleaving).sum(-1))[..., None, :]

        # Through the scores, level by level as in the forward; the pair matrix is symmetric, as x @ x.mT is.
        dscores = do @ v.mT
        dpairs = dscores.tril(-1) + dscores.tril(-1).mT
        dself = dscores.diagonal(dim1=-2, dim2=-1)[..., None]
        dc, db = dc + dself * b, db + dself * c
        scores = torch.diag_embed((c * b).sum(-1))
        for level in _levels(v.shape[3], v.dtype, v.device):
            decay = _decay(A, gates @ level.between_CC)
            x = torch.where(level.upper_C1, c, b) * decay
            scores.addcmul_(x @ x.mT, level.meets_CC)
            dx = (dpairs * (level.meets_CC + level.meets_CC.mT)) @ x
            q += level.between_CC @ (dx * x)
            dx *= decay
            dc += torch.where(level.upper_C1, dx, 0.0)
            db += torch.where(level.upper_C1, 0.0, dx)
        dv = scores.mT @ do + b_out @ dleaving

        g = torch.where(gates < FOREVER, gates, 0.0)
        dg = (q * A[:, None, None, :]).sum(-1)
        dA = (q * g[..., None]).sum((0, 2, 3))
        return *(_from_chunks(x, ctx.T) for x in (dv, db, dc, dg)), dA, dstate, None
