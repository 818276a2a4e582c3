import sys
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ValidationError

from hymo import Block, BlockConfig, BlockField, registry
from hymo.errors import RegistryError

CODE = '''
from typing import Literal
from hymo import Block, BlockConfig, register

@register("ffn", "{name}")
class Mine(Block):
    class Config(BlockConfig):
        type: Literal["{name}"] = "{name}"
'''


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """A registry that forgets what a test registers."""
    registry.discover()
    monkeypatch.setattr(registry, "_blocks", dict(registry._blocks))


def make(name: str, declared: str | None = None) -> type[Block]:
    config = type("Config", (BlockConfig,), {"__annotations__": {"type": str}, "type": declared or name, "__module__": __name__})
    return type(name.title(), (Block,), {"Config": config, "__module__": __name__})


def test_registered_blocks_are_found_by_kind_and_name():
    block = registry.register("ffn", "mine")(make("mine"))
    assert registry.get("ffn", "mine") is block
    assert (block.kind, block.name) == ("ffn", "mine")
    assert "mine" in registry.names("ffn")
    assert "mine" not in registry.names("mixer")


def test_what_cannot_be_registered():
    with pytest.raises(RegistryError, match="kind must be one of mixer, ffn, position, head, but got kind='glue'"):
        registry.register("glue", "x")
    with pytest.raises(RegistryError, match=r"Config.type must default to its registered name 'mine', but got 'other'"):
        registry.register("ffn", "mine")(make("mine", declared="other"))
    registry.register("ffn", "mine")(make("mine"))
    other = make("other", declared="mine")
    with pytest.raises(RegistryError, match="registered once per name, but got 'mine'"):
        registry.register("ffn", "mine")(other)


def test_registering_the_same_class_again_replaces_it():
    first, again = make("mine"), make("mine")
    registry.register("ffn", "mine")(first)
    registry.register("ffn", "mine")(again)
    assert registry.get("ffn", "mine") is again


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [("ffn", "dense_fnn", "did you mean 'dense_ffn'?"), ("mixer", "dense_ffn", "'dense_ffn' is a ffn"), ("head", "xyz", "choose from mtp")],
)
def test_an_unknown_name_gets_a_hint(kind, name, says):
    with pytest.raises(RegistryError) as caught:
        registry.get(kind, name)
    assert says in str(caught.value)


def test_discover_finds_every_file_of_the_blocks_folder():
    shipped = [("mixer", "mla"), ("mixer", "gdn"), ("ffn", "moe"), ("ffn", "dense_ffn"), ("ffn", "none"), ("position", "rope"), ("head", "mtp")]
    for kind, name in shipped:
        assert registry.get(kind, name).name == name
    assert not any(name.startswith("_") for kind in ("mixer", "ffn", "position", "head") for name in registry.names(kind))


def test_a_users_file_runs_once(tmp_path):
    file = tmp_path / "ffn_run_once.py"
    file.write_text(CODE.format(name="ffn_run_once"))
    assert registry.discover([file]) == [file]
    assert registry.get("ffn", "ffn_run_once").__name__ == "Mine"
    assert registry.discover([file]) == []


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def f(:\n    pass\n", "my_ffn.py:1 has "),
        ("x = 1\n\ny = 1 / 0\n", "my_ffn.py:3 raised ZeroDivisionError: division by zero"),
        ("import no_such_module_anywhere\n", "my_ffn.py:1 raised ModuleNotFoundError"),
        ("raise ValueError('two\\nlines')\n", "my_ffn.py:1 raised ValueError: two lines"),
        ("from hymo import register\nregister('ffn', 'x')(int)\n", "my_ffn.py:2 raised AttributeError"),
    ],
)
def test_a_users_fault_is_one_line_with_file_and_line(tmp_path, code, says):
    file = tmp_path / "my_ffn.py"
    file.write_text(code)
    with pytest.raises(RegistryError) as caught:
        registry.discover([file])
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert not [name for name in sys.modules if name.startswith("hymo_user_blocks.my_ffn") and str(tmp_path) in str(sys.modules[name])]


def test_a_file_that_fails_halfway_leaves_nothing_behind(tmp_path):
    file = tmp_path / "half.py"
    file.write_text(CODE.format(name="half") + "raise RuntimeError('after')\n")
    with pytest.raises(RegistryError, match="RuntimeError: after"):
        registry.discover([file])
    assert "half" not in registry.names("ffn")
    file.write_text(CODE.format(name="half"))
    registry.discover([file])
    assert "half" in registry.names("ffn")


@pytest.mark.parametrize("name", ["missing.py", "folder.py", "text.txt"])
def test_what_is_no_python_file_is_refused(tmp_path, name):
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "text.txt").write_text("x = 1\n")
    with pytest.raises(RegistryError, match="must be a Python file that exists"):
        registry.discover([tmp_path / name])


class Holder(BaseModel):
    ffn: Annotated[BlockConfig, BlockField("ffn")]
    rope: Annotated[BlockConfig, BlockField("position", default="rope")] | None = None


class TestBlockField:
    def test_a_name_a_mapping_and_a_config_are_the_same(self):
        config = registry.get("ffn", "dense_ffn").Config()
        for raw in ("dense_ffn", {"type": "dense_ffn"}, config):
            assert Holder.model_validate({"ffn": raw}).ffn == config

    def test_the_default_names_the_block_of_a_mapping_without_type(self):
        assert Holder.model_validate({"ffn": "none", "rope": {"theta": 5}}).rope.theta == 5

    def test_all_fields_of_the_block_are_dumped(self):
        assert Holder.model_validate({"ffn": {"type": "dense_ffn", "inter_dim": 8}}).model_dump()["ffn"] == {"type": "dense_ffn", "inter_dim": 8}
        assert '"inter_dim":8' in Holder.model_validate({"ffn": {"type": "dense_ffn", "inter_dim": 8}}).model_dump_json()

    @pytest.mark.parametrize("raw", ["mla", "no_such", {"inter_dim": 3}, {"type": "dense_ffn", "x": 1}, {"type": None}, {"type": ["a"]}, 5, None, []])
    def test_anything_else_is_refused(self, raw):
        with pytest.raises(ValidationError):
            Holder.model_validate({"ffn": raw})


class TinyMixer(Block):
    class Config(BlockConfig):
        type: Literal["tiny"] = "tiny"


def test_build_makes_the_block_that_the_config_names():
    registry.register("mixer", "tiny")(TinyMixer)
    config = TinyMixer.Config()
    built = registry.build("mixer", config, layer=None)
    assert isinstance(built, TinyMixer)
    assert built.config is config
