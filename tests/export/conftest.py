import pytest

from hymo.export import export_run
from hymo.trained import open_trained
from tests.made import make_run, small_tokenizer


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A run over bytes."""
    return open_trained(make_run(tmp_path_factory.mktemp("runs") / "a"))


@pytest.fixture(scope="session")
def merged(tmp_path_factory):
    """A run with a byte-level BPE of its own."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "b", "data.tokenizer=auto:300", "model.vocab_size=300")
    small_tokenizer(folder / "tokenizer.json")
    return open_trained(folder)


@pytest.fixture(scope="session")
def exported(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "a"
    export_run(trained, folder)
    return folder
