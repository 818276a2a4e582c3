import json
import os
import textwrap

import pytest

from hymo.errors import PatternError, RecipeError, RegistryError
from hymo.recipe import dump, load_recipe, recipe_from_dict, replaced, scales, shipped_recipes, to_dict, with_overrides


def test_a_recipe_as_written(recipe_file):
    recipe = load_recipe(recipe_file)
    assert recipe.train.tokens == 1_000_000
    assert recipe.train.steps is None
    assert recipe.model.layers["A"].mixer.heads == 4
    assert recipe.model.layers["A"].ffn.inter_dim == 128
    assert recipe.model.layers["G"].ffn.type == "none"
    assert load_recipe(recipe_file, scale="full") == recipe


def test_scales_are_laid_over_the_recipe_and_overrides_over_them(recipe_file):
    assert scales(recipe_file) == ["half", "double"]
    half = load_recipe(recipe_file, scale="half")
    assert (half.model.d_model, half.model.pattern) == (32, "AG")
    double = load_recipe(recipe_file, ["train.tokens=2.5k", "data.source=x:y"], scale="double")
    assert (double.train.tokens, double.train.steps, double.data.source) == (2500, None, "x:y")
    assert load_recipe(recipe_file, scale="double").train.steps == 3


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("model.d_model=128", lambda r: r.model.d_model, 128),
        ("data=builtin", lambda r: r.data.source, "builtin"),
        ("model.layers.G.mixer.gate=hard", lambda r: r.model.layers["G"].mixer.gate, "hard"),
        ("model.layers.A.mixer.rope=none", lambda r: r.model.layers["A"].mixer.rope.type, "none"),
        ("model.layers.A.mixer={type: wide_mixer, state: 3}", lambda r: r.model.layers["A"].mixer.state, 3),
        ("model.layers.A.ffn.inter_dim=64", lambda r: r.model.layers["A"].ffn.inter_dim, 64),
        ("train.tokens=30B", lambda r: r.train.tokens, 30 * 10**9),
        ("train.tokens=16Ki", lambda r: r.train.tokens, 16384),
        ("train.steps=7", lambda r: (r.train.steps, r.train.tokens), (7, None)),
        ("model.swap=[0, 1]", lambda r: r.model.swap, [(0, 1)]),
        ("model.pattern=G AG*3", lambda r: r.model.pattern, "G AG*3"),
        ("optimizer.adamw.lr=1e-4", lambda r: r.optimizer.adamw.lr, 0.0001),
        ("run.output='on'", lambda r: r.run.output, "on"),
        ("model.rope.theta = 5e5", lambda r: r.model.rope.theta, 500000.0),
        ("model.overrides.before:A.mixer.state=16", lambda r: r.model.overrides, {"before:A": {"mixer": {"state": 16}}}),
    ],
)
def test_overrides(recipe_file, override, read, value):
    assert read(load_recipe(recipe_file, [override])) == value


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("model.d_modle=1", "model must hold only known keys, but got 'd_modle'; did you mean 'd_model'?"),
        ("modle.d_model=1", "a recipe must hold only known keys, but got 'modle'; did you mean 'model'?"),
        ("model.layers.G.mixer.stat=1", "model.layers.G.mixer must hold only known keys, but got 'stat'; did you mean 'state'?"),
        ("model.layers.A.mixer.rope={type: rope, thata: 1}", "mixer.rope must hold only known keys, but got 'thata'; did you mean 'theta'?"),
        ("model.layers.G.mixer=narow", "mixer must name a registered block, but got 'narow'; did you mean 'narrow'?"),
        ("model.layers.G.mixer=wide", "'wide' is a ffn"),
        ("model.layers.G.mixer.gate=sof", "must be 'soft' or 'hard', but got 'sof'; did you mean 'soft'?"),
        ("model.layers.A.mixer=wide_mixer", "model.layers.A.mixer.state must be given: width of the state"),
        ("model.layers.X.mixer=narrow", "every symbol of model.layers must be used by the pattern 'AGGG*2', but got 'X'"),
        ("model.layers.A.mixer.heads=7", "d_model must be divisible by heads, but got model.d_model=64 and self.heads=7 in layer A0"),
        ("train.dtype=fp16", "train.dtype must be 'auto', 'bf16' or 'fp32', but got 'fp16'"),
        ("model.d_model=-1", "must be greater than 0, but got -1"),
        ("model.d_model=wide", "model.d_model must be a whole number, but got 'wide'"),
        ("model.d_model=1.5", "must be a whole number, but got 1.5"),
        ("model.d_model=true", "must be a number, but got true"),
        ("model.d_model=1e30", "must be a whole number of ordinary size"),
        ("model.d_model=99999999", "must be less than or equal to 16777216"),
        ("model.vocab_size=256", "must hold the 257 entries of data.tokenizer=bytes, but got 256"),
        ("data.tokenizer=auto:1000", "must hold the 1000 entries"),
        ("model.softcap=.nan", "must be finite"),
        ("train.tokens=2.0000001k", "a count must be a whole number"),
        ("train.tokens=2X", "train.tokens must be a whole number, but got '2X'"),
        ("train.tokens=null", "exactly one of train.tokens and train.steps must be given"),
        ("train={tokens: 5, steps: 5}", "exactly one of train.tokens and train.steps must be given"),
        ("train.seq_len=8192", "at most model.max_seq_len=4096"),
        ("train.tokens_per_step=100", "must be a multiple of train.seq_len=64"),
        ("optimizer.adamw.betas=[0.9, 1.0]", "must be in [0, 1)"),
        ("model=5", "model must be a mapping of settings, but got 5"),
        ("train.seq_len.x=5", "train.seq_len must be set as a whole"),
        ("model.pattern=AG * 4", "without a space"),
        ("model.pattern=AB", "did you mean|choose from A, G"),
        ("model.pattern=*AG", "in quotes"),
        ("model.pattern=A #8", "a repeat is written M*8"),
        ("model.d_model", "must look like model.d_model=256"),
        ("=5", "must look like"),
        ("model..d_model=5", "must look like"),
        ("model.d_model=", "must give a value"),
        ("scales.half=5", "a scale is chosen with --scale"),
        ("extends=v1_0", "must change a setting of the recipe"),
        ("model.d_model=[1", "YAML 1.2"),
    ],
)
def test_a_bad_override_is_named_and_explained_in_one_line(recipe_file, override, says):
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe_file, [override])
    message = str(caught.value)
    assert any(part in message for part in says.split("|")), message
    assert len(message.splitlines()) == 1
    if "pattern=AB" not in override:
        assert message.startswith((f"override {override!r}: ", "override ")), message


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "says"),
    [
        ("d_model: 64\n", "d_modle: 64\n", 4, 3, "did you mean 'd_model'?"),
        ("state: 8", "state: eight", 11, 33, "a whole number"),
        ("state: 8", "stat: 8", 11, 33, "did you mean 'state'?"),
        ("type: narrow", "type: narrov", 8, 15, "did you mean 'narrow'?"),
        ("ffn: wide", "ffn: wild", 9, 7, "did you mean 'wide'?"),
        ("pattern: AGGG*2", "pattern: AGGG * 2", 5, 3, "without a space"),
        ("pattern: AGGG*2", "pattern: agGG*2", 5, 3, "did you mean 'A'?"),
        ("seq_len: 64", "seq_len: 63", 15, 34, "multiple of"),
        ("heads: 4", "heads: 5", 8, 7, "divisible"),
        ("scaling: rms_norm", "scaling: rms_nrm", 13, 23, "did you mean 'rms_norm'?"),
        (", scaling: rms_norm", "", 13, 3, "optimizer.normuon.scaling must be given"),
        ("name: small", "- small", 1, 1, "YAML"),
        ("scales:\n", "scales:\n  full: {}\n", 17, 3, "another name than 'full'"),
        ("name: small\n", "name: small\nextends: v9\n", 2, 1, "extends must be a file that exists"),
    ],
)
def test_a_fault_in_the_file_is_placed_by_line_and_column(recipe_file, old, new, line, column, says):
    text = recipe_file.read_text()
    assert old in text
    recipe_file.write_text(text.replace(old, new))
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe_file)
    message = str(caught.value)
    assert says in message
    if says != "YAML":
        assert message.startswith(f"{recipe_file}:{line}:{column}: "), message
    assert caught.value.where in message


