"""grouped_mm as an operator that torch.compile does not look into: torch's own shape rule for it takes bf16 alone."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, library


@library.custom_op("hymo::grouped_linear", mutates_args=())
def grouped_linear(x_ND: Tensor, weight_EFD: Tensor, ends_E: Tensor) -> Tensor:
    """See the package."""
    return F.grouped_mm(x_ND.contiguous(), weight_EFD.mT, offs=ends_E)


@library.custom_op("hymo::grouped_linear_weight", mutates_args=())
def _weight_gradient(grad_NF: Tensor, x_ND: Tensor, ends_E: Tensor) -> Tensor:
    return F.grouped_mm(grad_NF.contiguous().mT, x_ND.contiguous(), offs=ends_E)


@grouped_linear.register_fake
def _(x_ND: Tensor, weight_EFD: Tensor, ends_E: Tensor) -> Tensor:
    return x_ND.new_empty(x_ND.shape[0], weight_EFD.shape[1])


@_weight_gradient.register_fake
def _(grad_NF: Tensor, x_ND: Tensor, ends_E: Tensor) -> Tensor:
    return x_ND.new_empty(ends_E.shape[0], grad_NF.shape[1], x_ND.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor, Tensor, None]:
    x_ND, weight_EFD, ends_E = ctx.saved_tensors
    return grouped_linear(grad_NF, weight_EFD.mT, ends_E), _weight_gradient(grad_NF, x_ND, ends_E), None


grouped_linear.register_autograd(_backward, setup_context=_keep)
