"""A run as a folder that transformers loads, with hymo installed or not; and back.

    config.json             what transformers asks for, and the model section of the recipe
    model.safetensors       weights, fp32
    tokenizer.json          with tokenizer_config.json
    generation_config.json
    recipe.yaml             the resolved recipe, for `hymo import`
    modeling_hymo.py        and the sources that it needs, flat: hymo_model.py, hymo_ops_norm.py, blocks_gdn.py, …

Needed to load it: torch, transformers and pydantic. Exporting a run again, or what was imported from its export, gives the same bytes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from hymo.block import Kind
from hymo.data.cache import write_folder
from hymo.data.synthetic import Numbers
from hymo.errors import HymoError
from hymo.export.sources import bundle, flat
from hymo.export.tokenizer import tokenizer_files
from hymo.model import HyMo
from hymo.recipe import Recipe, dump
from hymo.recipe.tree import ModelConfig
from hymo.registry import asked, get
from hymo.trained import Trained

MODEL, CONFIG, RECIPE, PREFIX = "model.safetensors", "config.json", "recipe.yaml", "model."
MODELLING, REGISTERED = "hymo.export.modeling_hymo", "hymo.export.registered"


def export_run(trained: Trained, target: Path) -> None:
    """Write `trained` to the folder `target`, which appears whole or not at all. Raises HymoError when it exists."""
    if target.exists():
        raise HymoError(f"the folder of an export must be new, but {str(target)!r} exists; name another, or remove it")
    texts = {
        CONFIG: _json(config(trained)),
        "generation_config.json": _json({"eos_token_id": end_id(trained), "pad_token_id": end_id(trained)}),
        RECIPE: dump(trained.recipe),
        **tokenizer_files(trained.tokenizer, trained.recipe.model.max_seq_len),
        **sources(trained.recipe),
    }

    def build(folder: Path) -> None:
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        save_file(weights(trained.model), folder / MODEL, {"format": "pt"})
        (folder / MODEL).chmod(0o644)       # safetensors would keep it to its writer

    write_folder(target, build)


def weights(model: HyMo) -> dict[str, Tensor]:
    """Parameters and persistent buffers under the names that they have inside HymoForCausalLM."""
    return {f"{PREFIX}{name}": tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}


def config(trained: Trained) -> dict[str, Any]:
    """What config.json says."""
    model = trained.recipe.model
    return {
        "architectures": ["HymoForCausalLM"],
        "auto_map": {"AutoConfig": "modeling_hymo.HymoConfig", "AutoModelForCausalLM": "modeling_hymo.HymoForCausalLM"},
        "model_type": "hymo",
        "dtype": "float32",
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "num_hidden_layers": len(trained.model.layers),
        "max_position_embeddings": model.max_seq_len,
        "tie_word_embeddings": False,       # HyMo ties its own
        "eos_token_id": end_id(trained),
        "pad_token_id": end_id(trained),
        "step": trained.step,
        "hymo": model.model_dump(mode="json"),
    }


def end_id(trained: Trained) -> int | None:
    """The token that ends a text; None for a task's numbers."""
    return None if isinstance(trained.tokenizer, Numbers) else trained.tokenizer.eot_id


def sources(recipe: Recipe) -> dict[str, str]:
    """The modelling file and everything that it needs to build this recipe's model."""
    with asked() as needed, torch.device("meta"):
        HyMo(ModelConfig.model_validate(recipe.model.model_dump(mode="json")))
    modules, files = block_modules(needed)
    found = bundle([MODELLING, *modules], files)
    imports = [f"from .{flat(module)} import __name__ as _{number}" for number, module in enumerate(modules)]
    title = '"""The blocks of this model: imported, they are registered. Nothing else is looked for."""'
    found[f"{flat(REGISTERED)}.py"] = "\n".join([title, "", *imports, "from .hymo_registry import seal", "", "seal()", ""])
    return found


def block_modules(needed: set[tuple[Kind, str]]) -> tuple[list[str], dict[str, Path]]:
    """Modules of these blocks, and where those lie that a recipe brought along. Raises HymoError for a block of another package."""
    modules, files = [], {}
    for kind, name in sorted(needed):
        module = get(kind, name).__module__
        if module.startswith("hymo_user_blocks."):
            file = Path(str(sys.modules[module].__file__))
            module = f"blocks.{file.stem}"
            files[module] = file
        elif not module.startswith("blocks."):
            raise HymoError(f"a block to export must be hymo's or a file listed in `blocks`, but got {kind} {name!r} of {module}; list its file")
        modules.append(module)
    return list(dict.fromkeys(modules)), files


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
