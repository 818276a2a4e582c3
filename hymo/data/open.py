"""From a recipe to data: which source, which tokenizer, which rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hymo.data.cache import build_once, digest
from hymo.data.dataset import Data, FirstRows, check_epochs
from hymo.data.loader import Loader, RowLoader
from hymo.data.packing import PackedRows
from hymo.data.prepare import open_source, open_tokenizer, write_shards
from hymo.data.shards import ShardFolder
from hymo.data.tokenizer import Tokenizer
from hymo.errors import DataError

if TYPE_CHECKING:
    from hymo.recipe.tree import Recipe


def open_data(recipe: Recipe, rank: int = 0, world: int = 1) -> Data:
    """The data of a recipe, seen by one process of `world`.

    Text is tokenised once and kept in the cache folder; what every process then reads is mapped memory. Raises DataError for anything that
    cannot be read, and for a tokenizer larger than the model's vocabulary. `Data.train()` raises it for a budget beyond data.max_epochs.
    """
    source = open_source(recipe.data.source, recipe.data.field)
    tokenizer = open_tokenizer(recipe.data)
    check_vocabulary(tokenizer, recipe)
    key = digest("shards", source.fingerprint, recipe.data.validation_frac, tokenizer.fingerprint)
    folder = build_once("tokens", key, lambda temporary: write_shards(temporary, recipe.data, source, tokenizer))
    summary: dict[str, str | int] = {"source": recipe.data.source, **source.summary}
    return packed_data(recipe, ShardFolder(folder, verify=False), tokenizer, summary, rank, world)


def check_vocabulary(tokenizer: Tokenizer, recipe: Recipe) -> None:
    """Every token needs a row of the embedding."""
    if tokenizer.vocab_size > recipe.model.vocab_size:
        raise DataError(
            f"model.vocab_size must be at least the tokenizer's {tokenizer.vocab_size}, but got {recipe.model.vocab_size} (tokenizer {tokenizer.name!r}); "
            f"set model.vocab_size={tokenizer.vocab_size}, or take a smaller tokenizer"
        )


def packed_data(recipe: Recipe, shards: ShardFolder, tokenizer: Tokenizer, summary: dict[str, str | int], rank: int, world: int) -> Data:
    """Data over a folder of shards."""
    seq_len, seed = recipe.train.seq_len, recipe.run.seed
    if not shards.train.tokens or not shards.validation.tokens:
        empty = "training" if not shards.train.tokens else "validation"
        raise DataError(f"both sides of the split must hold text, but the {empty} side of {recipe.data.source!r} is empty; give more text, or name data.validation")
    fingerprint = shards.meta.fingerprint
    train_tokens = shards.train.tokens
    rows = PackedRows(shards.train, seq_len, tokenizer.eot_id, seed if recipe.data.shuffle else None)
    held_out = PackedRows(shards.validation, seq_len, tokenizer.eot_id, None)
    identity = {"data": fingerprint, "seed": seed, "seq_len": seq_len, "shuffle": recipe.data.shuffle}

    def loader() -> Loader:
        check_epochs(recipe.train.tokens or (recipe.train.steps or 0) * recipe.train.tokens_per_step, train_tokens, recipe.data.max_epochs)
        return RowLoader(rows, identity, rank, world)

    return Data(
        tokenizer=tokenizer,
        fingerprint=fingerprint,
        summary={
            **summary,
            "fingerprint": fingerprint,
            "tokenizer": tokenizer.name,
            "tokenizer_fingerprint": tokenizer.fingerprint,
            "train_tokens": train_tokens,
            "train_documents": shards.train.documents,
            "validation_tokens": shards.validation.tokens,
            "validation_documents": shards.validation.documents,
            "text_bytes": shards.meta.text_bytes,
            "folder": str(shards.folder),
        },
        train_tokens=train_tokens,
        make_loader=loader,
        held_out=FirstRows(held_out, min(held_out.count, max(1, recipe.eval.tokens // seq_len))),
        rank=rank,
        world=world,
    )
