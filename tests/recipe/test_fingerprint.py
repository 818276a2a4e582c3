import pytest

from hymo.errors import RecipeError
from hymo.recipe import fingerprint, load_recipe


def of(recipe_file, *overrides, **kwargs):
    return fingerprint(load_recipe(recipe_file, overrides, **kwargs))


def test_it_is_16_hexadecimal_digits_and_repeats(recipe_file):
    first = of(recipe_file)
    assert len(first) == 16
    assert int(first, 16) >= 0
    assert of(recipe_file) == first


@pytest.mark.parametrize(
    "override",
    [
        "name=other",
        "run.output=elsewhere", "run.experiment=x", "run.tracking=none", "run.log_every=7",
        "run.checkpoint_every=3", "run.keep_last=9", "run.keep_every=5",
        "eval.every=3",
        "train.device=cpu", "train.threads=1", "train.micro_batch=2", "train.compile=false", "train.checkpoint_activations=true",
        "data.max_epochs=100",
        # the same stack, written otherwise
        "model.pattern=AGGG AGGG", "model.pattern=(AG G*2)*2", "model.overrides={'0': {mixer: {heads: 4}}}", "model.swap=[1, 1]",
        "model.layers.A.ffn={type: wide, inter_dim: 128}", "train.tokens=1000k",
    ],
)  # fmt: skip
def test_what_leaves_the_result_leaves_the_fingerprint(recipe_file, override):
    assert of(recipe_file, override) == of(recipe_file)


CHANGES = [
    "run.seed=1",
    "model.d_model=32", "model.pattern=AGGG*3", "model.swap=[0, 1]", "model.swap=[0, 4]", "model.overrides={'0': {mixer: {heads: 2}}}",
    "model.layers.A.mixer.heads=2", "model.layers.A.ffn=none", "model.softcap=0", "model.rope=none",
    "model.tie_embeddings=false", "model.mtp={depth: 1, weights: [0.1]}",
    "optimizer.adamw.lr=2e-3", "optimizer.experts=normuon", "schedule={warmup_frac: 0.02, stable_frac: 0.78}",
    "data.source=corpus.txt", "data.shuffle=false", "data.validation_frac=0.1",
    "train.tokens=2M", "train.steps=10", "train.seq_len=32", "train.tokens_per_step=512", "train.dtype=fp32", "train.on_bad_loss=skip",
    "eval.tokens=4096", "eval.probes=[mqar]",
]  # fmt: skip


@pytest.mark.parametrize("override", CHANGES)
def test_what_changes_the_result_changes_the_fingerprint(recipe_file, override):
    assert of(recipe_file, override) != of(recipe_file)


def test_no_two_changes_agree(recipe_file):
    assert len({of(recipe_file, override) for override in CHANGES}) == len(CHANGES)


def test_block_files_count_by_their_content(recipe_file, tmp_path):
    prints = []
    for folder, code in [("a", "x = 1\n"), ("b", "x = 1\n"), ("c", "x = 2\n")]:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(code)
        path = tmp_path / folder / "r.yaml"
        path.write_text(recipe_file.read_text() + "blocks: [mine.py]\n")
        prints.append(of(path, allow_code=True))
    assert prints[0] == prints[1]
    assert len({of(recipe_file), *prints}) == 3
    recipe = load_recipe(tmp_path / "a" / "r.yaml", allow_code=True)
    (tmp_path / "a" / "mine.py").unlink()
    with pytest.raises(RecipeError, match="block file must be readable"):
        fingerprint(recipe)