def test_a_fault_in_a_scale_is_placed_in_the_scale(recipe_file):
    recipe_file.write_text(recipe_file.read_text().replace("model.d_model: 32", "model.d_model: 30.5"))
    with pytest.raises(RecipeError, match=rf"^{recipe_file}:18:5: model.d_model must be a whole number, but got 30.5"):
        load_recipe(recipe_file, scale="half")
    with pytest.raises(RecipeError, match="a scale must be one of the recipe's, but got 'haf'; did you mean 'half'"):
        load_recipe(recipe_file, scale="haf")


def test_a_pattern_error_keeps_its_class(recipe_file):
    with pytest.raises(PatternError):
        load_recipe(recipe_file, ["model.pattern=MG*1000000000"])


@pytest.mark.parametrize("text", ["", "5", "[1, 2]", "null", "name: x"])
def test_what_is_no_recipe_is_refused(recipe_file, text):
    recipe_file.write_text(text)
    with pytest.raises(RecipeError):
        load_recipe(recipe_file)


class TestExtends:
    def write(self, folder, name, text):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def test_the_child_is_laid_over_its_base(self, recipe_file):
        child = self.write(recipe_file.parent, "child.yaml", """\
            extends: small.yaml
            name: child
            model: {layers: {G: {mixer: {state: 4}}}}
            train: {steps: 9}
            scales: {half: {model.d_model: 16}, quarter: {model.d_model: 8}, double: null}
            """)
        recipe = load_recipe(child)
        assert (recipe.name, recipe.model.layers["G"].mixer.state, recipe.model.d_model) == ("child", 4, 64)
        assert (recipe.train.steps, recipe.train.tokens) == (9, None)
        assert scales(child) == ["half", "quarter"]
        half = load_recipe(child, scale="half")
        assert (half.model.d_model, half.model.pattern) == (16, "AG")

    def test_a_fault_is_placed_in_the_file_that_holds_it(self, recipe_file):
        recipe_file.write_text(recipe_file.read_text().replace("d_model: 64", "d_model: x", 1))
        child = self.write(recipe_file.parent, "child.yaml", "extends: small.yaml\nname: child\n")
        with pytest.raises(RecipeError, match=rf"^{recipe_file}:4:3: "):
            load_recipe(child)

    def test_chains_and_subfolders_are_allowed(self, recipe_file):
        folder = recipe_file.parent
        self.write(folder, "sub/a.yaml", "extends: ../small.yaml\n")
        top = self.write(folder, "top.yaml", "extends: sub/a.yaml\nname: top\n")
        assert load_recipe(top).name == "top"

    def test_a_shipped_recipe_is_found_by_name(self, tmp_path):
        child = self.write(tmp_path, "child.yaml", "extends: v1_0\nname: child\n")
        assert "tiny" in scales(child)

    def test_circles_are_refused(self, tmp_path):
        a = self.write(tmp_path, "a.yaml", "extends: b.yaml\n")
        self.write(tmp_path, "b.yaml", "extends: a.yaml\n")
        with pytest.raises(RecipeError, match=r"must not go round in a circle, but got a.yaml -> b.yaml -> a.yaml"):
            load_recipe(a)
        self_made = self.write(tmp_path, "c.yaml", "extends: c.yaml\n")
        with pytest.raises(RecipeError, match="circle"):
            load_recipe(self_made)

    def test_long_chains_are_refused(self, tmp_path):
        for i in range(12):
            self.write(tmp_path, f"r{i}.yaml", f"extends: r{i + 1}.yaml\n")
        with pytest.raises(RecipeError, match="at most 8 recipes deep"):
            load_recipe(tmp_path / "r0.yaml")

    @pytest.mark.parametrize(
        "target", ["../small.yaml", "/etc/passwd", "../../../../etc/passwd", "link.yaml", "loop.yaml", r'"a\0b"', "[a, b]", "5", "a" * 300]
    )
    def test_nothing_outside_the_recipes_folder_is_read(self, recipe_file, target):
        inside = recipe_file.parent / "inside"
        child = self.write(inside, "child.yaml", f"extends: {target}\n")
        (inside / "link.yaml").symlink_to(recipe_file)
        os.symlink("loop.yaml", inside / "loop.yaml")
        with pytest.raises(RecipeError, match=rf"^{child}:1:1: extends must "):
            load_recipe(child)

    def test_a_recipe_in_a_symlink_loop_is_refused(self, tmp_path):
        os.symlink("loop.yaml", tmp_path / "loop.yaml")
        with pytest.raises(RecipeError, match="a file that exists"):
            load_recipe(tmp_path / "loop.yaml")


