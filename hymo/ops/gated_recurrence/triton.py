"""The recurrence in Triton: the order of launches, and their registration as two operators, which is what torch.compile and autograd see.

    forward    states, scan, outputs
    backward   states and scan turned round; gradients

The backward needs the state that enters each chunk. Where a gradient will be asked for, the forward keeps them: 84 MB for 16,384 tokens of 40 heads
and states of 32 x 32 in bf16. That grows with the state: of states over 8 KB (64 x 64 in bf16) only those at the span boundaries are kept, an eighth,
and the backward walks the spans once more (entering), a group of them at a time. Without a gradient nothing is kept.

Kept states are bf16 for bf16 operands, else float32. In Triton's interpreter (TRITON_INTERPRET=1) only float32 is right.
"""
# mypy: disable-error-code="no-untyped-def"

from typing import NamedTuple

import torch
import triton
from torch import Tensor, library
from torch.nn import functional as F

from hymo.errors import OperandError
from hymo.ops.gated_recurrence.kernels import entering_kernel, gradients_kernel, outputs_kernel, scan_kernel, states_kernel

SCAN_TILE, SCAN_AHEAD = 128, 16         # numbers of a state that one program adds up, and boundaries that it loads at once
SCRATCH = 1 << 28                       # bytes of entering states that the backward recomputes at once, one span at least


class _Sizes(NamedTuple):
    """Fixed launch parameters: tuning at run time would cost more than it gains."""

    chunk: int      # tokens whose pairs are scored at once
    block: int      # tokens added to a state at once where nothing is scored
    span: int       # tokens from one boundary state to the next
    warps: int      # of a program; as few as hold the state in registers
    stages: int     # chunks whose loads are under way at once; one fewer in the gradients, which have more to load
    keeps_chunks: bool      # keep the state that enters each chunk for the backward, or only those at the span boundaries

    @property
    def registers(self) -> int | None:
        """Of an outputs program that keeps no states: twelve programs an SM for two spilled numbers. Those that keep them would spill more."""
        return 168 if self.warps == 1 else None

    @property
    def levels(self) -> int:
        return self.chunk.bit_length() - 1

    @property
    def chunks(self) -> int:
        return self.span // self.chunk


def _sizes(v: Tensor, S: int) -> _Sizes:
    state_bytes = S * v.shape[-1] * v.dtype.itemsize
    stages = 3 if v.dtype.itemsize == 2 else 1      # float32 takes its operands of products from registers, and would spill
    if state_bytes <= 32 * 32 * 2:
        return _Sizes(chunk=16, block=32, span=128, warps=1, stages=stages, keeps_chunks=True)
    if state_bytes <= 64 * 64 * 2:
        return _Sizes(chunk=16, block=16, span=128, warps=4, stages=stages, keeps_chunks=True)
    warps = 8 if state_bytes <= 128 * 128 * 2 else 16
    return _Sizes(chunk=16, block=16, span=128, warps=warps, stages=stages, keeps_chunks=False)


def _state_dtype(v: Tensor) -> torch.dtype:
    return torch.bfloat16 if v.dtype == torch.bfloat16 else torch.float32


def _boundary_states(
    key: Tensor, value: Tensor, g: Tensor, starts: Tensor | None, A: Tensor, first: Tensor | None, reverse: bool
) -> tuple[Tensor, Tensor]:
    """States at the N + 1 span boundaries (B, H, N+1, S, D), and in float32 the one at the far end."""
    B, T, H, S = key.shape
    D = value.shape[-1]
    sizes = _sizes(value, S)
    N = triton.cdiv(T, sizes.span)
    states = value.new_empty(B, H, N + 1, S, D, dtype=_state_dtype(value))
    gates = value.new_empty(B, H, N, dtype=torch.float32)
    last = value.new_empty(B, H, S, D, dtype=torch.float32)
    states_kernel[H, N, B](
        key, value, g, starts, A, states, gates, T, H, N,
        SPAN=sizes.span, BLOCK=sizes.block, S=S, D=D, DOCUMENTS=starts is not None, REVERSE=reverse, num_warps=sizes.warps,
    )
    scan_kernel[B * H, S * D // SCAN_TILE](
        states, gates, A, first, last, H, N, S=S, D=D, TILE=SCAN_TILE, AHEAD=SCAN_AHEAD, GIVEN=first is not None, REVERSE=reverse, num_warps=1,
    )
    return states, last


def _kept_shape(v: Tensor, S: int) -> tuple[int, ...]:
    """Of the states kept for the backward: at the entrance of every chunk, or at the N + 1 span boundaries."""
    B, T, H, D = v.shape
    sizes = _sizes(v, S)
    return B, H, triton.cdiv(T, sizes.chunk) if sizes.keeps_chunks else triton.cdiv(T, sizes.span) + 1, S, D


