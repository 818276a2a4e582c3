from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import nn

from hymo.ops.grouped_linear import GroupedLinear, grouped_linear
from hymo.testing import OpContract


def case(groups, width_in, width_out, ends):
    def make(generator):
        return {
            "x_ND": torch.randn(ends[-1], width_in, generator=generator, dtype=torch.float64),
            "weight_EFD": torch.randn(groups, width_out, width_in, generator=generator, dtype=torch.float64),
            "ends_E": torch.tensor(ends, dtype=torch.int32),
        }

    return make


class TestContract(OpContract):
    cases: ClassVar = {
        "one group": case(1, 8, 16, [5]),
        "uneven": case(4, 24, 8, [3, 20, 21, 40]),
        "empty groups": case(4, 8, 8, [0, 7, 7, 9]),
    }
    implementations: ClassVar = {name: partial(grouped_linear, impl=name) for name in ("grouped_mm", "opaque")}
    reference = staticmethod(partial(grouped_linear, impl="reference"))


def test_each_group_is_an_nn_linear():
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(10, 8, generator=generator), torch.randn(2, 16, 8, generator=generator)
    linears = [nn.Linear(8, 16, bias=False) for _ in range(2)]
    for linear, w in zip(linears, weight, strict=True):
        linear.weight.data = w
    module = GroupedLinear(2, 8, 16)
    module.weight.data = weight
    torch.testing.assert_close(module(x, torch.tensor([4, 10], dtype=torch.int32)), torch.cat([linears[0](x[:4]), linears[1](x[4:])]))


@pytest.mark.parametrize("impl", ["reference", "auto"])
def test_float64(impl):
    inputs = case(2, 8, 8, [1, 3])(torch.Generator())
    assert grouped_linear(**inputs, impl=impl).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiles_in_one_graph(dtype):
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in case(3, 8, 16, [2, 2, 9])(torch.Generator()).items()}
    compiled = torch.compile(grouped_linear, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(**inputs), grouped_linear(**inputs))
