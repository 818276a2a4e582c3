import json

import pytest

from tests.made import make_run


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "runs" / "v1_0-tiny-abc")


def test_one_prompt_is_written_with_its_completion(hymo, run):
    found = hymo("generate", "v1_0-tiny-abc", "--prompt", "def f", "--max-tokens", "7")
    assert found.code == 0, found.err
    assert found.out.startswith("def f")
    assert found.out.endswith("\n")
    [line] = hymo("generate", run.name, "--prompt", "def f", "--max-tokens", "7", "--json").out.splitlines()
    machine = json.loads(line)
    assert found.out == "def f" + machine["text"] + "\n"
    assert (machine["prompt"], machine["reason"], len(machine["tokens"])) == ("def f", "length", 7)


def test_several_prompts_are_shown_one_after_another(hymo, run):
    words = ("generate", run.name, "--prompt", "ab", "--prompt", "abcd", "--max-tokens", "3", "--temperature", "1", "--seed", "2")
    one, other = (json.loads(line) for line in hymo(*words, "--json").out.splitlines())
    assert hymo(*words).out == (
        f"--- 1: length after 3 tokens\nab{one['text']}\n\n--- 2: length after 3 tokens\nabcd{other['text']}\n"
    )


def test_bytes_that_are_no_utf8_reach_the_model_as_they_are(hymo, run):
    odd = hymo("generate", run.name, "--prompt", b"\xff\xfe".decode("utf-8", "surrogateescape"), "--max-tokens", "1")
    assert odd.code == 0, odd.err
    long = hymo("generate", run.name, "--prompt", b"\xff".decode("utf-8", "surrogateescape") * 65)
    assert "but got 65 + 1 tokens" in long.err      # one token a byte


def test_a_run_that_has_not_ended_is_used_and_said(hymo, tmp_path):
    make_run(tmp_path / "runs" / "half", step=2)
    found = hymo("generate", "half", "--prompt", "a", "--max-tokens", "1")
    assert found.code == 0
    assert found.err == "hymo: this run is at step 2 of 6; `hymo resume half` goes on with it\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", "a", "--max-tokens", "64"], "must fit model.max_seq_len=64, but got 1 + 64 tokens"),
        (["--prompt", ""], "a prompt must hold one token at least"),
        (["--prompt", "a", "--temperature", "-1"], "temperature must be a number >= 0, but got -1.0"),
        (["--prompt", "a", "--top-p", "0"], "top_p must be above 0"),
        (["--prompt", "a", "--stop", ""], "a stop string must hold something"),
        (["--prompt", "a", "--device", "cuda:99"], "a device must be one of this machine"),
    ],
)
def test_what_cannot_be_done_is_one_line(hymo, run, words, message):
    found = hymo("generate", run.name, *words)
    assert found.code == 2
    assert found.out == ""
    assert message in found.err
    assert found.err.count("\n") == 1


def test_no_run_no_prompt(hymo, run):
    assert "a run must be one that `hymo runs` lists" in hymo("generate", "other", "--prompt", "a").err
    assert hymo("generate", run.name).code == 2
