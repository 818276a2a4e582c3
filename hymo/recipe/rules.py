"""What must hold between settings, and what every block asks of its neighbours. Each field alone is pydantic's business."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from hymo.block import BlockConfig, LayerInfo
from hymo.errors import RecipeError
from hymo.recipe.explain import Places, blame
from hymo.recipe.merge import Keys
from hymo.recipe.stack import ResolvedLayer, resolve_stack
from hymo.recipe.tree import DEVICE, MAX_DIM, Recipe


def check(recipe: Recipe, places: Places) -> None:
    """Raise RecipeError, with the place, for the first rule that `recipe` breaks."""
    for keys, message in _broken(recipe):
        raise RecipeError(message, blame(places, *keys))
    stack = resolve_stack(recipe.model, places)
    _check_unused(recipe, stack, places)
    _check_blocks(recipe, stack, places)


def _broken(recipe: Recipe) -> Iterator[tuple[Sequence[Keys], str]]:
    """Broken rules, each with the settings that disagree, the one most likely at fault first."""
    train, schedule, model = recipe.train, recipe.schedule, recipe.model
    for symbol in model.layers:
        if not re.fullmatch("[A-Za-z]", symbol):
            yield [("model", "layers", symbol)], f"a symbol of model.layers must be one ASCII letter, but got {symbol!r}"
    if (train.tokens is None) == (train.steps is None):
        yield [("train",)], f"exactly one of train.tokens and train.steps must be given, but got {train.tokens=}, {train.steps=}"
    if train.seq_len > model.max_seq_len:
        keys = [("train", "seq_len"), ("model", "max_seq_len")]
        yield keys, f"train.seq_len must be at most model.max_seq_len={model.max_seq_len}, but got {train.seq_len=}"
    if train.micro_batch != "auto" and train.micro_batch < 1:
        yield [("train", "micro_batch")], f"train.micro_batch must be auto or at least 1, but got {train.micro_batch}"
    if not re.fullmatch(DEVICE, train.device):
        yield [("train", "device")], f"train.device must be auto, cpu, cuda or cuda:N, but got {train.device!r}"
    if recipe.data.options and not recipe.data.source.startswith("synthetic:"):
        keys = [("data", "options"), ("data", "source")]
        yield keys, f"data.options are a synthetic task's and must be empty for data.source={recipe.data.source}, but got {recipe.data.options}"
    if train.tokens_per_step % train.seq_len:
        keys = [("train", "tokens_per_step"), ("train", "seq_len")]
        yield keys, f"train.tokens_per_step must be a multiple of {train.seq_len=}, but got {train.tokens_per_step=}"
    entries = 0 if recipe.data.source.startswith("synthetic:") else _tokenizer_entries(recipe.data.tokenizer)
    if entries > model.vocab_size:
        keys = [("model", "vocab_size"), ("data", "tokenizer")]
        yield keys, f"model.vocab_size must hold the {entries} entries of data.tokenizer={recipe.data.tokenizer}, but got {model.vocab_size}"
    fractions = (schedule.warmup_frac, schedule.stable_frac, schedule.decay_frac)
    if not math.isclose(sum(fractions), 1.0, abs_tol=1e-6):
        total = f"{' + '.join(map(str, fractions))} = {sum(fractions):g}"
        yield [("schedule",)], f"schedule.warmup_frac + stable_frac + decay_frac must be 1, but got {total}"
    if any(not 0 <= beta < 1 for beta in recipe.optimizer.adamw.betas):
        yield [("optimizer", "adamw", "betas")], f"optimizer.adamw.betas must be in [0, 1), but got {recipe.optimizer.adamw.betas}"


def _tokenizer_entries(tokenizer: str) -> int:
    """Entries that the tokenizer's name alone promises: 256 bytes and <|endoftext|>, or N of auto:N. A file is read later."""
    auto = re.fullmatch(r"auto:([0-9]{1,9})", tokenizer)
    return int(auto[1]) if auto else 257 if tokenizer == "bytes" else 0


def _check_unused(recipe: Recipe, stack: list[ResolvedLayer], places: Places) -> None:
    wanted = {layer.info.symbol for layer in stack} | set(recipe.model.pattern) | {v for v in recipe.model.overrides.values() if isinstance(v, str)}
    for symbol in recipe.model.layers:
        if symbol not in wanted:
            message = f"every symbol of model.layers must be used by the pattern {recipe.model.pattern!r}, but got {symbol!r}"
            raise RecipeError(f"{message}; model.layers.{symbol}=null takes it out", blame(places, ("model", "layers", symbol), ("model",)))


def _check_blocks(recipe: Recipe, stack: list[ResolvedLayer], places: Places) -> None:
    model = recipe.model
    for layer in stack:
        for part, config in (("mixer", layer.mixer), ("ffn", layer.ffn)):
            keys: Keys = ("model", "layers", layer.info.symbol, part)
            if layer.overridden and config is not getattr(model.layers[layer.info.symbol], part):
                keys = ("model", "overrides", layer.overridden[-1], part)
            _check_block(config, layer.info, recipe, keys, places)
    beyond = LayerInfo(index=len(stack), symbol="model", ordinal=0, model=model)
    _check_block(model.rope, beyond, recipe, ("model", "rope"), places)
    _check_block(model.mtp, beyond, recipe, ("model", "mtp"), places)


def _check_block(config: BlockConfig, info: LayerInfo, recipe: Recipe, keys: Keys, places: Places) -> None:
    for name, value in config:
        if isinstance(value, int) and abs(value) > MAX_DIM:
            raise RecipeError(f"{'.'.join(keys)}.{name} must be at most {MAX_DIM}, but got {value}", blame(places, (*keys, name)))
    try:
        config.check(info, recipe.model)
    except RecipeError as error:
        raise type(error)(f"{'.'.join(keys)}: {error}", blame(places, keys, ("model",))) from None
