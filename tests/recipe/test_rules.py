import pytest

from hymo.errors import RecipeError
from hymo.recipe import load_recipe, recipe_from_dict, to_dict


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("train.steps", 5, "exactly one of train.tokens and train.steps must be given, but got train.tokens=1000000, train.steps=5"),
        ("train.tokens", None, "exactly one of train.tokens and train.steps must be given, but got train.tokens=None, train.steps=None"),
        ("train.seq_len", 8192, "train.seq_len must be at most model.max_seq_len=4096, but got train.seq_len=8192"),
        ("train.tokens_per_step", 100, "train.tokens_per_step must be a multiple of train.seq_len=64, but got train.tokens_per_step=100"),
        ("model.vocab_size", 256, "model.vocab_size must hold the 257 entries of data.tokenizer=bytes, but got 256"),
        ("schedule.decay_frac", 0.5, "schedule.warmup_frac + stable_frac + decay_frac must be 1, but got 0.01 + 0.79 + 0.5 = 1.3"),
        ("optimizer.adamw.betas", [0.9, 1.0], "optimizer.adamw.betas must be in [0, 1), but got (0.9, 1.0)"),
    ],
)
def test_rules_between_settings(recipe_file, path, value, says):
    raw = to_dict(load_recipe(recipe_file))
    *sections, key = path.split(".")
    node = raw
    for section in sections:
        node = node[section]
    node[key] = value
    with pytest.raises(RecipeError) as caught:
        recipe_from_dict(raw)
    assert str(caught.value) == says


@pytest.mark.parametrize("symbol", ["AB", "1", "é", "", "\n"])
def test_a_symbol_is_one_letter(recipe_file, symbol):
    raw = to_dict(load_recipe(recipe_file))
    raw["model"]["layers"][symbol] = {"mixer": "narrow"}
    with pytest.raises(RecipeError, match=r"must be one ASCII letter"):
        recipe_from_dict(raw)


def test_a_block_of_absurd_size_is_refused(recipe_file):
    for key in ("layers.A.mixer.heads", "layers.G.mixer.state", "layers.A.ffn.inter_dim"):
        with pytest.raises(RecipeError, match=rf"^override 'model.{key}=1e15': model.{key} must be at most 16777216, but got 1000000000000000$"):
            load_recipe(recipe_file, [f"model.{key}=1e15"])


def test_the_limits_themselves_are_allowed(recipe_file):
    recipe = load_recipe(recipe_file, ["train.seq_len=4096", "train.tokens_per_step=4096", "data.tokenizer=auto:257"])
    assert recipe.train.seq_len == recipe.model.max_seq_len


def test_symbols_must_all_be_used_and_null_takes_one_out(recipe_file):
    with pytest.raises(RecipeError, match=r"^override 'model.pattern=G\*8': every symbol .* but got 'A'; model.layers.A=null takes it out"):
        load_recipe(recipe_file, ["model.pattern=G*8"])
    assert list(load_recipe(recipe_file, ["model.pattern=G*8", "model.layers.A=null"]).model.layers) == ["G"]


def test_every_block_is_asked_at_every_place_it_stands(recipe_file):
    with pytest.raises(RecipeError, match=r"in layer G2$"):
        load_recipe(recipe_file, ["model.overrides.before:A={mixer: {type: narrow, heads: 5}}"])


def test_a_task_has_no_tokenizer_to_make_room_for(recipe_file):
    assert load_recipe(recipe_file, ["model.vocab_size=16", "data.source=synthetic:copy"]).model.vocab_size == 16
