import pytest

from tests.made import make_run


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "runs" / "a")


def test_there_and_back(hymo, run, tmp_path):
    found = hymo("export", "a", "out", "--to", "hf")
    assert found.out.splitlines() == [
        "wrote out; load it with:",
        "  AutoModelForCausalLM.from_pretrained('out', trust_remote_code=True)",
        "  AutoTokenizer.from_pretrained('out', trust_remote_code=True)",
    ]
    made = hymo("import", "out").out
    [folder] = (tmp_path / "runs").glob("out-imported-*")
    assert made == f"made runs/{folder.name}; for example: hymo generate {folder.name} --prompt …\n"
    words = ("--prompt", "def f", "--max-tokens", "5")
    assert hymo("generate", folder.name, *words).out == hymo("generate", "a", *words).out
    assert hymo("runs").out.splitlines()[-1].split()[3:] == ["imported", "6"]
    assert hymo("generate", "out-i", *words).out == hymo("generate", "a", *words).out
    assert ["status", "imported", "imported"] in [line.split() for line in hymo("compare", "out-i", "a").out.splitlines()]
    assert "must have trained to be drawn" in hymo("plot", "out-i").err


def test_an_unfinished_run_is_exported_and_said(hymo, tmp_path):
    make_run(tmp_path / "runs" / "half", step=2)
    found = hymo("export", "half", "out")
    assert found.code == 0
    assert found.err == "hymo: this run is at step 2 of 6; `hymo resume half` goes on with it\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("export", "a", "out", "--to", "gguf"), "--to must be one of hf, but got 'gguf'"),
        (("export", "a", "runs"), "the folder of an export must be new, but 'runs' exists"),
        (("export", "b", "out"), "a run must be one that `hymo runs` lists"),
        (("import", "nothing"), "a folder to import must be one that `hymo export` wrote, but 'nothing' has no config.json"),
    ],
)
def test_what_cannot_be_done_is_one_line(hymo, run, words, message):
    found = hymo(*words)
    assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)
    assert message in found.err
