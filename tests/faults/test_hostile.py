"""Loading what others made: it is refused in a moment and in little memory, runs no code, and says why in one line."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS, MEGABYTES = 1.0, 500
USABLE = "a slip"       # what is large and within bounds: it loads and is counted, in the same time and memory


def test_everything_hostile_is_refused_in_a_second_and_500_megabytes(tmp_path: Path) -> None:
    """In a process of its own: torch is in its memory, too."""
    done = subprocess.run([sys.executable, Path(__file__).with_name("hostile.py"), tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(cases) > 200, "every whole-number setting of every block is among them"
    assert [case["case"] for case in cases if case["said"] is None and USABLE not in case["case"]] == []
    assert [case for case in cases if case["said"] and (case["said"].startswith("Traceback") or len(case["said"].splitlines()) != 1)] == []
    assert [case for case in cases if case["seconds"] > SECONDS] == []
    assert max(case["peak_mb"] for case in cases) < MEGABYTES
    assert not (tmp_path / "exploded").exists()
    slowest = max(cases, key=lambda case: case["seconds"])
    print(f"\n{len(cases)} hostile inputs: slowest {slowest['seconds']} s ({slowest['case']}), peak memory {max(c['peak_mb'] for c in cases)} MB")


SOURCES = sorted(path for folder in ("hymo", "blocks", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib", "jsonpickle"}
RUNS_TEXT = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load"}
RUNS_FILES = ("spec_from_file_location", "exec_module", "run_path")
BLOCK_FILES = ROOT / "hymo" / "registry.py"     # they are code, and are run here alone: from the project's own folder, or with --allow-code


def offences(path: Path) -> Iterator[str]:
    """What a file does that would let something that is read run."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if name.split(".")[0] in PICKLES:
                yield f"{path}:{node.lineno} imports {name}"
        if isinstance(node, ast.Call):
            name, given = ast.unparse(node.func), {argument.arg: ast.unparse(argument.value) for argument in node.keywords}
            wrong = (
                name in RUNS_TEXT
                or (name == "torch.load" and given.get("weights_only") != "True")
                or (name in ("np.load", "numpy.load") and given.get("allow_pickle", "False") != "False")
                or (name.endswith(RUNS_FILES) and path != BLOCK_FILES)
                or given.get("shell", "False") != "False"
            )
            if wrong:
                yield f"{path}:{node.lineno} calls {name}"


def test_nothing_that_is_read_can_run() -> None:
    assert [offence for path in SOURCES for offence in offences(path)] == []


@pytest.mark.parametrize("code", ["import pickle", "from joblib import load", "torch.load(p)", "torch.load(p, weights_only=False)", "eval(text)",
                                  "np.load(p, allow_pickle=True)", "spec.loader.exec_module(m)", "subprocess.run(words, shell=True)"])  # fmt: skip
def test_the_rule_sees_what_it_forbids(tmp_path: Path, code: str) -> None:
    (tmp_path / "file.py").write_text(code)
    assert list(offences(tmp_path / "file.py"))
    (tmp_path / "file.py").write_text("import json\ntorch.load(p, weights_only=True)\nmodel.eval()\nre.compile('x')\nnp.load(p)")
    assert not list(offences(tmp_path / "file.py"))
