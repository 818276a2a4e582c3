import math

import pytest

from hymo.errors import RecipeError
from hymo.recipe.tree import ScheduleConfig, TrainConfig
from hymo.train.schedule import WSD, interval, rows_per_step, total_steps


def test_every_multiplier_of_a_ten_step_run_by_hand() -> None:
    schedule = WSD(ScheduleConfig(warmup_frac=0.2, stable_frac=0.4, decay_frac=0.4, decay="linear", final=0.0), 10)
    assert [schedule(t) for t in range(10)] == pytest.approx([0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])


def test_first_and_last_learning_rate_of_the_full_recipe() -> None:
    steps = 57_220      # 30B tokens at 524,288 a step
    schedule = WSD(ScheduleConfig(), steps)
    assert (schedule.warmup, schedule.decay) == (572, 11_444)
    assert schedule(0) == 1 / 572
    assert schedule(571) == schedule(572) == schedule(steps - 11_444) == 1.0
    assert schedule(steps - 1) == 1 - math.sqrt(1 - 1 / 11_444)
    assert 0 < schedule(steps - 1) < 1e-4


def test_the_floor_is_where_the_decay_ends() -> None:
    linear = WSD(ScheduleConfig(warmup_frac=0, stable_frac=0, decay_frac=1, decay="linear", final=0.1), 4)
    assert [linear(t) for t in range(4)] == pytest.approx([1, 0.775, 0.55, 0.325])
    root = WSD(ScheduleConfig(warmup_frac=0, stable_frac=0, decay_frac=1, decay="1-sqrt", final=0.1), 4)
    assert [root(t) for t in range(4)] == pytest.approx([1, 0.55, 0.1 + 0.9 * (1 - math.sqrt(0.5)), 0.1 + 0.9 * (1 - math.sqrt(0.75))])


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_warmup_and_decay_never_overlap_and_never_waste_an_update(steps: int) -> None:
    schedule = WSD(ScheduleConfig(warmup_frac=0.5, stable_frac=0, decay_frac=0.5), steps)
    assert schedule.warmup + schedule.decay <= steps
    assert all(0 < schedule(t) <= 1 for t in range(steps))


def test_no_warmup_starts_at_the_peak() -> None:
    assert WSD(ScheduleConfig(warmup_frac=0, stable_frac=0.8, decay_frac=0.2), 10)(0) == 1.0


def test_refusals() -> None:
    with pytest.raises(RecipeError, match=r"must be 1, but got 0\.9"):
        WSD(ScheduleConfig(warmup_frac=0.1, stable_frac=0.6, decay_frac=0.2), 10)
    with pytest.raises(ValueError, match="update=10"):
        WSD(ScheduleConfig(), 10)(10)
    with pytest.raises(RecipeError, match=r"set train\.tokens_per_step=960"):
        rows_per_step(TrainConfig(steps=1, seq_len=96, tokens_per_step=1000))


def test_lengths() -> None:
    assert total_steps(TrainConfig(steps=7)) == 7
    assert total_steps(TrainConfig(tokens=30_000_000_000)) == 57_220
    assert total_steps(TrainConfig(tokens=10, tokens_per_step=4096)) == 1
    assert rows_per_step(TrainConfig(steps=1)) == 128
    assert (interval(None, 95), interval(None, 3), interval(7, 95)) == (9, 1, 7)
