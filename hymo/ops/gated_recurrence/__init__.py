"""Gated linear recurrence with a rank-one log decay: the mixer of GDN layers.

    H_t = exp(g_t·A) ⊙ H_{t−1} + b_t ⊗ v_t        state (S, D) of one head, float32
    o_t = c_tᵀ H_t

This is gated linear attention (Yang et al. 2023, arXiv:2312.06635) whose log decay g_t·A has rank one: a gate in (0, 1) per token and head,
a negative rate per head and state row. It has no delta (erase) term.

**Chunks.** Unrolled, o_t = Σ_{u ≤ t} P_tu v_u with P_tu = Σ_s c_ts b_us exp(A_s (g_{u+1} + … + g_t)). T tokens are cut into chunks of C; the pairs
inside a chunk are matrix products, and what comes from before it is the one state that enters:

    enter    o_t   += (c_t ⊙ exp(A (g_1 + … + g_t)))ᵀ H
    leave    H     ← exp(A (g_1 + … + g_C)) ⊙ H + Σ_u (b_u ⊙ exp(A (g_{u+1} + … + g_C))) ⊗ v_u

**Levels.** P does not factor into c'·b' safely: exp(A·g) reaches e^−40 in one token, so splitting the exponent at a far point divides zero by zero.
It does factor at any point between u and t. At level L = 1, 2, 4, … C/2 cut the chunk into blocks of 2L: tokens of the upper half meet tokens of the
lower half at the boundary between them, and both factors have exponents ≤ 0. Two tokens meet at exactly one level, the highest bit in which t and u
differ, so log2(C) masked products X Xᵀ give all of P, where row t of X holds the decayed c_t (upper half) or b_t (lower half). The exponents are
sums of gates between a token and a boundary, formed without differences of cumulative sums, so nothing cancels.

**Backward.** P and the states are computed again. With dP_tu = do_t·v_u made symmetric, a level's gradient is dX = (dP masked) X, and X ⊙ dX is the
gradient of its exponents; each goes to the gates in that exponent's sum. The states' gradients are the same recurrence run backwards. (The usual way,
dlog = suffix sums of c ⊙ dc − b ⊙ db, is shorter; but those two nearly cancel where decays are strong, and bf16 noise is what remains.)

**Documents.** `starts` marks tokens before which the state is zeroed: a decay that is exactly zero, in every sum of gates that contains that token.

**Reached** on one H200 at B4 T4096 H40 S32 D32 bf16, replayed as a CUDA graph (benchmarks/gated_recurrence.py; the log is beside it):

    forward                  0.120 ms    0.011 GB beyond inputs and outputs     chunk_gla, fully tuned: 0.644 ms, 0.357 GB
    forward and backward     0.435 ms    0.096 GB                                                       2.683 ms, 0.840 GB
    sequential, all states   3.170 ms    2.684 GB    forward alone
    errors against float64   2.3e-3 to 3.2e-3 in bf16, at most 4e-7 in fp32; first call 9 to 13 s on an empty cache
"""

from collections.abc import Callable

import torch
from torch import Tensor

from hymo.errors import OperandError
from hymo.ops.choice import resolve
from hymo.ops.gated_recurrence.interface import check_operands
from hymo.ops.precision import without_autocast

__all__ = ["IMPLS", "OperandError", "gated_recurrence", "resolve_impl"]

IMPLS = ("auto", "reference", "chunked", "triton")


def resolve_impl(impl: str, device: torch.device | str) -> str:
    """See hymo/ops/choice.py; elsewhere than on a CUDA device "auto" is chunked PyTorch."""
    return resolve("gated_recurrence", impl, IMPLS, device, otherwise="chunked")


def _implementation(name: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """The function behind a resolved name. Triton is imported where it is used, since it exists on Linux only."""
    match name:
        case "reference":
            from hymo.ops.gated_recurrence.reference import gated_recurrence_reference as run
        case "chunked":
            from hymo.ops.gated_recurrence.chunked import gated_recurrence_chunked as run
        case "triton":
            from hymo.ops.gated_recurrence.triton import gated_recurrence_triton as run
    return run


def gated_recurrence(
    v_BTHD: Tensor,
    b_BTHS: Tensor,
    c_BTHS: Tensor,
    g_BTH: Tensor,
    A_HS: Tensor,
    *,
    initial_state_BHSD: Tensor | None = None,
    starts_BT: Tensor | None = None,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """H_t = exp(g_t·A) ⊙ H_{t−1} + b_t ⊗ v_t,  o_t = c_tᵀ H_t; returns (o_BTHD, H_T as final_state_BHSD).

    v_BTHD, b_BTHS, c_BTHS   values, keys and queries, one head width D and state width S for all heads
    g_BTH                    decay gates in [0, 1]
    A_HS                     decay rates <= 0, per head and state row
    initial_state_BHSD       the state before the first token; zero when None
    starts_BT                bool, True where a document starts: the state is zeroed before that token
    impl                     "reference" | "chunked" | "triton" | "auto"; see resolve_impl

    o has v's dtype; the state is float32 (float64 for float64 operands). Gradients flow to v, b, c, g, A and the initial state, from both
    results. Raises OperandError for shapes that do not fit, KernelUnavailable for a kernel that cannot run.
    """
    check_operands(v_BTHD, b_BTHS, c_BTHS, g_BTH, A_HS, initial_state_BHSD, starts_BT)
    run = _implementation(resolve_impl(impl, v_BTHD.device))
    with without_autocast(v_BTHD):     # the state is float32 whatever the autocast, in both directions
        return run(v_BTHD, b_BTHS, c_BTHS, g_BTH, A_HS, initial_state_BHSD, starts_BT)
