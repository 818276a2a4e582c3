"""NorMuon against its published update, written once more as a plain loop over matrices in float64."""

import math

import pytest
import torch
from torch import Tensor, nn

from hymo.train.normuon import NorMuon, shape_scale


def oracle(weight: Tensor, gradients: list[Tensor], *, lr: float, scaling: str, momentum: float, beta2: float, nesterov: bool, eps: float,
           weight_decay: float, normalize: bool) -> Tensor:
    """arXiv 2510.05491 with the norm restored, one matrix, one line of the paper after another."""
    w, m, v = weight.double(), torch.zeros_like(weight).double(), torch.zeros(weight.shape[0]).double()
    rows, columns = w.shape
    for g in gradients:
        g = g.double()
        m = momentum * m + (1 - momentum) * g
        d = momentum * m + (1 - momentum) * g if nesterov else m
        x = d / (math.sqrt(float((d * d).sum())) + 1e-7)
        if rows > columns:
            x = x.T
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        o = x.T if rows > columns else x
        update = o
        if normalize:
            for i in range(rows):
                v[i] = beta2 * v[i] + (1 - beta2) * float((o[i] ** 2).sum()) / columns
            update = torch.stack([o[i] / (math.sqrt(float(v[i])) + eps) for i in range(rows)])
            update = update * (o.norm() / update.norm())
        scale = 0.2 * math.sqrt(max(rows, columns)) if scaling == "rms_norm" else math.sqrt(rows / columns)
        w = w - lr * weight_decay * w - lr * scale * update
    return w


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def run(weights: list[Tensor], gradients: list[list[Tensor]], **settings: object) -> list[nn.Parameter]:
    params = [nn.Parameter(w.clone()) for w in weights]
    optimizer = NorMuon(params, **settings)  # type: ignore[arg-type]
    for step in range(len(gradients[0])):
        for p, g in zip(params, gradients, strict=True):
            p.grad = g[step].clone()
        optimizer.step()
    return params


SETTINGS = {"lr": 0.02, "scaling": "rms_norm", "momentum": 0.95, "beta2": 0.9, "nesterov": False, "eps": 1e-8, "weight_decay": 0.1, "normalize": True}


@pytest.mark.parametrize("change", [{}, {"nesterov": True}, {"scaling": "spectral"}, {"normalize": False}, {"weight_decay": 0.0, "momentum": 0.0}])
def test_five_steps_equal_the_published_update(change: dict[str, object]) -> None:
    settings = {**SETTINGS, **change}
    shapes = [(12, 8), (8, 12), (12, 8), (9, 9)]      # two of one shape: stacked
    weights = [random(*shape, seed=i) for i, shape in enumerate(shapes)]
    gradients = [[random(*shape, seed=100 * i + t) for t in range(5)] for i, shape in enumerate(shapes)]
    for got, weight, gradient in zip(run(weights, gradients, **settings), weights, gradients, strict=True):
        wanted = oracle(weight, gradient, **settings)  # type: ignore[arg-type]
        torch.testing.assert_close(got.double(), wanted, rtol=0, atol=2e-5)


def test_a_stack_of_experts_is_its_matrices_one_by_one() -> None:
    weights, gradients = random(3, 2, 6, 4), [random(3, 2, 6, 4, seed=t) for t in range(3)]
    (stacked,) = run([weights], [gradients], **SETTINGS)
    alone = run(list(weights.view(6, 6, 4)), [[g.view(6, 6, 4)[i] for g in gradients] for i in range(6)], **SETTINGS)
    assert torch.equal(stacked.detach().view(6, 6, 4), torch.stack([p.detach() for p in alone]))


def test_first_step_brings_every_row_to_one_norm_and_keeps_the_whole_norm() -> None:
    gradient = random(16, 24) * torch.logspace(-3, 0, 16)[:, None]      # rows of very different size
    normed = run([torch.zeros(16, 24)], [[gradient]], **{**SETTINGS, "weight_decay": 0.0, "beta2": 0.0})[0].detach()
    plain = run([torch.zeros(16, 24)], [[gradient]], **{**SETTINGS, "weight_decay": 0.0, "normalize": False})[0].detach()
    rows = normed.norm(dim=1)
    torch.testing.assert_close(rows, rows[0].expand(16), rtol=1e-4, atol=0)
    torch.testing.assert_close(normed.norm(), plain.norm(), rtol=1e-5, atol=0)


def test_rms_norm_moves_a_weight_by_about_a_fifth_of_the_learning_rate() -> None:
    for shape in [(64, 64), (128, 32), (32, 128)]:
        moved = run([torch.zeros(shape)], [[random(*shape)]], **{**SETTINGS, "weight_decay": 0.0})[0]
        # 0.2 exactly for an orthonormal update; Newton-Schulz leaves its singular values between 0.68 and 1.13
        assert 0.68 * 0.2 <= float(moved.detach().square().mean().sqrt()) / 0.02 <= 1.13 * 0.2


def test_shape_scales() -> None:
    assert [shape_scale("rms_norm", *s) for s in [(1024, 1024), (4096, 1024), (1024, 4096)]] == pytest.approx([6.4, 12.8, 12.8])
    assert [shape_scale("spectral", *s) for s in [(1024, 1024), (4096, 1024), (8, 1024)]] == pytest.approx([1, 2, 0.088388], rel=1e-4)


def test_found_inf_makes_the_step_a_no_op() -> None:
    p = nn.Parameter(random(6, 4))
    optimizer = NorMuon([p], lr=0.1, scaling="rms_norm", weight_decay=0.1)
    p.grad = random(6, 4, seed=1)
    optimizer.step()
    before = [p.detach().clone(), *(t.clone() for t in optimizer.state[p].values())]
    p.grad = torch.full((6, 4), float("nan"))
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, [p.detach(), *optimizer.state[p].values()], strict=True))
    optimizer.found_inf = torch.tensor(0.0)
    p.grad = random(6, 4, seed=2)
    optimizer.step()
    assert not torch.equal(before[0], p)


def test_a_gradient_of_zeros_moves_nothing() -> None:
    (p,) = run([torch.ones(3, 5)], [[torch.zeros(3, 5)]], **{**SETTINGS, "weight_decay": 0.0})
    assert torch.equal(p.detach(), torch.ones(3, 5))


def test_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match="matrices"):
        NorMuon([nn.Parameter(torch.zeros(3))], lr=0.1, scaling="rms_norm")
