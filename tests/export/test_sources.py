import ast

import pytest

from hymo.errors import HymoError
from hymo.export.sources import bundle, flat, imports_of, rewritten


def relative(text):
    return rewritten(text, imports_of(text, "here"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from hymo.ops.norm import rms_norm", "from .hymo_ops_norm import rms_norm"),
        ("from hymo.ops.norm import rms_norm as n, gated_rms_norm", "from .hymo_ops_norm import rms_norm as n, gated_rms_norm"),
        ("from hymo import Block, register", "from .hymo_block import Block\nfrom .hymo_registry import register"),
        ("from hymo.ops import rotary", "from . import hymo_ops_rotary as rotary\nfrom .hymo_ops_rotary import __name__ as _"),
        ("from hymo.ops.norm import (\n    rms_norm,\n    gated_rms_norm,\n)\nx = 1", "from .hymo_ops_norm import rms_norm, gated_rms_norm\nx = 1"),
        ("def f():\n    from hymo.ops.norm import rms_norm\n    pass", "def f():\n    from .hymo_ops_norm import rms_norm\n    pass"),
        ("import torch\nfrom hymoscope import x", "import torch\nfrom hymoscope import x"),
        ("if TYPE_CHECKING:\n    from hymo.data import Batch", "if TYPE_CHECKING:\n    from hymo.data import Batch"),
    ],
)
def test_imports_become_relative_and_nothing_else_changes(before, after):
    assert relative(before) == after + "\n"


def test_a_statement_without_a_relative_form_is_refused():
    with pytest.raises(HymoError, match=r"here must import as .*, but got 'import hymo\.model' at line 2"):
        relative("x = 1\nimport hymo.model\n")


def test_a_bundle_holds_everything_that_its_modules_import():
    found = bundle(["blocks.gdn"])
    assert {"blocks_gdn.py", "hymo_block.py", "hymo_ops_gated_recurrence.py", "hymo_ops_gated_recurrence_triton.py"} <= set(found)
    for text in found.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
                assert f"{node.module}.py" in found


def test_operators_get_names_of_their_own():
    found = bundle(["hymo.ops.grouped_linear"])["hymo_ops_grouped_linear_opaque.py"]
    assert 'custom_op("hymo_' in found
    assert '"hymo::' not in found


def test_flat_names():
    assert flat("hymo.ops.norm") == "hymo_ops_norm"
    assert flat("hymo.export.modeling_hymo") == "modeling_hymo"
