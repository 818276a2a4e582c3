"""From a recipe to data: which source, which tokenizer, which rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hymo.data.cache import build_once, digest
from hymo.data.dataset import Data, FirstRows, check_epochs
from hymo.data.loader import Loader, RowLoader
from hymo.data.packing import PackedRows
from hymo.data.prepare import is_shards, open_sides, open_tokenizer, write_shards
from hymo.data.shards import FORMAT, Progress, ShardFolder, TokenStore
from hymo.data.stream import Chunks, StreamLoader
from hymo.data.synthetic import Numbers, SyntheticRows, open_task
from hymo.data.tokenizer import BytesTokenizer, Tokenizer, read_tokenizer
from hymo.errors import DataError

if TYPE_CHECKING:
    from hymo.recipe.tree import Recipe

Summary = dict[str, str | int]


def open_data(recipe: Recipe, rank: int = 0, world: int = 1, progress: Progress | None = None) -> Data:
    """The data of a recipe, as one process of `world` sees it.

    Text is tokenised once and kept in the cache folder (`progress` is told documents and tokens so far); every process then reads mapped memory.
    Raises DataError for whatever cannot be read, and for a tokenizer larger than the model's vocabulary; `Data.train()` raises it for a budget
    beyond data.max_epochs.
    """
    opener = _Opener(recipe, rank, world, progress)
    if recipe.data.source.startswith("synthetic:"):
        return opener.synthetic()
    if is_shards(recipe.data.source):
        return opener.shards()
    return opener.text()


class _Opener:
    """One method for each way in."""

    def __init__(self, recipe: Recipe, rank: int, world: int, progress: Progress | None) -> None:
        self.recipe = recipe
        self.data = recipe.data
        self.seed = recipe.run.seed
        self.seq_len = recipe.train.seq_len
        self.rank, self.world = rank, world
        self.progress = progress

    def text(self) -> Data:
        """Tokens through the cache; of a stream, only the held-out ones."""
        sides = open_sides(self.data)
        tokenizer = open_tokenizer(self.data, sides)
        self.check_vocabulary(tokenizer)
        endless = sides.train_source.endless
        held_out = max(self.recipe.eval.tokens, self.seq_len) if endless else None

        def build(folder: Path) -> None:
            write_shards(folder, sides, tokenizer, train_tokens=0 if endless else None, validation_tokens=held_out, progress=self.progress)

        key = digest(FORMAT, sides.fingerprint, tokenizer.fingerprint, held_out)
        folder = ShardFolder(build_once("tokens", key, build))
        summary: Summary = {"source": self.data.source, **sides.train_source.summary}
        if not endless:
            fingerprint = folder.meta.fingerprint
            return self.packed(tokenizer, fingerprint, summary, folder.train, folder.validation)
        fingerprint = digest("stream", sides.fingerprint, tokenizer.fingerprint, folder.meta.fingerprint)

        def loader() -> Loader:
            chunks = Chunks(sides, tokenizer, self.seed if self.data.shuffle else None, self.data.shuffle_buffer, self.data.max_epochs)
            identity = {**self.identity(fingerprint), "shuffle_buffer": self.data.shuffle_buffer}
            return StreamLoader(chunks, self.seq_len, identity, self.rank, self.world)

        return self.assemble(tokenizer, fingerprint, summary, None, loader, folder.validation)

    def shards(self) -> Data:
        """Tokens as they were prepared."""
        folder = ShardFolder(Path(self.data.source).expanduser())
        held_out = folder
        if self.data.validation is not None:
            if not is_shards(self.data.validation):
                raise DataError(f"data.validation must be a folder of token shards like data.source, but got {self.data.validation!r}; prepare it")
            held_out = ShardFolder(Path(self.data.validation).expanduser())
        auto = self.data.tokenizer.startswith("auto:")
        tokenizer = BytesTokenizer() if auto or self.data.tokenizer == "bytes" else read_tokenizer(self.data.tokenizer)
        for opened in (folder, held_out):
            if auto or opened.meta.tokenizer_fingerprint != tokenizer.fingerprint:
                made_with = "bytes" if opened.meta.tokenizer == "bytes" else opened.folder / "tokenizer.json"
                raise DataError(
                    f"data.tokenizer must be the one that {str(opened.folder)!r} was prepared with, but got {self.data.tokenizer!r}; "
                    f"set data.tokenizer={made_with}"
                )
        self.check_vocabulary(tokenizer)
        fingerprint = folder.meta.fingerprint if held_out is folder else digest("separate", folder.meta.fingerprint, held_out.meta.fingerprint)
        validation = held_out.validation if held_out is folder else held_out.train
        return self.packed(tokenizer, fingerprint, {"source": self.data.source}, folder.train, validation)

    def synthetic(self) -> Data:
        """Rows of a task."""
        name = self.data.source.removeprefix("synthetic:")
        task = open_task(name, self.data.options)
        tokenizer = Numbers(task.vocab_size)
        self.check_vocabulary(tokenizer)
        fingerprint = digest("synthetic", name, task.model_dump())
        rows = SyntheticRows(task, self.seq_len, "train", self.seed)
        rows.check()
        train_tokens = task.examples * self.seq_len if task.examples else None
        held_out = SyntheticRows(task, self.seq_len, "validation", 0)
        return Data(
            tokenizer=tokenizer,
            fingerprint=fingerprint,
            summary=self.summary({"source": self.data.source}, tokenizer, fingerprint),
            train_tokens=train_tokens,
            make_loader=lambda: self.within_epochs(train_tokens, RowLoader(rows, self.identity(fingerprint), self.rank, self.world)),
            held_out=FirstRows(held_out, max(1, self.recipe.eval.tokens // self.seq_len)),
            rank=self.rank,
            world=self.world,
        )

    # -- parts --------------------------------------------------------------------------------------------------------------------
    def packed(self, tokenizer: Tokenizer, fingerprint: str, summary: Summary, train: TokenStore, validation: TokenStore) -> Data:
        """Data over stored documents."""
        if not train.tokens:
            raise DataError(f"there must be text to train on, but the training side of {self.data.source!r} is empty; give more text")
        rows = PackedRows(train, self.seq_len, tokenizer.eot_id, self.seed if self.data.shuffle else None)
        summary = {**summary, "train_tokens": train.tokens, "train_documents": train.documents}

        def loader() -> Loader:
            return self.within_epochs(train.tokens, RowLoader(rows, self.identity(fingerprint), self.rank, self.world))

        return self.assemble(tokenizer, fingerprint, summary, train.tokens, loader, validation)

    def assemble(
        self, tokenizer: Tokenizer, fingerprint: str, summary: Summary, train_tokens: int | None, loader: Callable[[], Loader], validation: TokenStore
    ) -> Data:
        if not validation.tokens:
            raise DataError(f"there must be held-out text, but the validation side of {self.data.source!r} is empty; give more, or data.validation")
        # one order for every seed: the first documents are a fair sample, and evaluating at 2T reads the tokens that T reads
        held_out = PackedRows(validation, self.seq_len, tokenizer.eot_id, seed=0, shuffle_rows=False)
        summary = {**summary, "validation_tokens": validation.tokens, "validation_documents": validation.documents}
        return Data(
            tokenizer=tokenizer,
            fingerprint=fingerprint,
            summary=self.summary(summary, tokenizer, fingerprint),
            train_tokens=train_tokens,
            make_loader=loader,
            held_out=FirstRows(held_out, min(held_out.count, max(1, self.recipe.eval.tokens // self.seq_len))),
            rank=self.rank,
            world=self.world,
        )

    def identity(self, fingerprint: str) -> dict[str, str | int]:
        """What a loader's position means something for."""
        return {"data fingerprint": fingerprint, "run.seed": self.seed, "train.seq_len": self.seq_len, "data.shuffle": self.data.shuffle}

    def summary(self, own: Summary, tokenizer: Tokenizer, fingerprint: str) -> Summary:
        names: Summary = {"fingerprint": fingerprint, "tokenizer": tokenizer.name, "tokenizer_fingerprint": tokenizer.fingerprint}
        return {**own, **names, "tokenizer_vocab": tokenizer.vocab_size}

    def within_epochs(self, train_tokens: int | None, loader: Loader) -> Loader:
        if train_tokens is not None:
            train = self.recipe.train
            check_epochs(train.tokens or (train.steps or 0) * train.tokens_per_step, train_tokens, self.data.max_epochs)
        return loader

    def check_vocabulary(self, tokenizer: Tokenizer) -> None:
        """Every token needs a row of the embedding."""
        if tokenizer.vocab_size > (rows := self.recipe.model.vocab_size):
            raise DataError(
                f"model.vocab_size must be at least the {tokenizer.vocab_size} of tokenizer {tokenizer.name!r}, but got {rows}; "
                f"set model.vocab_size={tokenizer.vocab_size}, or take a smaller tokenizer"
            )