@library.custom_op("hymo::gated_recurrence", mutates_args=())
def _forward(
    v: Tensor, b: Tensor, c: Tensor, g: Tensor, A: Tensor, initial_state: Tensor | None, starts: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """o, the final state, and the states that the backward starts from: none unless `keep`."""
    v, b, c, g, A = (x.contiguous() for x in (v, b, c, g, A))
    initial_state, starts = (x if x is None else x.contiguous() for x in (initial_state, starts))
    B, T, H, D = v.shape
    S = A.shape[1]
    sizes = _sizes(v, S)
    states, final_state = _boundary_states(b, v, g, starts, A, initial_state, reverse=False)
    o = torch.empty_like(v)
    entering = states.new_empty(_kept_shape(v, S)) if keep and sizes.keeps_chunks else None
    N = states.shape[2] - 1
    outputs_kernel[H, N, B](
        v, b, c, g, starts, A, states, o, entering, T, H, N,
        C=sizes.chunk, LEVELS=sizes.levels, SPAN=sizes.span, S=S, D=D, DOCUMENTS=starts is not None, KEEP=entering is not None,
        num_warps=sizes.warps, num_stages=sizes.stages, maxnreg=sizes.registers if entering is None else None,
    )
    if not keep:
        return o, final_state, states.new_empty(0)
    return o, final_state, states if entering is None else entering


@_forward.register_fake
def _(v, b, c, g, A, initial_state, starts, keep):
    B, _, H, D = v.shape
    S = A.shape[1]
    kept = v.new_empty(_kept_shape(v, S) if keep else 0, dtype=_state_dtype(v))
    return v.new_empty(v.shape), v.new_empty(B, H, S, D, dtype=torch.float32), kept


@library.custom_op("hymo::gated_recurrence_backward", mutates_args=())
def _backward(
    v: Tensor, b: Tensor, c: Tensor, g: Tensor, A: Tensor, starts: Tensor | None, kept: Tensor, do: Tensor, dfinal_state: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of v, b, c, g, A and the initial state."""
    v, b, c, g, A, do = (x.contiguous() for x in (v, b, c, g, A, do))
    dfinal_state, starts = (x if x is None else x.contiguous() for x in (dfinal_state, starts))
    B, T, H, D = v.shape
    S = A.shape[1]
    sizes = _sizes(v, S)
    dstates, dinitial_state = _boundary_states(c, do, g, starts, A, dfinal_state, reverse=True)
    dv, db, dc, dg = (torch.empty_like(x) for x in (v, b, c, g))
    N = dstates.shape[2] - 1
    dA_shares = A.new_empty(B * N, H, S, dtype=torch.float32)
    group = N if sizes.keeps_chunks else max(1, SCRATCH // max(1, kept[:, :, 0].nbytes * sizes.chunks))
    for first in range(0, N, group):
        count = min(group, N - first)
        entering = kept
        if not sizes.keeps_chunks:
            entering = kept.new_empty(B, H, count * sizes.chunks, S, D)
            entering_kernel[H, count, B](
                v, b, g, starts, A, kept, entering, T, H, N, first, entering.shape[2],
                C=sizes.chunk, SPAN=sizes.span, S=S, D=D, DOCUMENTS=starts is not None, num_warps=sizes.warps, num_stages=1,
            )
        gradients_kernel[H, count, B](
            v, b, c, g, starts, A, entering, do, dstates, dv, db, dc, dg, dA_shares, T, H, N, first, entering.shape[2],
            C=sizes.chunk, LEVELS=sizes.levels, SPAN=sizes.span, S=S, D=D, DOCUMENTS=starts is not None,
            num_warps=sizes.warps, num_stages=max(1, sizes.stages - 1),
        )
    return dv, db, dc, dg, dA_shares.sum(0).to(A.dtype), dinitial_state


@_backward.register_fake
def _(v, b, c, g, A, starts, kept, do, dfinal_state):
    dinitial_state = v.new_empty(v.shape[0], v.shape[2], A.shape[1], v.shape[3], dtype=torch.float32)
    return *(x.new_empty(x.shape) for x in (v, b, c, g, A)), dinitial_state


def _save(ctx, inputs, output):
    v, b, c, g, A, initial_state, starts, _ = inputs
    ctx.save_for_backward(v, b, c, g, A, starts, output[2])
    ctx.initial_dtype = None if initial_state is None else initial_state.dtype
    ctx.set_materialize_grads(False)


def _differentiate(ctx, do, dfinal_state, _):
    v, b, c, g, A, starts, kept = ctx.saved_tensors
    do = torch.zeros_like(v) if do is None else do
    *gradients, dinitial_state = _backward(v, b, c, g, A, starts, kept, do, dfinal_state)
    return *gradients, None if ctx.initial_dtype is None else dinitial_state.to(ctx.initial_dtype), None, None


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
    operands = v_BTHD, b_BTHS, c_BTHS, g_BTH, A_HS, initial_state_BHSD
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in operands)
    o, final_state, _ = _forward(*operands, starts_BT, keep)
    return o[..., :D], final_state[:, :, :S, :D]
