from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.harness import FAST, Case, Zygote, prepare


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with Zygote(tmp_path_factory.mktemp("cache")) as found:
        yield found


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A little text of this test run's own."""
    folder = tmp_path_factory.mktemp("text")
    for i in range(60):
        words = [f"{word}{i * len(word) % 7}" for word in ("state", "decay", "gate", "row")]
        (folder / f"{i:03d}.txt").write_text(" ".join(words * (i % 5 + 1)))
    return folder


@pytest.fixture(scope="session")
def make_case(zygote: Zygote, text: Path, empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Case]:
    """make_case("train.steps=3", …): a run of the shipped recipe at its smallest scale and smaller."""

    def make(*overrides: str, source: Path = text) -> Case:
        folder = prepare(tmp_path_factory.mktemp("case") / "here", empty_store)
        return Case(zygote, folder, ("v1_0", "--scale", "tiny", f"data.source={source}", "data.validation_frac=0.2", *FAST, *overrides))

    return make


@pytest.fixture(scope="session")
def uninterrupted(make_case: Callable[..., Case]) -> Case:
    """The run that nothing happened to."""
    case = make_case()
    case.finish()
    return case
