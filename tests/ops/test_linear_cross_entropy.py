import math
from functools import partial
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F

from hymo.ops.linear_cross_entropy import chunked, linear_cross_entropy, reference
from hymo.testing import OpContract


def case(rows, width, vocabulary, softcap, ignored=()):
    def make(generator):
        targets = torch.randint(vocabulary, (rows,), generator=generator)
        targets[list(ignored)] = -100
        return {
            "hidden_ND": torch.randn(rows, width, generator=generator, dtype=torch.float64),
            "weight_WD": torch.randn(vocabulary, width, generator=generator, dtype=torch.float64),
            "targets_N": targets,
            "softcap": softcap,
        }

    return make


class TestContract(OpContract):
    cases: ClassVar = {
        "one row": case(1, 3, 5, 0.0),
        "no cap": case(33, 16, 50, 0.0, ignored=(0, 7)),
        "cap": case(33, 16, 50, 4.0, ignored=(0, 7)),
        "high cap": case(33, 16, 50, 50.0, ignored=(0, 7)),
        "several chunks": case(70, 8, 129, 15.0, ignored=(1, 2, 3, 69)),
        "nothing counted": case(4, 8, 9, 15.0, ignored=(0, 1, 2, 3)),
    }
    implementations: ClassVar = {"chunked": partial(linear_cross_entropy, impl="chunked")}
    reference = staticmethod(partial(linear_cross_entropy, impl="reference"))
    tolerances: ClassVar = {torch.float32: 1e-5, torch.bfloat16: 2e-2}

    @pytest.fixture(autouse=True)
    def small_chunks(self, monkeypatch):
        monkeypatch.setattr(chunked, "CHUNK_NUMBERS", {"cpu": 129 * 16, "cuda": 129 * 16})


class TestKernel(TestContract):
    """On a GPU for real; elsewhere in Triton's interpreter, whose bf16 arithmetic is wrong."""

    implementations: ClassVar = {"triton": partial(linear_cross_entropy, impl="triton")}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tolerances: ClassVar = {torch.float32: 1e-5} if device == "cpu" else {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def test_the_kernel_marks_a_target_outside_the_vocabulary():
    make = case(3, 4, 9, 15.0)(torch.Generator())
    hidden, weight = make["hidden_ND"].float().to(TestKernel.device), make["weight_WD"].float().to(TestKernel.device)
    _, losses = linear_cross_entropy(hidden, weight, torch.tensor([0, 9, 8]).to(TestKernel.device), softcap=15.0, impl="triton")
    assert losses.isnan().tolist() == [False, True, False]


def test_reference_is_torchs_cross_entropy():
    make = case(20, 6, 11, 0.0, ignored=(3,))(torch.Generator().manual_seed(0))
    loss, per_token = reference.linear_cross_entropy(**make)
    expected = F.cross_entropy(make["hidden_ND"] @ make["weight_WD"].T, make["targets_N"], reduction="sum", ignore_index=-100)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(per_token.sum(), expected)
    assert per_token[3] == 0


def test_gradients_in_float64():
    make = case(9, 4, 13, 2.0, ignored=(2,))(torch.Generator().manual_seed(1))
    hidden, weight = make["hidden_ND"].requires_grad_(), make["weight_WD"].requires_grad_()
    assert torch.autograd.gradcheck(lambda h, w: linear_cross_entropy(h, w, make["targets_N"], softcap=2.0)[0], (hidden, weight))


def test_zero_logits_cost_the_log_of_the_vocabulary():
    loss, _ = linear_cross_entropy(torch.zeros(5, 4), torch.randn(64, 4), torch.arange(5), softcap=15.0)
    assert loss.item() == pytest.approx(5 * math.log(64), rel=1e-6)


def test_autocast_multiplies_in_bf16_and_keeps_gradients_in_fp32():
    make = case(20, 16, 40, 15.0)(torch.Generator())
    hidden, weight = make["hidden_ND"].float().requires_grad_(), make["weight_WD"].float().requires_grad_()
    exact, _ = linear_cross_entropy(hidden, weight, make["targets_N"], softcap=15.0)
    expected = torch.autograd.grad(exact, (hidden, weight))
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = linear_cross_entropy(hidden, weight, make["targets_N"], softcap=15.0)
    got = torch.autograd.grad(loss, (hidden, weight))
    assert loss.dtype == torch.float32
    assert loss.item() != exact.item()
    assert loss.item() == pytest.approx(exact.item(), rel=2e-2)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() / b.norm() < 2e-2


def test_only_the_wanted_gradients_are_kept():
    make = case(6, 4, 10, 0.0)(torch.Generator())
    frozen = make["weight_WD"]
    loss, per_token = linear_cross_entropy(make["hidden_ND"].requires_grad_(), frozen, make["targets_N"])
    kept = [t for t in loss.grad_fn.saved_tensors if t is not None]
    assert [tuple(t.shape) for t in kept] == [(6, 4)]
    assert not per_token.requires_grad


def test_memory_holds_one_chunk_of_logits(monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK_NUMBERS", {"cpu": 4 * 100})
    seen = []

    def rows(logits, *args):
        seen.append(tuple(logits.shape))
        return chunked.rows(logits, *args)

    chunked.linear_cross_entropy(**case(10, 4, 100, 0.0)(torch.Generator()), rows=rows)
    assert seen == [(4, 100), (4, 100), (2, 100)]
