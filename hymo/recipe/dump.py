"""A recipe as a plain mapping and as YAML: load(dump(recipe)) == recipe."""

from __future__ import annotations

import io
import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.representer import SafeRepresenter

from hymo.recipe.reading import scalar
from hymo.recipe.tree import Recipe

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*(\*[0-9]+)?")


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Every setting, defaults written out, as JSON-like values. `recipe_from_dict` is the inverse."""
    return recipe.model_dump(mode="json")


def dump(recipe: Recipe) -> str:
    """The recipe as YAML 1.2 with every default written out. Text that could be read as anything else is quoted."""
    out = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = None  # small mappings on one line, large ones in block style
    yaml.width = 150
    yaml.dump(to_dict(recipe), out)
    return out.getvalue()


class _Representer(SafeRepresenter):
    def represent_text(self, text: str) -> Any:
        plain = _PLAIN.fullmatch(text) is not None and isinstance(scalar(text), str)
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')

    def represent_dict(self, data: dict[str, Any]) -> Any:      # in the order of the fields, not sorted
        return self.represent_mapping("tag:yaml.org,2002:map", data.items())


_Representer.add_representer(str, _Representer.represent_text)
_Representer.add_representer(dict, _Representer.represent_dict)
