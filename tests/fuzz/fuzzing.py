"""How many cases a property gets."""

import re
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy


def fuzz(few: int, many: int, **strategies: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """@given(**strategies): `few` cases in the ordinary suite, `many` under `make fuzz`."""
    cases = many if settings.get_current_profile_name() == "fuzz" else few
    return lambda test: settings(max_examples=cases, deadline=None, suppress_health_check=list(HealthCheck))(given(**strategies)(test))


def counted(told: str, kind: str) -> int:
    """Cases of a kind, "passing" or "invalid", in what Hypothesis tells of a property ("100 passing, 0 failing, and 17 invalid test cases")."""
    return sum(int(number) for number in re.findall(rf"(\d+) {kind}\b", told))
