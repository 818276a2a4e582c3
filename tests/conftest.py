"""Without a GPU, Triton kernels run in Triton's interpreter, which must be chosen before Triton is first imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
