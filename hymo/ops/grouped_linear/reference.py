"""One product per group, in a Python loop: the plainest form, and the one that float64 can take."""

import torch
from torch import Tensor


def grouped_linear(x_ND: Tensor, weight_EFD: Tensor, ends_E: Tensor) -> Tensor:
    """See the package."""
    begin, parts = 0, []
    for weight_FD, end in zip(weight_EFD, ends_E.tolist(), strict=True):
        parts.append(x_ND[begin:end] @ weight_FD.mT)
        begin = end
    parts.append(x_ND.new_zeros(x_ND.shape[0] - begin, weight_EFD.shape[1]))
    return torch.cat(parts)
