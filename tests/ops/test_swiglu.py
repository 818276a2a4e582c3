import math
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import library

from hymo.errors import OperandError
from hymo.ops.swiglu import swiglu
from hymo.testing import OpContract

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def case(*shape):
    return lambda generator: {"gate_up": 3 * torch.randn(shape, generator=generator, dtype=torch.float64)}


class TestContract(OpContract):
    """On a GPU for real; elsewhere in Triton's interpreter, whose bf16 arithmetic is wrong."""

    cases: ClassVar = {"one": case(1, 2), "rows": case(3, 5, 34), "several tiles": case(9, 2 * 517), "no rows": case(0, 8)}
    implementations: ClassVar = {"triton": partial(swiglu, impl="triton")}
    reference = staticmethod(partial(swiglu, impl="reference"))
    device = DEVICE
    tolerances: ClassVar = {torch.float32: 1e-5} if DEVICE == "cpu" else {torch.float32: 1e-5, torch.bfloat16: 1e-2}


@pytest.mark.parametrize("impl", ["reference", "triton"])
def test_against_the_formula(impl):
    gates, ups = [-30.0, -1.0, 0.0, 0.5, 40.0], [2.0, -1.0, 3.0, 4.0, -0.5]
    y = swiglu(torch.tensor([gates + ups], device=DEVICE), impl=impl)
    expected = [g / (1 + math.exp(-g)) * u for g, u in zip(gates, ups, strict=True)]
    torch.testing.assert_close(y.cpu(), torch.tensor([expected]), rtol=1e-6, atol=1e-12)


def test_float64_is_not_rounded():
    x = torch.tensor([[1.0, 1.0]], dtype=torch.float64, device=DEVICE)
    torch.testing.assert_close(swiglu(x, impl="triton").item(), 1 / (1 + math.exp(-1)), rtol=1e-15, atol=0)


@pytest.mark.parametrize("impl", ["reference", "triton"])
@pytest.mark.parametrize("x", [torch.zeros(2, 5), torch.tensor(1.0), torch.zeros(2, 4, dtype=torch.int64)])
def test_what_has_no_halves_is_refused(x, impl):
    with pytest.raises(OperandError, match="its last axis even"):
        swiglu(x.to(DEVICE), impl=impl)


def test_operators_keep_their_promises():
    from hymo.ops.swiglu.triton import swiglu as operator

    library.opcheck(operator, (torch.randn(3, 12, device=DEVICE, requires_grad=True),))


def test_compiles_in_one_graph():
    x = torch.randn(4, 12, device=DEVICE, requires_grad=True)
    compiled = torch.compile(partial(swiglu, impl="triton"), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x), torch.autograd.grad(swiglu(x).sum(), x))
