"""The recurrence in Triton, forward and backward: chunks on tensor cores. The mathematics is in the package's docstring.

    states    what each chunk adds to the state                 a program per chunk
    scan      states at the chunk boundaries, X ← decay ⊙ X + added
    outputs   o from the state that enters and the pairs inside  a program per chunk
    gradients of v, b, c, g, A, from the state that enters a chunk and the gradient of the state that leaves it

The forward runs states, scan, outputs; the backward runs states and scan again, both once more in reverse for the states' gradients, then gradients.
Nothing but the operands is kept between them. N chunks have N + 1 boundaries; boundary n lies before chunk n.

Accumulation is float32; products take the operands' dtype, and float32 products are IEEE, not tf32. Boundary states are bf16 for bf16 operands, else
float32. In Triton's interpreter (TRITON_INTERPRET=1) only float32 is right.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from hymo.ops.gated_recurrence.interface import OperandError

FOREVER = tl.constexpr(1e30)            # the gate of a document's first token: its decay is zero, and sums of it stay finite
SLOWEST = tl.constexpr(-1e-20)          # a rate no decay can tell from zero, except over FOREVER
LOG2_E = tl.constexpr(1.4426950408889634)
SCAN_TILE = 128


# ---- loads and stores -------------------------------------------------------------------------------------------------------------------


@triton.jit
def _load_rows(x_ptr, token, inside, head, H, WIDTH: tl.constexpr):
    """Rows `token` of one head of x (B, T, H, WIDTH); zeros outside the sequence."""
    at = (token[:, None] * H + head) * WIDTH + tl.arange(0, WIDTH)[None, :]
    return tl.load(x_ptr + at, mask=inside[:, None], other=0.0)


@triton.jit
def _store_rows(x_ptr, x, token, inside, head, H, WIDTH: tl.constexpr):
    at = (token[:, None] * H + head) * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(x_ptr + at, x.to(x_ptr.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _load_gates(g_ptr, starts_ptr, token, inside, head, H, DOCUMENTS: tl.constexpr):
    """Gates of the tokens, FOREVER at a document's start; outside the sequence 0, which decays nothing."""
    gates = tl.load(g_ptr + token * H + head, mask=inside, other=0.0).to(tl.float32)
    if DOCUMENTS:
        gates = tl.where(tl.load(starts_ptr + token, mask=inside, other=0) != 0, FOREVER, gates)
    return gates


@triton.jit
def _load_rates(A_ptr, head, S: tl.constexpr):
    """Decay rates of one head, for exp2."""
    return tl.minimum(tl.load(A_ptr + head * S + tl.arange(0, S)).to(tl.float32) * LOG2_E, SLOWEST)


@triton.jit
def _state_at(boundary, S: tl.constexpr, D: tl.constexpr):
    """Offsets of the (S, D) state at one boundary of one sequence and head."""
    return boundary.to(tl.int64) * (S * D) + tl.arange(0, S)[:, None] * D + tl.arange(0, D)[None, :]


# ---- decays -----------------------------------------------------------------------------------------------------------------------------
# An exponent is A times a path: the gates between a token and a boundary, added up by themselves and never as a difference of longer sums, so that
# nothing cancels and FOREVER stays inside its document.


@triton.jit
def _decay(rates, path):
    """exp(A·path) as (tokens, S)."""
    return tl.exp2(path[:, None] * rates[None, :])


@triton.jit
def _grow(from_start, to_end, t, LEVEL):
    """Paths from the start of t's run of L = 2^LEVEL tokens (t included) and to its end (t excluded), for runs of 2L."""
    upper = (t >> LEVEL) & 1 == 1
    lower_half = tl.gather(from_start, (((t >> LEVEL) | 1) << LEVEL) - 1, axis=0)       # the whole of it is the path to its last token
    upper_half = tl.gather(from_start, (((t >> LEVEL) | 1) + 1 << LEVEL) - 1, axis=0)
    return tl.where(upper, lower_half + from_start, from_start), tl.where(upper, to_end, to_end + upper_half)


@triton.jit
def _meet(t, LEVEL):
    """[t, u]: tokens in different halves of one block of 2·2^LEVEL tokens."""
    return (t[:, None] ^ t[None, :]) >> LEVEL == 1


@triton.jit
def _product(x, y):
    return tl.dot(x, y, input_precision="ieee")


# ---- kernels ----------------------------------------------------------------------------------------------------------------------------


