import errno
import subprocess
import sys
import time

import pytest

from hymo.cli import app


def test_help_lists_every_command_without_torch_or_mlflow():
    code = (
        "import sys; sys.argv = ['hymo', '--help']\n"
        "from hymo.cli import main\n"
        "try: main()\n"
        "except SystemExit as left: assert not left.code\n"
        "assert not {'torch', 'mlflow', 'pydantic', 'rich', 'numpy', 'optuna', 'datasets'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    commands = ["run", "resume", "runs", "count-params", "show", "schema", "data", "tokenizer", "ui", "init", "blocks", "recipes", "doctor", "sync"]
    for command in commands:
        assert f"\n  {command} " in done.stdout


def test_a_users_error_is_one_line_and_exit_code_2(hymo):
    found = hymo("show", "v1_1")
    assert found.code == 2
    assert found.out == ""
    assert found.err == "hymo: a recipe must be a file or the name of a shipped one, but got 'v1_1'; did you mean 'v1_0'?\n"


@pytest.mark.parametrize("words", [("show", "--nothing"), ("nothing",), ("run", "--nproc", "0"), ("data",), ()])
def test_a_word_that_means_nothing_is_exit_code_2(hymo, words):
    assert hymo(*words).code == 2


@pytest.mark.parametrize(("words", "full"), [(("show", "v1_1"), "stderr"), (("recipes", "list"), "stdout")])
def test_a_full_disk_behind_the_output_leaves_the_exit_code_2(words, full):
    with open("/dev/full", "w") as nowhere:
        done = subprocess.run([sys.executable, "-m", "hymo", *words], text=True, check=False,
                              **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, full: nowhere})
    assert done.returncode == 2
    assert "Traceback" not in (done.stderr or "")


def test_a_command_leaves_without_a_word(small, tmp_path):
    """Whole processes: what a library says as it is torn down is seen by nobody inside."""
    for words in (["run", *small, "run.tracking=none"], ["count-params"]):
        done = subprocess.run([sys.executable, "-m", "hymo", *words], capture_output=True, text=True, check=True, cwd=tmp_path)
        assert "leaked" not in done.stdout + done.stderr


def test_debug_shows_the_traceback_wherever_it_stands(hymo, monkeypatch):
    from hymo.errors import RecipeError

    monkeypatch.setattr(sys, "argv", ["hymo", "show", "--debug", "v1_1"])
    with pytest.raises(RecipeError, match="v1_1"):
        app.main()


def test_version(hymo):
    assert hymo("--version").out.startswith("hymo 1.")


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "No space left on device"), (errno.EACCES, "Permission denied")])
def test_a_disk_that_refuses_is_one_line(hymo, monkeypatch, number, words):
    def refuse(*_: object) -> None:
        raise OSError(number, words, "runs/a")

    monkeypatch.setattr("hymo.runs.list_runs", refuse)
    found = hymo("runs")
    assert found.code == 2
    assert found.err == f"hymo: {words}: runs/a; free or choose another place (run.output=FOLDER)\n"


def test_a_fault_of_hymos_own_is_not_hidden(hymo, monkeypatch):
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("hymo.runs.list_runs", fail)
    monkeypatch.setattr(sys, "argv", ["hymo", "runs"])
    with pytest.raises(ZeroDivisionError):
        app.main()


def test_a_reader_that_leaves_is_no_error(tmp_path):
    listing = subprocess.Popen([sys.executable, "-m", "hymo", "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
    listing.stdout.readline()
    time.sleep(0.1)
    listing.stdout.close()
    assert listing.stderr.read() == b""
    listing.stderr.close()
    assert listing.wait() == 0
