"""Two operations of PyTorch's."""

import torch.nn.functional as F
from torch import Tensor


def swiglu(gate_up: Tensor) -> Tensor:
    """See the package."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
