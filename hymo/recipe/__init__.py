"""Recipes: YAML in, one frozen tree of settings out.

reading (YAML and places) -> merge (extends, scales, overrides) -> tree (fields) -> stack and rules (what must hold between them).
"""

from hymo.recipe.dump import dump, to_dict
from hymo.recipe.fingerprint import fingerprint
from hymo.recipe.load import load_recipe, recipe_from_dict, replaced, scales, with_overrides
from hymo.recipe.schema import json_schema
from hymo.recipe.shipped import names as shipped_recipes
from hymo.recipe.stack import ResolvedLayer, resolve_stack
from hymo.recipe.tree import Recipe

__all__ = [
    "Recipe",
    "ResolvedLayer",
    "dump",
    "fingerprint",
    "json_schema",
    "load_recipe",
    "recipe_from_dict",
    "replaced",
    "resolve_stack",
    "scales",
    "shipped_recipes",
    "to_dict",
    "with_overrides",
]