BLOCK = '''
from typing import Literal
from hymo import Block, BlockConfig, register

@register("ffn", "{name}")
class Mine(Block):
    """An FFN of the user's."""

    class Config(BlockConfig):
        type: Literal["{name}"] = "{name}"
'''


class TestBlockFiles:
    @pytest.fixture
    def project(self, recipe_file, monkeypatch):
        self.text = recipe_file.read_text()
        home = recipe_file.parent / "project"
        home.mkdir()
        monkeypatch.chdir(home)
        return home

    def write_recipe(self, folder, name, ffn="wide"):
        path = folder / "mine.yaml"
        path.write_text(self.text.replace("ffn: wide", f"ffn: {ffn}") + f"blocks: [./{name}.py]\n")
        return path

    def write(self, folder, name):
        (folder / f"{name}.py").write_text(BLOCK.format(name=name))
        return self.write_recipe(folder, name, ffn=name)

    def test_files_in_the_working_folder_run_and_that_is_said(self, project, caplog):
        recipe = load_recipe(self.write(project, "local_ffn"))
        assert recipe.model.layers["A"].ffn.type == "local_ffn"
        assert recipe.blocks == [str(project / "local_ffn.py")]
        assert "running code from the block file" in caplog.text
        assert recipe_from_dict(to_dict(recipe)) == recipe

    def test_files_elsewhere_run_only_when_allowed(self, project):
        path = self.write(project.parent, "foreign_ffn")
        with pytest.raises(RecipeError, match=rf"^{path}:23:10: a block file is code and must lie in the working folder .*--allow-code"):
            load_recipe(path)
        assert load_recipe(path, allow_code=True).model.layers["A"].ffn.type == "foreign_ffn"

    def test_a_link_out_of_the_working_folder_does_not_pass(self, project):
        self.write(project.parent, "linked_ffn")
        (project / "linked_ffn.py").symlink_to(project.parent / "linked_ffn.py")
        path = self.write_recipe(project, "linked_ffn")
        with pytest.raises(RecipeError, match="must lie in the working folder"):
            load_recipe(path)

    @pytest.mark.parametrize(
        ("code", "says"),
        [("def f(:\n", r"broken.py:1 has 'invalid syntax'"), ("x = 1\ny = 1 / 0\n", r"broken.py:2 raised ZeroDivisionError: division by zero")],
    )
    def test_broken_code_is_placed(self, project, code, says):
        path = self.write_recipe(project, "broken")
        (project / "broken.py").write_text(code)
        with pytest.raises(RegistryError, match=says):
            load_recipe(path)

    def test_a_missing_file_is_said(self, project):
        with pytest.raises(RegistryError, match="must be a Python file that exists"):
            load_recipe(self.write_recipe(project, "nowhere"))


