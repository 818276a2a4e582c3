"""Text files, JSONL and Parquet, told apart by their suffix."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from hymo.data.cache import digest, file_digest
from hymo.data.sources.base import TextSource
from hymo.data.sources.listing import list_files
from hymo.errors import DataError, did_you_mean


class Files(TextSource):
    """A document is a text file, a line of a `.jsonl` file, or a row of a `.parquet` file; `field` holds the text of the latter two."""

    def __init__(self, spec: str, field: str) -> None:
        self.name = spec
        self.field = field
        self.files = list_files(spec)

    def documents(self) -> Iterator[bytes]:
        readers = {".jsonl": read_jsonl, ".ndjson": read_jsonl, ".parquet": read_parquet}
        for file in self.files:
            try:
                yield from filter(None, readers.get(file.suffix.lower(), read_text)(file, self.field))
            except OSError as error:
                raise DataError(f"a data file must be readable, but got {str(file)!r}: {error.strerror or error}") from None

    @cached_property
    def fingerprint(self) -> str:
        try:
            return digest("files", self.field, [(file.suffix.lower(), file_digest(file)) for file in self.files])
        except OSError as error:
            raise DataError(f"data.source must be readable, but got {error.filename!r}: {error.strerror}") from None

    @property
    def summary(self) -> dict[str, str | int]:
        return {"files": len(self.files)}


def read_text(file: Path, field: str) -> Iterator[bytes]:
    """One document. It must be UTF-8 text."""
    text = file.read_bytes()
    if (at := text.find(b"\0")) >= 0:
        raise DataError(f"a text file must hold text, but {str(file)!r} is binary (a zero byte at {at}); convert it, or leave it out with a glob")
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"a text file must be UTF-8, but {str(file)!r} is not (byte {error.start}: {error.reason}); convert it with iconv") from None
    yield text


def read_jsonl(file: Path, field: str) -> Iterator[bytes]:
    """One document a line. Blank lines are passed over."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                reason = "nested too deeply" if isinstance(error, RecursionError) else error
                raise DataError(f"{file}:{number}: each line must be a JSON object, but got {line[:40]!r}: {reason}") from None
            yield _text_of(record, field, f"{file}:{number}")


def _text_of(record: Any, field: str, where: str) -> bytes:
    if not isinstance(record, dict):
        raise DataError(f"{where}: each line must be a JSON object, but got a {type(record).__name__}")
    if field not in record:
        raise DataError(f"{where}: the text must be in field {field!r} (data.field), but got fields {sorted(record)}{did_you_mean(field, record)}")
    text = record[field]
    if not isinstance(text, str):
        raise DataError(f"{where}: field {field!r} must be a string, but got {type(text).__name__}")
    return text.encode("utf-8", "surrogatepass")


def read_parquet(file: Path, field: str) -> Iterator[bytes]:
    """One document a row, read a batch at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file)
        schema = table.schema_arrow
        if field not in schema.names:
            hint = did_you_mean(field, schema.names)
            raise DataError(f"{file}: the text must be in column {field!r} (data.field), but got columns {schema.names}{hint}")
        kind = schema.field(field).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise DataError(f"{file}: column {field!r} must hold strings, but got {kind}")
        number = 0
        for batch in table.iter_batches(columns=[field], batch_size=1024):
            for text in batch.column(0).to_pylist():
                number += 1
                if text is None:
                    raise DataError(f"{file}: column {field!r} must hold a string in every row, but row {number} is null")
                yield text.encode()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"a Parquet file must be whole, but {str(file)!r} cannot be read: {str(error).splitlines()[0]}") from None
