import json

import pytest

from hymo.ablate.conduct import folder_of
from hymo.ablate.definition import load
from hymo.ablate.plan import make_plan
from hymo.ablate.store import Outcome, Status, Store, write_json
from hymo.cli.ablate import planned_looks, planned_rates
from hymo.errors import AblationError

QUICK = ("train.steps=2", "train.seq_len=32", "train.tokens_per_step=64", "eval.tokens=64", "run.tracking=none")


def test_a_dry_run_resolves_and_prices_and_runs_nothing(hymo, tmp_path):
    done = hymo("ablate", "nope_hybrid", "mla_pos0", "--scale", "tiny", "--dry-run", *QUICK)
    assert done.code == 0, done.err
    for words in (
        "G.mixer.rope: — → none  [layers 3]",
        "order: MGGG*2 → GGGM*2",
        "15 runs (5 × 3 seeds) at scale tiny",
        "matched: active_params within 1.0%",
    ):
        assert words in done.out
    assert not (tmp_path / "ablations").exists()


def test_a_scale_is_chosen_and_explained(hymo):
    done = hymo("ablate", "softcap", "--within", "1d", "--seeds", "2", "--dry-run", "train.threads=1", "data.source=builtin")
    assert done.code == 0, done.err
    assert "6 runs, " in done.out
    assert "the largest of v1_0 that fits here" in done.out


def test_the_same_command_asks_the_same_question(hymo, tmp_path):
    """A result at a larger scale than there is time for now: its runs count, and what lacks must end in time by what they took."""
    store, plan = Store(tmp_path / "ablations"), make_plan([load("softcap")], scale="mini", seeds=2)
    folder = folder_of(plan, store)
    folder.mkdir(parents=True)
    write_json(folder / "result.json", {"rows": [{"keys": ["one"]}], "seeds": [0, 1]})
    store.run("one").mkdir(parents=True)
    store.write_outcome("one", Outcome(Status.FINISHED, seconds=20.0))
    again = hymo("ablate", "softcap", "--seeds", "2", "--within", "1s", "--jobs", "2", "--dry-run")
    assert "scale mini, as before: the store has a result of these arms there. --scale takes another." in again.out, again.err
    lacks = len(plan.everything)        # a third seed of each arm
    more = hymo("ablate", "softcap", "--seeds", "3", "--within", f"{10 * lacks + 1}s", "--jobs", "2", "--dry-run")
    assert f"scale mini, as before: the store has a result of these arms there, and the {lacks} runs that it lacks take about" in more.out, more.err
    assert "as before" not in hymo("ablate", "softcap", "--seeds", "3", "--within", f"{10 * lacks - 1}s", "--jobs", "2", "--dry-run").out
    assert "as before" not in hymo("ablate", "softcap", "--seeds", "2", "--within", "1s", "--dry-run", "model.softcap=9").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nope_hybrd",), "'nope_hybrd'; did you mean 'nope_hybrid'"),
        (("softcap", "softcap"), "an experiment must be named once, but got 'softcap' twice"),
        (("model.softcap=3",), "an ablation must name an experiment"),
        (("softcap", "--arms", "of"), "'of'; did you mean 'off'"),
        (("softcap", "--seeds", "1"), "2 seeds at least, but got seeds=1"),
        (("softcap", "--cross"), "--cross must have two experiments"),
        (("softcap", "--on", "rya"), "--on must be local, ray or ray:ADDRESS, but got 'rya'; did you mean 'ray'"),
        (("softcap", "--until", "bored"), "--until must be 'decided', but got 'bored'"),
        (("softcap", "--tune", "wd"), "--tune must be lr"),
        (("softcap", "model.softcp=3"), "'softcp'; did you mean 'softcap'"),
        (("mqar_like", "--dry-run"), "an experiment must be a shipped name"),
        (("softcap", "delta_rule"), "must share their base recipe"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(hymo, words, message):
    done = hymo("ablate", "--scale", "tiny", *words)
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert message in done.err


def test_results_of_nothing(hymo):
    assert "no finished ablation" in hymo("results").out
    assert json.loads(hymo("results", "--json").out) == []
    assert hymo("results", "softcap").code == 2


def test_looks_are_planned():
    assert planned_looks(None, None, 3) == []
    assert planned_looks("decided", None, 10) == [3, 5, 8, 10]
    assert planned_looks("decided", None, 3) == [3]
    assert planned_looks("decided", "2,4", 4) == [2, 4]
    for until, looks, seeds, message in (
        (None, "3,5", 5, "goes with --until decided"),
        ("decided", "3,x", 5, "must be numbers of seeds"),
        ("decided", "3,5", 8, "the last look must be at --seeds"),
    ):
        with pytest.raises(AblationError, match=message):
            planned_looks(until, looks, seeds)


def test_rates_are_planned():
    assert planned_rates(None) == ()
    assert planned_rates("lr") == (0.5, 1.0, 2.0)
    assert planned_rates("lr:4,1,0.25") == (0.25, 1.0, 4.0)
    with pytest.raises(AblationError, match="must be factors of the learning rate, but got '1,two'"):
        planned_rates("lr:1,two")
