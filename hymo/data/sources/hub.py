"""A dataset of the Hugging Face hub, streamed: never read as a whole before training starts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from hymo.data.cache import digest
from hymo.data.order import permutation
from hymo.data.sources.base import TextSource
from hymo.errors import DataError, did_you_mean


class Hub(TextSource):
    """`hf:<dataset id or folder>[:<config>]`, its `train` split.

    The dataset's files are read one after the other, in an order drawn from (seed, epoch). A place in the stream is
    {epoch, file (its turn in that order), inside (the `datasets` library's own state within the file)}.
    """

    endless = True

    def __init__(self, spec: str, field: str) -> None:
        self.name = spec
        self.field = field
        self.path, _, config = spec.removeprefix("hf:").partition(":")
        self.config = config or None
        if not self.path:
            raise DataError(f"data.source must name a dataset after hf:, but got {spec!r}, e.g. hf:HuggingFaceFW/fineweb-edu:sample-10BT")

    @cached_property
    def _builder(self) -> Any:
        from datasets import load_dataset_builder

        return self._asked(lambda: load_dataset_builder(self.path, self.config))

    @cached_property
    def _dataset(self) -> Any:
        builder = self._builder
        dataset = self._asked(lambda: builder.as_streaming_dataset(split="train"))
        names = dataset.column_names or self._asked(lambda: list(next(iter(dataset), {})))
        if self.field not in names:
            hint = did_you_mean(self.field, names)
            raise DataError(f"{self.name}: the text must be in field {self.field!r} (data.field), but got fields {sorted(names)}{hint}")
        return dataset

    def _asked(self, ask: Any) -> Any:
        """The library's answer, or its many kinds of refusal as one line."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ask()
        except Exception as error:      # nothing but the library runs in `ask`: connection, missing dataset, unknown config, damaged file, …
            # the first line says it; `--debug` shows the rest
            reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"
            raise DataError(f"{self.name!r} must be a dataset that `datasets` can stream, but got {reason}") from error

    @property
    def fingerprint(self) -> str:
        files = self._builder.config.data_files
        content = [list(map(str, files["train"])), files["train"].origin_metadata] if files and "train" in files else self._builder.hash
        return digest("hub", self.path, self.config, self.field, content)

    @property
    def summary(self) -> dict[str, str | int]:
        return {"files": self._dataset.num_shards}

    def documents(self) -> Iterator[bytes]:
        reader = self.reader(None, {"epoch": 0})
        while batch := reader.read(256):
            yield from filter(None, batch)

    def reader(self, seed: int | None, place: dict[str, Any]) -> HubReader:
        """Documents from `place` to the end of its epoch. `seed=None` keeps the dataset's order of files."""
        return HubReader(self, seed, place)


class HubReader:
    """One pass over the files of a Hub dataset, from any place on."""

    def __init__(self, hub: Hub, seed: int | None, place: dict[str, Any]) -> None:
        self._hub = hub
        self._epoch = int(place["epoch"])
        self._turn = int(place.get("file", 0))
        files = hub._dataset.num_shards
        self._order = range(files) if seed is None else permutation(files, seed, self._epoch, "files").tolist()
        self._open(place.get("inside"))

    def _open(self, inside: Any) -> None:
        if self._turn >= len(self._order):
            self._records: Iterator[Any] = iter(())
            return
        self._file = self._hub._dataset.shard(num_shards=len(self._order), index=self._order[self._turn])
        if inside is not None:
            self._file.load_state_dict(inside)
        self._records = iter(self._file)

    @property
    def place(self) -> dict[str, Any]:
        """Where the next document is."""
        inside = self._file.state_dict() if self._turn < len(self._order) else None
        return {"epoch": self._epoch, "file": self._turn, "inside": inside}

    def read(self, count: int) -> list[bytes]:
        """The next `count` documents; fewer at the end of the epoch."""
        documents: list[bytes] = []
        while len(documents) < count and self._turn < len(self._order):
            record = self._hub._asked(lambda: next(self._records, None))
            if record is None:
                self._turn += 1
                self._open(None)
            elif isinstance(text := record[self._hub.field], str):
                documents.append(text.encode("utf-8", "surrogatepass"))
            else:
                raise DataError(f"{self._hub.name}: field {self._hub.field!r} must be a string, but got {type(text).__name__}")
        return documents
