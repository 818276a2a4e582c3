import pytest

from hymo.ablate import key as keys
from hymo.ablate.conduct import as_run
from hymo.recipe import load_recipe

WHERE = {"data_fingerprint": "abc", "device": "cpu", "threads": 1, "probes": {}}


def key_of(recipe, init_seed=0, **where):
    return keys.key(keys.ingredients(recipe, init_seed, **{**WHERE, **where}))


@pytest.fixture(scope="module")
def recipe():
    return load_recipe("v1_0", scale="tiny")


def test_the_key_changes_with_whatever_decides_the_result(recipe):
    base = key_of(recipe)
    assert key_of(recipe) == base
    others = [
        key_of(as_run(recipe, 1)),
        key_of(recipe, init_seed=1),
        key_of(recipe, data_fingerprint="abd"),
        key_of(recipe, threads=2),
        key_of(recipe, probes={"needle": {"rows": 8}}),
        key_of(load_recipe("v1_0", ["model.softcap=30"], scale="tiny")),
        key_of(load_recipe("v1_0", ["train.micro_batch=1"], scale="tiny")),
    ]
    assert len({base, *others}) == 1 + len(others)


def test_bookkeeping_does_not_change_the_key(recipe):
    same = load_recipe("v1_0", ["run.output=elsewhere", "run.tracking=none", "run.log_every=7", "name=other"], scale="tiny")
    assert key_of(same) == key_of(recipe)


def test_only_the_blocks_that_a_recipe_builds_are_in_its_key(recipe):
    assert {*keys.block_sources(recipe)} == {"mla", "moe", "gdn", "rope", "mtp", "none"}
    nope = load_recipe("v1_0", ["model.layers.M.ffn=dense_ffn"], scale="tiny")
    assert {*keys.block_sources(nope)} == {"mla", "dense_ffn", "gdn", "rope", "mtp", "none"}


def test_a_changed_source_file_changes_the_digest(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, text in ((one, "x = 1\n"), (other, "x = 2\n")):
        folder.mkdir()
        (folder / "a.py").write_text(text)
    assert keys._digest([one / "a.py"]) != keys._digest([other / "a.py"])
