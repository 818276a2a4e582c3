import subprocess
import sys

import pytest
import torch

from hymo.errors import BudgetError, RecipeError
from hymo.train import device
from hymo.train.parallel import find_device

CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize(("name", "tflops"), [
    ("NVIDIA H200", 989.4), ("NVIDIA H100 80GB HBM3", 989.4), ("NVIDIA H100 PCIe", 756.5), ("NVIDIA H100 NVL", 835.5),
    ("NVIDIA A100-SXM4-80GB", 312.0), ("NVIDIA GH200 480GB", 989.4), ("NVIDIA A10G", 70.0), ("NVIDIA A10", 125.0), ("NVIDIA L40S", 362.1),
    ("NVIDIA L4", 121.0), ("NVIDIA B200", 2250.0), ("NVIDIA GeForce RTX 4090", 165.2),
])
def test_peaks_of_the_datasheets(name: str, tflops: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert device.peak_flops(CUDA, torch.bfloat16) == tflops * 1e12


def test_no_peak_is_ever_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA Z9000")
    assert device.peak_flops(CUDA, torch.bfloat16) is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    assert device.peak_flops(CUDA, torch.float32) is None
    assert device.peak_flops(torch.device("cpu"), torch.bfloat16) is None


def test_compute_types(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert [device.compute_dtype(t, cpu) for t in ("auto", "fp32", "bf16")] == [torch.float32, torch.float32, torch.bfloat16]  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert device.compute_dtype("auto", CUDA) == torch.bfloat16
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    assert device.compute_dtype("auto", CUDA) == torch.float32
    with pytest.raises(RecipeError, match=r"Tesla T4; use train\.dtype=fp32"):
        device.compute_dtype("bf16", CUDA)


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") == torch.device("cpu")
    with pytest.raises(BudgetError, match="got 'cuda' and torch finds no such device"):
        find_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(BudgetError, match="got process 2 and 2 GPUs"):
        find_device("cuda", local_rank=2)


def test_memory_is_counted_in_bytes() -> None:
    cpu = torch.device("cpu")
    assert 2**26 < device.peak_bytes(cpu) < 2**40     # a Python with torch takes more than 64 MiB
    assert 2**20 < device.free_bytes(cpu) < 2**50


def test_a_process_counts_its_own_memory_not_that_of_the_one_that_started_it() -> None:
    large = torch.ones(3 * 2**29, dtype=torch.uint8)
    code = "import torch; from hymo.train.device import peak_bytes; print(peak_bytes(torch.device('cpu')))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(told) < 2**30 < large.nbytes
