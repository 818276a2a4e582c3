"""SIGKILL at any moment, and again while resuming: what comes out is the run that was never interrupted, and its record holds everything once."""

import os
import random
from collections import Counter
from collections.abc import Callable

import pytest

from tests.faults.harness import EVERY, STEPS, Case, compare

KILLS = int(os.environ.get("HYMO_KILLS", "3"))      # `make faults` says 50
MOMENTS = ("save", "flush", "step", "any", "validation")
AGAIN = 0.3         # share of the killed runs that are killed once more


def random_kill(case: Case, whole: Case, moment: str, draw: random.Random) -> bool:
    """Kill within a random one of the moments of this kind, at a random time in it; `any`: at a random time of the whole run."""
    if moment == "any":
        return case.kill("start", 1, draw.uniform(0, whole.seconds))
    seen = whole.lives[0][moment]
    return case.kill(moment, draw.randint(1, seen.left), draw.uniform(0, seen.seconds / seen.left))


@pytest.mark.timeout(1800)
def test_killed_anywhere_and_resumed_is_the_uninterrupted_run(make_case: Callable[..., Case], uninterrupted: Case) -> None:
    died: Counter[str] = Counter()
    most = runs = sending = 0
    while died.total() < KILLS:
        draw, case, kills = random.Random(runs), make_case(), 0
        moment = MOMENTS[runs % len(MOMENTS)]
        while died.total() < KILLS and random_kill(case, uninterrupted, moment, draw):
            died[case.died_in] += 1
            sending += case.lives[-1]["flush"].inside
            kills += 1
            if draw.random() > AGAIN:
                break
            moment = draw.choice(MOMENTS)
        case.finish()
        compare(case, uninterrupted)
        repeated = case.steps_entered - STEPS
        assert repeated <= EVERY * kills
        most, runs = max(most, repeated), runs + 1
    where = ", ".join(f"{count} in {phase}" for phase, count in sorted(died.items()))
    print(f"\n{KILLS} kills of {runs} runs ({where}; {sending} of them while MLflow was sent to): 0 losses, at most {most} steps of a run repeated")