@triton.jit
def _states_kernel(
    key_ptr, value_ptr, g_ptr, starts_ptr, A_ptr, states_ptr, gates_ptr,
    T, H, N,
    C: tl.constexpr, S: tl.constexpr, D: tl.constexpr, DOCUMENTS: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Σ_t (key_t ⊙ decay_t) ⊗ value_t of one chunk, and the sum of its gates.

    Forward: b and v, decayed to the chunk's end, added at the boundary after it. REVERSE: c and do, decayed to its start, at the boundary before.
    """
    head, n, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    t = tl.arange(0, C)
    inside = n * C + t < T
    token = row.to(tl.int64) * T + n * C + t
    key = _load_rows(key_ptr, token, inside, head, H, S)
    value = _load_rows(value_ptr, token, inside, head, H, D)
    gates = _load_gates(g_ptr, starts_ptr, token, inside, head, H, DOCUMENTS)
    if REVERSE:
        path = tl.cumsum(gates, axis=0)
        boundary = n
    else:
        following = _load_gates(g_ptr, starts_ptr, token + 1, inside & (t + 1 < C) & (n * C + t + 1 < T), head, H, DOCUMENTS)
        path = tl.cumsum(following, axis=0, reverse=True)
        boundary = n + 1
    decayed = key * _decay(_load_rates(A_ptr, head, S), path)
    state = _product(tl.trans(decayed.to(value.dtype)), value)
    sequence = row * H + head
    tl.store(states_ptr + _state_at(sequence.to(tl.int64) * (N + 1) + boundary, S, D), state.to(states_ptr.dtype.element_ty))
    tl.store(gates_ptr + sequence * N + n, tl.sum(gates, axis=0))


@triton.jit
def _scan_kernel(
    states_ptr, gates_ptr, A_ptr, first_ptr, last_ptr,
    H, N,
    S: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr, GIVEN: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Add up the states in place, boundary after boundary, for TILE of the S·D numbers of one state; loads run STAGES ahead.

    `first` is the state at the boundary where the scan begins (zero unless GIVEN); the one where it ends goes to `last`, in float32.
    """
    sequence = tl.program_id(0)
    number = tl.program_id(1) * TILE + tl.arange(0, TILE)
    rates = tl.minimum(tl.load(A_ptr + (sequence % H) * S + number // D).to(tl.float32) * LOG2_E, SLOWEST)
    states_ptr += sequence.to(tl.int64) * (N + 1) * (S * D) + number
    gates_ptr += sequence * N + tl.zeros([TILE], tl.int32)
    state = tl.zeros([TILE], tl.float32)
    if GIVEN:
        state = tl.load(first_ptr + sequence.to(tl.int64) * (S * D) + number).to(tl.float32)
    tl.store(states_ptr + (N if REVERSE else 0) * (S * D), state.to(states_ptr.dtype.element_ty))
    for step in tl.range(0, N, num_stages=STAGES):
        chunk = N - 1 - step if REVERSE else step
        boundary = chunk if REVERSE else chunk + 1
        added = tl.load(states_ptr + boundary.to(tl.int64) * (S * D)).to(tl.float32)
        state = tl.exp2(rates * tl.load(gates_ptr + chunk)) * state + added
        tl.store(states_ptr + boundary.to(tl.int64) * (S * D), state.to(states_ptr.dtype.element_ty))
    tl.store(last_ptr + sequence.to(tl.int64) * (S * D) + number, state)


@triton.jit
def _outputs_kernel(
    v_ptr, b_ptr, c_ptr, g_ptr, starts_ptr, A_ptr, states_ptr, o_ptr,
    T, H, N,
    C: tl.constexpr, LEVELS: tl.constexpr, S: tl.constexpr, D: tl.constexpr, DOCUMENTS: tl.constexpr,
):  # fmt: skip
    """o of one chunk."""
    head, n, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    t = tl.arange(0, C)
    inside = n * C + t < T
    token = row.to(tl.int64) * T + n * C + t
    v = _load_rows(v_ptr, token, inside, head, H, D)
    b = _load_rows(b_ptr, token, inside, head, H, S)
    c = _load_rows(c_ptr, token, inside, head, H, S)
    gates = _load_gates(g_ptr, starts_ptr, token, inside, head, H, DOCUMENTS)
    rates = _load_rates(A_ptr, head, S)

    scores = tl.zeros([C, C], tl.float32)
    from_start, to_end = gates, tl.zeros_like(gates)
    for LEVEL in range(LEVELS):
        upper = (t >> LEVEL) & 1 == 1
        x = (tl.where(upper[:, None], c, b) * _decay(rates, tl.where(upper, from_start, to_end))).to(v.dtype)
        scores = tl.where(_meet(t, LEVEL) & (t[:, None] > t[None, :]), _product(x, tl.trans(x)), scores)
        from_start, to_end = _grow(from_start, to_end, t, LEVEL)
    o = _product(scores.to(v.dtype), v)
    o += tl.sum(c.to(tl.float32) * b, axis=1)[:, None] * v
    entering = tl.load(states_ptr + _state_at((row * H + head).to(tl.int64) * (N + 1) + n, S, D)).to(v.dtype)
    o += _product((c * _decay(rates, from_start)).to(v.dtype), entering)
    _store_rows(o_ptr, o, token, inside, head, H, D)


@triton.jit
def _gradients_kernel(
    v_ptr, b_ptr, c_ptr, g_ptr, starts_ptr, A_ptr, states_ptr, do_ptr, dstates_ptr,
    dv_ptr, db_ptr, dc_ptr, dg_ptr, dA_ptr,
    T, H, N,
    C: tl.constexpr, LEVELS: tl.constexpr, S: tl.constexpr, D: tl.constexpr, DOCUMENTS: tl.constexpr,
):  # fmt: skip
    """Gradients of one chunk's operands; of A, this chunk's share."""
    head, n, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    t = tl.arange(0, C)
    inside = n * C + t < T
    token = row.to(tl.int64) * T + n * C + t
    v = _load_rows(v_ptr, token, inside, head, H, D)
    do = _load_rows(do_ptr, token, inside, head, H, D)
    b = _load_rows(b_ptr, token, inside, head, H, S)
    c = _load_rows(c_ptr, token, inside, head, H, S)
    gates = _load_gates(g_ptr, starts_ptr, token, inside, head, H, DOCUMENTS)
    rates = _load_rates(A_ptr, head, S)

    # Through the scores, level by level as in the forward. Both triangles of dpairs are kept, since a level's X holds rows of c and rows of b.
    # dlog is the gradient of an exponent A·path, signed: t's gates are in a path that ends at t, and out of one that begins there.
    earlier = t[:, None] < t[None, :]
    dpairs = tl.where(earlier, _product(v, tl.trans(do)), _product(do, tl.trans(v))).to(v.dtype)
    scores_transposed = tl.zeros([C, C], tl.float32)
    db, dc = tl.zeros([C, S], tl.float32), tl.zeros([C, S], tl.float32)
    dlog, dA = tl.zeros([C, S], tl.float32), tl.zeros([C, S], tl.float32)
    from_start, to_end = gates, tl.zeros_like(gates)
    for LEVEL in range(LEVELS):
        upper = (t >> LEVEL) & 1 == 1
        path = tl.where(upper, from_start, -to_end)
        decay = _decay(rates, tl.abs(path))
        x = (tl.where(upper[:, None], c, b) * decay).to(v.dtype)
        meet = _meet(t, LEVEL)
        scores_transposed = tl.where(meet & earlier, _product(x, tl.trans(x)), scores_transposed)
        dx = _product(tl.where(meet, dpairs, 0.0).to(v.dtype), x)
        dlog_level = tl.where(upper[:, None], dx, -dx) * x     # with X as rounded: then a pair's two ends cancel outside their path
        dlog += dlog_level
        dA += dlog_level * path[:, None]
        dx *= decay
        dc += tl.where(upper[:, None], dx, 0.0)
        db += tl.where(upper[:, None], 0.0, dx)
        from_start, to_end = _grow(from_start, to_end, t, LEVEL)
    dv = _product(scores_transposed.to(v.dtype), do)

    # A token with itself.
    dself = tl.sum(do.to(tl.float32) * v, axis=1)[:, None]
    dc += dself * b
    db += dself * c
    dv += tl.sum(c.to(tl.float32) * b, axis=1)[:, None] * do

    # Through the state that enters, the one that leaves, and straight from one to the other.
    boundary = (row * H + head).to(tl.int64) * (N + 1) + n
    entering = tl.load(states_ptr + _state_at(boundary, S, D))
    dleaving = tl.load(dstates_ptr + _state_at(boundary + 1, S, D))
    whole = tl.sum(gates, axis=0)
    dlog_whole = tl.exp2(rates * whole) * tl.sum(entering.to(tl.float32) * dleaving.to(tl.float32), axis=1)
    dA_whole = dlog_whole * whole

    dc_in = _product(do, tl.trans(entering.to(v.dtype))) * _decay(rates, from_start)
    dc += dc_in
    dlog += dc_in * c
    dA += dc_in * c * from_start[:, None]

    decay = _decay(rates, to_end)
    dv += _product((b * decay).to(v.dtype), dleaving.to(v.dtype))
    db_out = _product(v, tl.trans(dleaving.to(v.dtype))) * decay
    db += db_out
    dlog -= db_out * b
    dA += db_out * b * to_end[:, None]
    dlog_whole += tl.sum(db_out * b, axis=0)

    dlog = tl.cumsum(tl.sum(dlog * rates[None, :], axis=1), axis=0, reverse=True) + tl.sum(dlog_whole * rates, axis=0)
    _store_rows(dv_ptr, dv, token, inside, head, H, D)
    _store_rows(db_ptr, db, token, inside, head, H, S)
    _store_rows(dc_ptr, dc, token, inside, head, H, S)
    tl.store(dg_ptr + token * H + head, (dlog / LOG2_E).to(dg_ptr.dtype.element_ty), mask=inside)
    share = (row * N + n) * H + head
    tl.store(dA_ptr + share.to(tl.int64) * S + tl.arange(0, S), tl.sum(dA, axis=0) + dA_whole)


# ---- launches ---------------------------------------------------------------------------------------------------------------------------


class _Sizes(NamedTuple):
    """Fixed launch parameters by state size: tuning at run time would cost more than it gains."""

    chunk: int
    warps_states: int
    warps_outputs: int
    warps_gradients: int


def _sizes(S: int, D: int) -> _Sizes:
    area = S * D
    if area <= 32 * 32:
        return _Sizes(chunk=32, warps_states=1, warps_outputs=1, warps_gradients=1)
    if area <= 64 * 64:
        return _Sizes(chunk=32, warps_states=2, warps_outputs=2, warps_gradients=4)
    return _Sizes(chunk=32, warps_states=4, warps_outputs=4, warps_gradients=8)


def _boundary_states(
    key: Tensor, value: Tensor, g: Tensor, starts: Tensor | None, A: Tensor, first: Tensor | None, reverse: bool
) -> tuple[Tensor, Tensor]:
    """States at the N + 1 chunk boundaries (B, H, N+1, S, D), and in float32 the one at the far end."""
    B, T, H, S = key.shape
    D = value.shape[-1]
    sizes = _sizes(S, D)
    N = triton.cdiv(T, sizes.chunk)
    states = value.new_empty(B, H, N + 1, S, D, dtype=torch.bfloat16 if value.dtype == torch.bfloat16 else torch.float32)
    gates = value.new_empty(B, H, N, dtype=torch.float32)
    last = value.new_empty(B, H, S, D, dtype=torch.float32)
    _states_kernel[H, N, B](
        key, value, g, starts, A, states, gates, T, H, N,
        C=sizes.chunk, S=S, D=D, DOCUMENTS=starts is not None, REVERSE=reverse, num_warps=sizes.warps_states,
    )  # fmt: skip
    _scan_kernel[B * H, S * D // SCAN_TILE](
        states, gates, A, first, last, H, N, S=S, D=D, TILE=SCAN_TILE, STAGES=4, GIVEN=first is not None, REVERSE=reverse, num_warps=1
    )  # fmt: skip
    return states, last


@torch.library.custom_op("hymo::gated_recurrence", mutates_args=())
def _forward(
    v: Tensor, b: Tensor, c: Tensor, g: Tensor, A: Tensor, initial_state: Tensor | None, starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    v, b, c, g, A = (x.contiguous() for x in (v, b, c, g, A))
    initial_state, starts = (x if x is None else x.contiguous() for x in (initial_state, starts))
    B, T, H, D = v.shape
    S = A.shape[1]
    sizes = _sizes(S, D)
    states, final_state = _boundary_states(b, v, g, starts, A, initial_state, reverse=False)
    o = torch.empty_like(v)
    N = states.shape[2] - 1
    _outputs_kernel[H, N, B](
        v, b, c, g, starts, A, states, o, T, H, N,
        C=sizes.chunk, LEVELS=sizes.chunk.bit_length() - 1, S=S, D=D, DOCUMENTS=starts is not None, num_warps=sizes.warps_outputs,
    )  # fmt: skip
    return o, final_state


@_forward.register_fake
def _(v, b, c, g, A, initial_state, starts):  # type: ignore[no-untyped-def]
    return v.new_empty(v.shape), v.new_empty(v.shape[0], v.shape[2], A.shape[1], v.shape[3], dtype=torch.float32)


@torch.library.custom_op("hymo::gated_recurrence_backward", mutates_args=())
def _backward(
    v: Tensor, b: Tensor, c: Tensor, g: Tensor, A: Tensor, initial_state: Tensor | None, starts: Tensor | None, do: Tensor, dfinal_state: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    v, b, c, g, A, do, dfinal_state = (x.contiguous() for x in (v, b, c, g, A, do, dfinal_state))
    initial_state, starts = (x if x is None else x.contiguous() for x in (initial_state, starts))
    B, T, H, D = v.shape
    S = A.shape[1]
    sizes = _sizes(S, D)
    states, _ = _boundary_states(b, v, g, starts, A, initial_state, reverse=False)
    dstates, dinitial_state = _boundary_states(c, do, g, starts, A, dfinal_state, reverse=True)
    N = states.shape[2] - 1
    dv, db, dc, dg = (torch.empty_like(x) for x in (v, b, c, g))
    dA_shares = A.new_empty(B * N, H, S, dtype=torch.float32)
    _gradients_kernel[H, N, B](
        v, b, c, g, starts, A, states, do, dstates, dv, db, dc, dg, dA_shares, T, H, N,
        C=sizes.chunk, LEVELS=sizes.chunk.bit_length() - 1, S=S, D=D, DOCUMENTS=starts is not None, num_warps=sizes.warps_gradients,
    )  # fmt: skip
    return dv, db, dc, dg, dA_shares.sum(0).to(A.dtype), dinitial_state


@_backward.register_fake
def _(v, b, c, g, A, initial_state, starts, do, dfinal_state):  # type: ignore[no-untyped-def]
    return *(x.new_empty(x.shape) for x in (v, b, c, g, A)), torch.empty_like(dfinal_state, memory_format=torch.contiguous_format)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs)


def _differentiate(ctx, do, dfinal_state):  # type: ignore[no-untyped-def]
    initial_state = ctx.saved_tensors[5]
    *gradients, dinitial_state = _backward(*ctx.saved_tensors, do, dfinal_state)
    return *gradients, None if initial_state is None else dinitial_state.to(initial_state.dtype), None


_forward.register_autograd(_differentiate, setup_context=_save)


def gated_recurrence_triton(
    v_BTHD: Tensor, b_BTHS: Tensor, c_BTHS: Tensor, g_BTH: Tensor, A_HS: Tensor, initial_state_BHSD: Tensor | None, starts_BT: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Same function as the reference, to the rounding of v's dtype. Widths S and D up to 128, padded here to a power of two from 16 on."""
    S, D = A_HS.shape[1], v_BTHD.shape[-1]
    if max(S, D) > 128:
        raise OperandError(f"the Triton kernel holds a state of at most 128 x 128 a head, but got {S=}, {D=}; use narrower heads or impl='chunked'")
    if v_BTHD.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise OperandError(f"the Triton kernel takes bfloat16, float16 or float32, but got {v_BTHD.dtype}; use impl='chunked'")
    if not v_BTHD.dtype == b_BTHS.dtype == c_BTHS.dtype:
        raise OperandError(f"v, b and c must share one dtype, but got {v_BTHD.dtype}, {b_BTHS.dtype}, {c_BTHS.dtype}; cast them alike")
    pad_S, pad_D = (max(16, triton.next_power_of_2(width)) - width for width in (S, D))
    if pad_S or pad_D:
        v_BTHD, b_BTHS, c_BTHS, A_HS = F.pad(v_BTHD, (0, pad_D)), *(F.pad(x, (0, pad_S)) for x in (b_BTHS, c_BTHS, A_HS))
        initial_state_BHSD = None if initial_state_BHSD is None else F.pad(initial_state_BHSD, (0, pad_D, 0, pad_S))
    o, final_state = _forward(v_BTHD, b_BTHS, c_BTHS, g_BTH, A_HS, initial_state_BHSD, starts_BT)
    return o[..., :D], final_state[:, :, :S, :D]
