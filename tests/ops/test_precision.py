import pytest
import torch

from hymo.ops.precision import autocast_dtype, without_autocast


def test_autocast_dtype_is_what_products_would_take():
    x = torch.ones(2, 2)
    assert autocast_dtype(x) == (x @ x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert autocast_dtype(x) == (x @ x).dtype == torch.bfloat16


def test_without_autocast_products_keep_their_operands_type():
    x = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        with without_autocast(x):
            assert (x @ x).dtype == torch.float32
            assert autocast_dtype(x) == torch.float32
        assert (x @ x).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_meta_device_has_no_autocast(dtype):
    x = torch.ones(2, 2, device="meta", dtype=dtype)
    with without_autocast(x):
        assert autocast_dtype(x) == dtype
