import hashlib

import pytest
import torch
from torch import nn

from hymo.errors import HymoError
from hymo.init import generator_for, initialise
from hymo.ops.grouped_linear import GroupedLinear


def test_the_seed_is_sha256_of_seed_and_name():
    expected = int.from_bytes(hashlib.sha256(b"7:M0.mixer.wq_a.weight").digest()[:8], "big")
    assert generator_for(7, "M0.mixer.wq_a.weight").initial_seed() == expected


def test_each_name_has_values_of_its_own_and_order_does_not_matter():
    def values(names):
        module = nn.ModuleDict({name: nn.Linear(3, 4) for name in names})
        initialise(module, 5)
        return {path: p.detach().clone() for path, p in module.named_parameters()}

    forth, back, fewer = values(["a", "b", "c"]), values(["c", "b", "a"]), values(["b"])
    assert all(torch.equal(forth[path], back[path]) for path in forth)
    assert torch.equal(forth["b.weight"], fewer["b.weight"])
    assert not torch.equal(forth["a.weight"], forth["b.weight"])


def test_logical_names_seed_instead_of_paths():
    here, there = nn.ModuleDict({"x": nn.Linear(3, 4, bias=False)}), nn.ModuleDict({"y": nn.Linear(3, 4, bias=False)})
    initialise(here, 1, {"x.weight": "same"})
    initialise(there, 1, {"y.weight": "same"})
    assert torch.equal(here["x"].weight, there["y"].weight)


@pytest.mark.parametrize(
    ("module", "fan_in"),
    [
        (nn.Linear(64, 4000), 64),
        (nn.Conv1d(4000, 4000, 4, groups=4000, bias=True), 4),
        (nn.Conv1d(25, 4000, 4), 100),
        (GroupedLinear(4, 64, 1000), 64),
    ],
    ids=["linear", "depthwise", "conv", "grouped"],
)
def test_pytorchs_defaults(module, fan_in):
    initialise(module, 0)
    bound = fan_in**-0.5
    for parameter in module.parameters():
        assert parameter.abs().max() <= bound
        assert parameter.std().item() == pytest.approx(bound / 3**0.5, rel=0.03)        # of a uniform variable
        assert parameter.mean().abs() < 0.05 * bound


def test_norms():
    module = nn.ModuleDict({"rms": nn.RMSNorm(5), "layer": nn.LayerNorm(5)})
    for parameter in module.parameters():
        nn.init.constant_(parameter, 9.0)
    initialise(module, 0)
    assert module["rms"].weight.tolist() == module["layer"].weight.tolist() == [1.0] * 5
    assert module["layer"].bias.tolist() == [0.0] * 5


def test_a_rule_goes_first():
    module = nn.Linear(3, 4)
    initialise(module, 0, rule=lambda path, weight, generator: path == "bias" and bool(weight.fill_(2.0).any()))
    assert module.bias.tolist() == [2.0] * 4
    assert module.weight.abs().max() < 1


def test_a_parameter_that_nobody_fills_is_an_error():
    module = nn.Module()
    module.scale = nn.Parameter(torch.empty(3))
    with pytest.raises(HymoError, match="path='scale' of Module"):
        initialise(module, 0)
