import pytest

from hymo import registry
from hymo.recipe.keys import block_field, settings_at
from hymo.recipe.tree import LayerConfig, ModelConfig, NormuonConfig, Recipe

RAW = {"model": {"layers": {"A": {"mixer": "narrow"}, "G": {"mixer": {"type": "wide_mixer"}}}, "rope": {"theta": 5}}}


@pytest.mark.parametrize(
    ("keys", "settings"),
    [
        ((), Recipe),
        (("model",), ModelConfig),
        (("optimizer", "normuon"), NormuonConfig),
        (("model", "layers"), None),
        (("model", "layers", "A"), LayerConfig),
        (("model", "layers", "A", "mixer"), ("mixer", "narrow")),
        (("model", "layers", "G", "mixer"), ("mixer", "wide_mixer")),
        (("model", "layers", "A", "ffn"), ("ffn", "none")),
        (("model", "layers", "A", "mixer", "rope"), None),
        (("model", "rope"), ("position", "rope")),
        (("model", "d_model"), None),
        (("nowhere", "x"), None),
    ],
)
def test_settings_at(keys, settings):
    if isinstance(settings, tuple):
        settings = registry.get(*settings).Config
    assert settings_at(Recipe, RAW, keys) is settings


def test_block_field_is_found_inside_a_union():
    assert block_field(registry.get("mixer", "narrow").Config.model_fields["rope"]).kind == "position"
    assert block_field(ModelConfig.model_fields["rope"]).default == "rope"
    assert block_field(ModelConfig.model_fields["d_model"]) is None
