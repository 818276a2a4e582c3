import pytest
import torch
from torch import Tensor

from hymo.train.orthogonal import arithmetic, newton_schulz


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(3, 6, 10), (3, 10, 6), (1, 8, 8), (2, 1, 5)])
def test_singular_values_follow_the_polynomial(shape: tuple[int, ...]) -> None:
    """The iteration acts on the singular values alone: σ ← aσ + bσ³ + cσ⁵ from σ/‖X‖_F, the singular vectors stay."""
    x = random(*shape).double()
    u, sigma, vt = torch.linalg.svd(x, full_matrices=False)
    s = sigma / x.norm(dim=(-2, -1))[:, None]
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    torch.testing.assert_close(newton_schulz(x, 5, torch.float64), u @ torch.diag_embed(s) @ vt, rtol=0, atol=1e-5)


def test_the_scale_of_a_gradient_does_not_matter() -> None:
    x = random(2, 6, 4)
    torch.testing.assert_close(newton_schulz(1e-3 * x, 5, torch.float32), newton_schulz(1e3 * x, 5, torch.float32), rtol=0, atol=5e-4)
    assert torch.equal(newton_schulz(torch.zeros(1, 3, 2), 5, torch.float32), torch.zeros(1, 3, 2))


def test_a_stack_is_its_matrices_one_by_one() -> None:
    x = random(4, 6, 9)
    assert torch.equal(newton_schulz(x, 5, torch.float32), torch.cat([newton_schulz(x[i : i + 1], 5, torch.float32) for i in range(4)]))


def test_arithmetic_is_by_device() -> None:
    assert arithmetic(torch.device("cuda", 0)) == torch.bfloat16
    assert arithmetic(torch.device("cpu")) == torch.float32
