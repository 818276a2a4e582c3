import subprocess
import sys

import pytest
from rich.console import Console

from hymo.ablate.listing import results
from hymo.ablate.store import Store, write_json
from hymo.errors import AblationError


@pytest.fixture
def shown(tmp_path):
    """shown(name) -> (what was printed, what was returned)."""

    def show(name=None, report=False):
        screen = Console(width=160, record=True)
        return results(name, report, tmp_path / "ablations", screen), screen.export_text()

    return show


def finish(tmp_path, folder, name):
    rows = [{"arm": "baseline"}, {"arm": "swap", "words": "better"}]
    write_json(
        Store(tmp_path / "ablations").root / folder / "result.json",
        {"name": name, "scale": "mini", "seeds": [0, 1], "experiments": [{"name": name}], "rows": rows},
    )


def test_finished_ablations_are_listed_with_their_verdicts(shown, tmp_path):
    assert "no finished ablation" in shown()[1]
    finish(tmp_path, "order-mini-1", "order")
    found, text = shown()
    assert found == [{"folder": "order-mini-1", "name": "order", "scale": "mini", "seeds": 2, "verdicts": {"swap": "better"}}]
    assert "swap: better" in text


def test_an_unknown_an_unfinished_and_no_name(shown, tmp_path):
    finish(tmp_path, "order-mini-1", "order")
    with pytest.raises(AblationError, match="'ordr'; did you mean 'order'"):
        shown("ordr")
    (tmp_path / "ablations" / "softcap-mini-2").mkdir()
    with pytest.raises(AblationError, match="must be finished to be reported, but got 'softcap-mini-2', which is not; `hymo ablate softcap` goes on"):
        shown("softcap", report=True)
    with pytest.raises(AblationError, match="--report needs the name"):
        shown(report=True)


def test_listing_needs_no_torch():
    code = "import sys, hymo.ablate.listing; assert not {'torch', 'scipy', 'matplotlib'} & sys.modules.keys(), sorted(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
