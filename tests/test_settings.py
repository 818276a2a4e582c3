import pytest
from pydantic import ValidationError

from hymo.settings import Settings

NAN, INF = float("nan"), float("inf")


class Sample(Settings):
    whole: int = 1
    real: float | None = None
    either: bool | int = 0
    flag: bool = False
    items: tuple[float, ...] = ()


@pytest.mark.parametrize("bad", [{"whole": True}, {"real": False}, {"real": NAN}, {"real": INF}, {"other": 1}, {"items": [INF]}])
def test_refused(bad):
    with pytest.raises(ValidationError):
        Sample.model_validate(bad)


def test_accepted():
    assert Sample.model_validate({"either": True, "flag": True, "real": None, "whole": 3}).either is True


def test_frozen():
    with pytest.raises(ValidationError):
        Sample().whole = 2
