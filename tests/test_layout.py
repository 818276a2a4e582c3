"""The house rules that a machine can check: who may import whom, what is paired with a test, what is described, which recipes load."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hymo import registry
from hymo.block import KINDS
from hymo.recipe import fingerprint, load_recipe, recipe_from_dict, scales, shipped_recipes, to_dict

ROOT = Path(__file__).resolve().parents[1]
HYMO = sorted((ROOT / "hymo").rglob("*.py"))
BLOCKS = sorted(path for path in (ROOT / "blocks").glob("*.py") if path.name != "__init__.py")
MAX_LINES = 400

# A part imports parts of lower rank, and of its own. Parts of one rank may know each other.
RANKS = [
    {"errors", "settings", "units", "environment", "files"},
    {"pattern", "ops", "journal"},
    {"block"},
    {"registry"},
    {"recipe"},
    {"data", "init", "testing"},
    {"model"},
    {"activations", "cost"},
    {"train", "evaluate"},
    {"facts", "tracking", "runs", "sizing", "display", "trained", "generate", "export", "figures", "probes"},
    {"study"},
    {"ablate", "search"},
    {"cli"},
    {"__init__", "__main__"},
]
RANK = {part: rank for rank, parts in enumerate(RANKS) for part in parts}

# A heavy or replaceable library has one owner.
OWNERS = {
    "mlflow": {"hymo.tracking"}, "optuna": {"hymo.search"}, "typer": {"hymo.cli"}, "ruamel": {"hymo.recipe"}, "triton": {"hymo.ops"},
    "transformers": {"hymo.export"},
}  # fmt: skip
BLOCKS_MAY_IMPORT = ("hymo", "hymo.ops", "hymo.errors", "hymo.registry", "hymo.recipe.tree")
OPS_MAY_IMPORT = ("torch", "triton", "hymo.ops", "hymo.errors")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """Dotted names that the file imports, wherever in the file; those under `if TYPE_CHECKING` apart."""
    return frozenset(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            known = (ROOT / str(node.module).replace(".", "/")).is_dir()
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if known and is_module(name) else str(node.module) for name in names)
        waiting += ast.iter_child_nodes(node)


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def inside(name: str, packages: tuple[str, ...] | set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", HYMO, ids=ids)
def test_imports_go_downwards(path):
    part = path.relative_to(ROOT / "hymo").parts[0].removesuffix(".py")
    assert part in RANK, f"give hymo/{part} its rank in {Path(__file__).name}"
    for name in imports(path):
        if name.startswith("hymo."):
            other = name.split(".")[1]
            assert RANK[other] <= RANK[part], f"{module_name(path)} must not import {name}"
        assert not inside(name, {"blocks"}), f"{module_name(path)} must know no block by name, but imports {name}"


@pytest.mark.parametrize("library", OWNERS)
def test_a_library_has_one_owner(library):
    users = {module_name(path) for path in HYMO if any(inside(name, {library}) for name in imports(path))}
    assert [user for user in users if not inside(user, OWNERS[library])] == []


@pytest.mark.parametrize("path", [path for path in HYMO if path.is_relative_to(ROOT / "hymo" / "ops")], ids=ids)
def test_operations_know_only_torch(path):
    for name in imports(path):
        assert inside(name, OPS_MAY_IMPORT) or name.split(".")[0] in sys.stdlib_module_names, f"{module_name(path)} must not import {name}"


@pytest.mark.parametrize("path", BLOCKS, ids=ids)
def test_blocks_know_only_the_contract(path):
    for name in imports(path):
        if name.split(".")[0] in ("hymo", "blocks"):
            exact = name in BLOCKS_MAY_IMPORT
            assert exact or inside(name, {"hymo.ops"}), f"{path.name} must import the public names, hymo.ops and the registry, but imports {name}"


def test_importing_hymo_imports_no_torch():
    code = "import sys, hymo, hymo.errors, hymo.pattern; dir(hymo); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_public_names_are_there():
    import hymo

    assert set(dir(hymo)) == {"Block", "BlockConfig", "BlockField", "Context", "LayerInfo", "Recipe", "build_hymo", "load_recipe", "register"}
    assert all(getattr(hymo, name).__name__ for name in hymo.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = hymo.nothing


@pytest.mark.parametrize("path", [*HYMO, *BLOCKS], ids=ids)
def test_no_file_is_long(path):
    assert len(path.read_text().splitlines()) <= MAX_LINES, "split it: one idea per file"


TESTS = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
TESTED = {name for path in TESTS for name in imports(path)}


def has_test(path: Path) -> bool:
    """A test of the same stem in the same place, one of the stem of its folder, or one that imports the file."""
    place = path.relative_to(ROOT / "hymo").parent
    own = [ROOT / "tests" / place / f"test_{path.stem}.py", ROOT / "tests" / f"test_{place.name}_{path.stem}.py"]
    folder = ROOT / "tests" / place.parent / f"test_{place.name}.py"
    return any(test.is_file() for test in [*own, folder]) or module_name(path) in TESTED


@pytest.mark.parametrize("path", [p for p in HYMO if p.stem not in ("__init__", "__main__") and "ops" not in p.parts], ids=ids)
def test_every_module_has_a_test(path):
    assert has_test(path), f"tests/{path.relative_to(ROOT / 'hymo').parent}/test_{path.stem}.py is missing"


@pytest.mark.parametrize("path", [p for p in (ROOT / "hymo" / "ops").iterdir() if p.stem != "__init__" and p.name != "__pycache__"], ids=ids)
def test_every_operation_has_a_test(path):
    stems = {test.stem for test in (ROOT / "tests" / "ops").glob("test_*.py")}
    assert f"test_{path.stem}" in stems or module_name(path) in TESTED


@pytest.mark.parametrize("path", [path for path in BLOCKS if not path.name.startswith("_")], ids=ids)
def test_every_block_has_a_test_and_its_files_name(path):
    tests = {test.stem.removeprefix("test_") for test in (ROOT / "tests" / "blocks").glob("test_*.py")}
    family = {"_".join(path.stem.split("_")[:n]) for n in range(1, path.stem.count("_") + 2)}
    assert tests & family, f"tests/blocks/test_{path.stem}.py is missing"
    registered = [registry.get(kind, name) for kind in KINDS for name in registry.names(kind)]
    here = {block.name for block in registered if block.__module__ == f"blocks.{path.stem}"}
    assert here == {path.stem}, "one registered block per file, of the file's name"


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in registry.names(kind)])
def test_every_setting_of_a_block_is_described(kind, name):
    config = registry.get(kind, name).Config
    assert registry.get(kind, name).__doc__
    for key, field in config.model_fields.items():
        assert key == "type" or (field.description and "\n" not in field.description), f"{name}.{key}"
    assert config.model_config["frozen"]
    assert config.model_config["extra"] == "forbid"


@pytest.mark.parametrize(("name", "scale"), [(name, scale) for name in shipped_recipes() for scale in ("full", *scales(name))])
def test_every_shipped_recipe_loads_at_every_scale(name, scale):
    recipe = load_recipe(name, scale=scale)
    assert recipe_from_dict(to_dict(recipe)) == recipe
    if scale != "full":
        assert recipe.data.source.startswith(("builtin", "synthetic:")), "a scale needs no download"
        assert fingerprint(recipe) != fingerprint(load_recipe(name))


def test_v1_0_is_the_pinned_model():
    recipe = load_recipe("v1_0")
    assert (recipe.model.vocab_size, recipe.model.d_model, recipe.model.pattern, recipe.model.max_seq_len) == (64256, 896, "MGGG*8", 4096)
    assert (recipe.train.tokens, recipe.train.tokens_per_step, recipe.train.seq_len) == (30_000_000_000, 524288, 4096)
    assert (recipe.optimizer.normuon.lr, recipe.optimizer.normuon.scaling, recipe.optimizer.adamw.lr) == (2e-3, "rms_norm", 1e-3)
    assert (recipe.schedule.warmup_frac, recipe.schedule.stable_frac, recipe.schedule.decay_frac) == (0.01, 0.79, 0.2)
    assert scales("v1_0") == ["tiny", "mini", "proxy", "small", "medium"]