def test_recipe_from_dict_checks_like_a_file(recipe_file):
    raw = to_dict(load_recipe(recipe_file))
    assert recipe_from_dict(raw) == load_recipe(recipe_file)
    raw["model"]["d_model"] = 63
    with pytest.raises(RecipeError, match=r"^model.layers.A.mixer: d_model must be divisible by heads"):
        recipe_from_dict(raw)


def test_with_overrides_on_a_mapping(recipe_file):
    recipe = with_overrides(to_dict(load_recipe(recipe_file)), ["train.steps=4"])
    assert (recipe.train.steps, recipe.train.tokens) == (4, None)


def test_dump_is_read_back_as_the_same_recipe(recipe_file, tmp_path):
    recipe = load_recipe(recipe_file, ["run.output='1e-3'", "data.source='on: \\n#x \u2028é'", "model.overrides={'1': G, before:A: {ffn: wide}}"])
    (tmp_path / "again.yaml").write_text(dump(recipe))
    assert load_recipe(tmp_path / "again.yaml") == recipe


@pytest.mark.parametrize("name", ["../out", "a/b", "..", ".hidden", "", "a\\b", "é", "a b", "x" * 101, "a\n"])
def test_names_that_lead_out_of_their_folder_are_refused(recipe_file, name):
    with pytest.raises(RecipeError, match=r"^name must match pattern"):
        recipe_from_dict({**to_dict(load_recipe(recipe_file)), "name": name})
    text = recipe_file.read_text()
    recipe_file.write_text(text.replace("  half:", f"  {json.dumps(name)}:"))
    with pytest.raises(RecipeError, match="a scale's name must be letters"):
        scales(recipe_file)


def test_an_empty_file_is_named(tmp_path):
    empty = tmp_path / "empty.yaml"
    empty.write_text("# nothing yet\n")
    with pytest.raises(RecipeError, match=r"empty\.yaml: a recipe must hold settings"):
        load_recipe(empty)


def test_what_an_inherited_scale_replaces_is_known(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: v1_0\nname: mine\nmodel: {pattern: MG*16, softcap: 30}\nscales: {mini: {model.pattern: MG*4}}\n")
    assert replaced(mine, "tiny") == ["model.pattern: 'MG*16' → 'MGGG*2'"]
    assert replaced(mine, "mini") == []     # its own scale
    assert replaced(mine, "full") == replaced(mine, None) == []
    assert not any(replaced(name, scale) for name in shipped_recipes() for scale in scales(name))
