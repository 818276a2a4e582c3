import pytest
import torch

from hymo import sizing
from hymo.cost import count
from hymo.errors import BudgetError
from hymo.recipe import load_recipe
from hymo.sizing import check_memory, choose, estimate, matmul_rate, work
from hymo.train.schedule import total_steps

CPU = torch.device("cpu")
GIB = 2**30


@pytest.fixture(scope="module")
def recipes():
    return {scale: load_recipe("v1_0", scale=scale) for scale in ("tiny", "proxy", "full")}


@pytest.fixture
def machine(monkeypatch):
    """A machine with this much memory, this fast at matrix products, and needing this long for a token of each scale."""

    def make(free, rate, seconds_per_token=1e-4):
        monkeypatch.setattr(sizing, "free_bytes", lambda device: free)
        monkeypatch.setattr(sizing, "matmul_rate", lambda device: rate)
        monkeypatch.setattr(sizing, "pace", lambda recipe, device: (seconds_per_token, 0.0))

    return make


def test_work_is_flops_per_token_times_tokens(recipes):
    full = recipes["full"]
    assert work(full) == count(full).flops_per_token_train * (30_000_000_000 // 524_288) * 524_288


def test_the_largest_scale_that_fits_and_ends_in_time_is_taken_and_explained(recipes, machine):
    machine(free=16 * GIB, rate=1e11)
    found = choose("v1_0", recipes, 1e9, CPU)
    assert found.chosen.scale == "proxy"
    assert found.words[0].startswith("scale proxy: the largest of v1_0 that fits here")
    assert "full would need" in found.words[1]
    assert "--scale full" in found.words[1]
    assert "at least 35 y" in found.words[1]  # 3.71e9 FLOPs * 30e9 tokens / 1e11 FLOP/s = 1.11e9 s


def test_too_slow_a_machine_takes_a_smaller_scale(recipes, machine):
    machine(free=16 * GIB, rate=1e11, seconds_per_token=1e-2)
    assert choose("v1_0", recipes, 600, CPU).chosen.scale == "tiny"


def test_when_none_ends_in_time_the_smallest_runs_all_the_same_and_says_so(recipes, machine):
    machine(free=16 * GIB, rate=1e11, seconds_per_token=1)
    found = choose("v1_0", recipes, 60, CPU)
    assert found.chosen.scale == "tiny"
    assert found.words[0].startswith("scale tiny: none of v1_0 ends within 1 min here")


def test_a_large_and_fast_machine_takes_all_of_it(recipes, machine):
    machine(free=1000 * GIB, rate=1e18, seconds_per_token=1e-9)
    found = choose("v1_0", recipes, 600, CPU)
    assert (found.chosen.scale, len(found.words)) == ("full", 1)


def test_memory_alone_can_decide(recipes, machine):
    machine(free=GIB, rate=1e18, seconds_per_token=1e-9)
    assert choose("v1_0", recipes, 600, CPU).chosen.scale == "proxy"


def test_too_little_memory_for_every_scale_is_an_error_with_the_numbers(recipes, machine):
    machine(free=2**20, rate=1e18)
    with pytest.raises(BudgetError, match=r"must fit into 1\.0 MiB, but the smallest of v1_0, tiny, needs .* MiB; free some memory"):
        choose("v1_0", recipes, 600, CPU)


def test_a_recipe_too_large_is_refused_with_every_part(recipes, machine):
    machine(free=16 * GIB, rate=1e11)
    with pytest.raises(BudgetError, match=r"training must fit into 16\.0 GiB free .* but v1_0 needs .* GiB \(weights 4\.2 GiB, gradients 4\.2 GiB"):
        check_memory(recipes["full"], CPU)
    check_memory(recipes["proxy"], CPU)


def test_sharded_parts_are_divided_among_devices(recipes):
    alone, among_four = (sizing.memory_parts(recipes["full"], CPU, world) for world in (1, 4))
    assert among_four["optimizer"] == alone["optimizer"] // 4
    assert among_four["activations"] == alone["activations"]


def test_validations_count_as_a_third_and_updates_by_themselves(recipes, monkeypatch):
    monkeypatch.setattr(sizing, "pace", lambda recipe, device: (1e-3, 0.5))
    tiny = recipes["tiny"]
    steps = total_steps(tiny.train)
    assert estimate(tiny, CPU) == pytest.approx(1e-3 * (steps * tiny.train.tokens_per_step + 10 * tiny.eval.tokens / 3) + 0.5 * steps)


def test_this_machine_is_measured():
    assert 1e8 < matmul_rate(CPU) < 1e15
    per_token, per_update = sizing.pace(load_recipe("v1_0", ["model.pattern=MG"], scale="tiny"), CPU)
    assert 0 < per_token < 1
    assert 0 < per_update < 60
