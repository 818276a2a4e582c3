"""How long a run is, and its learning rate: warmup, stable, decay (WSD; Hu et al. 2024, arXiv:2404.06395)."""

from __future__ import annotations

import math

from hymo.errors import RecipeError
from hymo.recipe.tree import ScheduleConfig, TrainConfig


def total_steps(train: TrainConfig) -> int:
    """Optimizer steps of the run: `train.steps`, or as many whole steps as `train.tokens` pays for, at least one."""
    if train.steps is not None:
        return train.steps
    if train.tokens is None:
        raise RecipeError("exactly one of train.tokens and train.steps must be set, but got neither; set one")
    return max(1, train.tokens // train.tokens_per_step)


def rows_per_step(train: TrainConfig) -> int:
    """Rows of `seq_len` tokens in an optimizer step, over all devices. Raises RecipeError when they do not come out whole."""
    rows, rest = divmod(train.tokens_per_step, train.seq_len)
    if rest or not rows:
        raise RecipeError(
            f"train.tokens_per_step must be a multiple of train.seq_len, but got {train.tokens_per_step=} and {train.seq_len=}; "
            f"set train.tokens_per_step={max(1, rows) * train.seq_len}"
        )
    return rows


def interval(every: int | None, steps: int) -> int:
    """Steps between two validations or checkpoints; None is ten in a run."""
    return every if every is not None else max(1, steps // 10)


class WSD:
    """Multiplier m of the peak learning rates for update t = 0 … N−1 of a run of N updates, W of them warmup and D decay:

        m(t) = (t+1)/W                       t < W
             = 1                             W ≤ t < N−D
             = f + (1−f)·shape(x)            x = (t−(N−D))/D,   shape(x) = 1−x  or  1−√x

    The first update takes 1/W of the peak. The floor f is reached after the last update, which itself takes shape(1−1/D): no update is
    spent at a learning rate of zero. W and D are rounded to whole updates; the decay gives way when the two would overlap.
    """

    def __init__(self, config: ScheduleConfig, steps: int) -> None:
        total = config.warmup_frac + config.stable_frac + config.decay_frac
        if not math.isclose(total, 1.0, abs_tol=1e-6):
            raise RecipeError(f"schedule.warmup_frac + stable_frac + decay_frac must be 1, but got {total:g}; change one of them")
        self.config, self.steps = config, steps
        self.warmup = round(config.warmup_frac * steps)
        self.decay = min(round(config.decay_frac * steps), steps - self.warmup)

    def __call__(self, update: int) -> float:
        """Multiplier for the update with this number, counted from 0."""
        if not 0 <= update < self.steps:
            raise ValueError(f"an update must lie in the run, 0 <= update < {self.steps}, but got {update=}")
        if update < self.warmup:
            return (update + 1) / self.warmup
        begin = self.steps - self.decay
        if update < begin:
            return 1.0
        x = (update - begin) / self.decay
        shape = 1 - x if self.config.decay == "linear" else 1 - math.sqrt(x)
        return self.config.final + (1 - self.config.final) * shape
