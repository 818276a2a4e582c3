import json

from hymo.recipe import json_schema


def test_the_whole_model_is_counted_to_the_unit(hymo):
    found = hymo("count-params")
    assert found.code == 0
    rows = {line.split("  ")[0]: line.split() for line in found.out.splitlines() if line}
    assert rows["total"][1:3] == ["434,454,144", "1,128,087,168"]
    assert "57,573,376" in rows["embedding (tied with head)"]
    assert "state" in found.out


def test_json_has_what_a_machine_needs(hymo):
    found = json.loads(hymo("count-params", "v1_0", "--json").out)
    assert (found["active"], found["stored"]) == (434_454_144, 1_128_087_168)
    assert sum(row["stored"] for row in found["components"]) == found["stored"]
    assert 3.6e9 < found["flops_per_token_train"] < 3.8e9
    assert found["state_bytes"] == 24 * (40_960 * 4 + 3 * 1_280 * 2)
    assert found["kv_bytes"] == 8 * 160 * 4096 * 2
    assert set(found["memory_bytes"]) >= {"weights", "gradients", "optimizer", "activations", "logits"}


def test_overrides_and_scales_are_counted(hymo):
    with_heads = json.loads(hymo("count-params", "--json", "--scale", "tiny").out)
    without = json.loads(hymo("count-params", "--json", "--scale", "tiny", "model.mtp={depth: 0, weights: []}").out)
    assert with_heads["stored"] - without["stored"] == 2 * 3 * 32 * 32  # two SwiGLU heads of d_model 32, inter_dim 32


def test_the_schema_is_printed_or_written(hymo, tmp_path):
    assert json.loads(hymo("schema").out) == json_schema()
    assert "yaml-language-server: $schema=recipe.json" in hymo("schema", "recipe.json").out
    assert json.loads((tmp_path / "recipe.json").read_text()) == json_schema()
