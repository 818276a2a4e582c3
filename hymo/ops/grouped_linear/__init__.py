"""Rows sorted by group, each group multiplied by a matrix of its own: the product inside a mixture of experts."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hymo.ops.grouped_linear import opaque, reference
from hymo.ops.precision import autocast_dtype

ALIGNMENT = 8       # widths must be multiples of it: grouped products want strides of 16 bytes, in bf16 8 numbers
Impl = Literal["auto", "reference", "grouped_mm", "opaque"]


def grouped_linear(x_ND: Tensor, weight_EFD: Tensor, ends_E: Tensor, *, impl: Impl = "auto") -> Tensor:
    """y_n = W_e x_n for ends[e-1] <= n < ends[e]: `nn.Linear` with one weight per group of rows.

    x_ND (N, D) with its groups contiguous and in order; weight_EFD (E, F, D), in nn.Linear's layout; ends_E (E,) int32, where each group
    ends (groups may be empty). Returns (N, F) in x's dtype. Rows from ends[-1] on belong to no group: what they hold is undefined.
    `auto` is torch's grouped_mm, which never reads `ends_E` on the host (`opaque` to torch.compile where that cannot trace it, outside bf16), and the
    loop in float64, which grouped_mm does not take.
    """
    if impl == "reference" or (impl == "auto" and x_ND.dtype == torch.float64):
        return reference.grouped_linear(x_ND, weight_EFD, ends_E)
    x_ND, weight_EFD = x_ND.contiguous(), weight_EFD.contiguous()
    if impl == "opaque" or (impl == "auto" and x_ND.dtype != torch.bfloat16 and torch.compiler.is_compiling()):
        y_NF: Tensor = opaque.grouped_linear(x_ND, weight_EFD, ends_E)
        return y_NF
    return F.grouped_mm(x_ND, weight_EFD.mT, offs=ends_E)


class GroupedLinear(nn.Module):
    """A bias-free nn.Linear for each group of rows: weight (groups, out_features, in_features), see grouped_linear."""

    def __init__(self, groups: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(groups, out_features, in_features))

    def forward(self, x_ND: Tensor, ends_E: Tensor) -> Tensor:
        dtype = autocast_dtype(x_ND)
        return grouped_linear(x_ND.to(dtype), self.weight.to(dtype), ends_E)
