from hymo.cli.show import folded
from hymo.recipe import load_recipe, resolve_stack


def test_equal_neighbours_are_folded():
    layers = resolve_stack(load_recipe("v1_0").model)
    assert folded(layers) == [pair for m in range(0, 32, 4) for pair in ((m, m), (m + 1, m + 3))]


def test_a_stack_is_drawn_layer_by_layer(hymo):
    lines = hymo("show", "--scale", "tiny").out.splitlines()
    assert lines[0].startswith("v1_0  MGGG*2  8 layers")
    drawn = {line.split()[0]: line.split() for line in lines[:-1] if line[:1].isdigit()}
    assert list(drawn) == ["0", "1-3", "4", "5-7"]
    assert drawn["1-3"][1:3] == ["G0-G2", "gdn"]
    assert drawn["0"][1:4] == ["M0", "mla", "moe"]


def test_what_an_override_changed_is_marked(hymo):
    lines = hymo("show", "--scale", "tiny", 'model.overrides={"before:M": {mixer: {rope: none}}}').out.splitlines()
    marked = [line for line in lines if " * " in line]
    assert [line.split()[0] for line in marked] == ["3"]
    assert marked[0].endswith("* before:M: mixer.rope=none")
    assert [line.split()[0] for line in lines[:-1] if line[:1].isdigit()] == ["0", "1-2", "3", "4", "5-7"]


def test_the_stack_is_written_as_a_page(hymo, tmp_path):
    found = hymo("show", "--scale", "tiny", "--html", "stack.html")
    assert found.out == "wrote stack.html\n"
    assert "<title>v1_0 · stack</title>" in (tmp_path / "stack.html").read_text()
    assert hymo("show", "--scale", "tiny", "--html", "nowhere/stack.html").code == 2
