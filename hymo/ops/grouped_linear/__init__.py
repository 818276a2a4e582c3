"""Rows sorted by group, each group multiplied by a matrix of its own: the product inside a mixture of experts."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from hymo.ops.grouped_linear import reference

ALIGNMENT = 8       # widths must be multiples of it: grouped products want strides of 16 bytes, in bf16 8 numbers
Impl = Literal["auto", "reference", "grouped_mm"]


def grouped_linear(x_ND: Tensor, weight_EFD: Tensor, ends_E: Tensor, *, impl: Impl = "auto") -> Tensor:
    """y_n = W_e x_n for ends[e-1] <= n < ends[e]: `nn.Linear` with one weight per group of rows.

    x_ND (N, D) with its groups contiguous and in order; weight_EFD (E, F, D), in nn.Linear's layout; ends_E (E,) int32, where each group
    ends (groups may be empty). Returns (N, F) in x's dtype. Rows from ends[-1] on belong to no group: what they hold is undefined.
    `auto` is torch's grouped_mm, which never reads `ends_E` on the host, and the loop in float64, which grouped_mm does not take.
    """
    if impl == "reference" or (impl == "auto" and x_ND.dtype == torch.float64):
        return reference.grouped_linear(x_ND, weight_EFD, ends_E)
    return F.grouped_mm(x_ND, weight_EFD.mT, offs=ends_E)
