"""The table and the report, from a result written down here."""

import re

import pytest
from rich.console import Console

from hymo.ablate.report import render, write_report
from hymo.ablate.table import result_table, sentences


def row(arm, values, **more):
    return {
        "arm": arm, "primary": "val/loss", "changes": ["G.mixer.rope: — → none  [layers 3]"], "notes": [], "active": 1_000_000, "stored": 2_000_000,
        "active_change": 0.0, "flops_per_token_train": 3e9, "flops_change": 0.05, "state_bytes": 2048, "tokens_per_s": 900.0, "speed_ratio": 0.9,
        "bytes_peak": 2**30, "values": values,
        "differences": [value if value is None else value - base for value, base in zip(values, (3.0, 3.1), strict=True)],
        "statuses": ["finished" if value is not None else "diverged" for value in values],
        "curves": [[(1, 5.0), (2, 4.0)] for _ in values], "by_position": [(1, 5.0), (2, 4.5)], **more,
    }  # fmt: skip


DECIDED = {
    "mean": -0.02,
    "sd": 0.004,
    "low": -0.03,
    "high": -0.01,
    "p": 0.0004,
    "p_holm": 0.001,
    "p_tost": 0.9,
    "delta_min": 0.01,
    "margin": 0.01,
    "detectable": 0.02,
}
NOTHING = dict.fromkeys(DECIDED) | {"margin": 0.01, "delta_min": 0.01}


@pytest.fixture
def result():
    return {
        "name": "question", "primary": "val/loss", "scale": "mini", "seeds": [0, 1], "looks": [], "alpha": 0.05, "interval": 0.95, "shares": [],
        "experiments": [{"name": "question", "hypothesis": "Is <this> so?", "expectation": "Yes.", "primary": "val/loss", "delta_min": 0.01,
                         "margin": 0.01, "match": {"by": "none"}, "factor": ["order"]}],
        "rows": [
            row("baseline", [3.0, 3.1]),
            row("good", [2.98, 3.08], **DECIDED, verdict="better", words="better"),
            row("hot", [None, None], **NOTHING, verdict="unstable", words="unstable: diverged in 2 of 2 seeds"),
        ],
        "noise_floor": {"sd": 0.003, "correlation": None},
        "best": {"arm": "good", "runner_up": "baseline", "difference": -0.02, "p": 0.01, "named": True},
        "interactions": [], "secondary": [{"arm": "good", "metric": "probe/length/loss_2x", "mean": 0.1, "low": 0.0, "high": 0.2, "p_holm": 0.04}],
        "left_out": ["odd is the same as baseline at scale mini"], "reused": 3, "runs": 6,
    }  # fmt: skip


def test_the_table_shows_every_seed_and_the_interval(result):
    console = Console(width=160, record=True)
    console.print(result_table(result))
    text = console.export_text()
    for words in (
        "Δ loss [95 % interval], seeds",
        "-0.0200 [-0.0300, -0.0100]",
        "-0.0200 -0.0200",
        "3.0000 3.1000",
        "✗ ✗",
        "better",
        "unstable: diverged",
        "0.90×",
        "+5.00%",
        "1.0 GiB",
    ):
        assert words in text


def test_the_sentences_say_what_the_table_cannot(result):
    said = " ".join(sentences(result))
    for words in (
        "2 seeds (0, 1), paired; an interval is its arm's own, a verdict stands under Holm over 2 arms",
        "left out: odd is the same",
        "difference of 0.0200 (good",
        "A/A:",
        "Best: good, ahead of baseline by 0.0200",
        "3 of 6 runs were reused",
    ):
        assert words in said


def test_the_report_is_one_file_that_needs_nothing(result, tmp_path):
    write_report(tmp_path / "report.html", result)
    page = (tmp_path / "report.html").read_text()
    assert [*tmp_path.iterdir()] == [tmp_path / "report.html"]
    assert page.count("<svg") == 4
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)""", page)
    assert "Is &lt;this&gt; so?" in page
    assert "unstable: diverged in 2 of 2 seeds" in page
    assert page == render(result)  # the same result gives the same file


def test_a_result_without_a_single_finished_arm_still_makes_a_report(result):
    result["rows"] = [
        row("baseline", [None, None], curves=[[], []], by_position=[]),
        row("hot", [None, None], curves=[[], []], by_position=[], **NOTHING, verdict="unstable", words="unstable"),
    ]
    result |= {"best": None, "noise_floor": None}
    assert render(result).count("<svg") == 0
