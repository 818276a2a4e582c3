"""Sources of text, by the name that `data.source` gives them."""

from hymo.data.sources.base import TextSource
from hymo.data.sources.builtin import Builtin
from hymo.data.sources.files import Files
from hymo.data.sources.hub import Hub, HubReader

__all__ = ["Builtin", "Files", "Hub", "HubReader", "TextSource", "open_text"]


def open_text(source: str, field: str) -> TextSource:
    """`builtin`, `hf:<dataset id>[:<config>]`, or a file, folder or glob. Raises DataError when there is no such thing."""
    if source == "builtin":
        return Builtin()
    if source.startswith("hf:"):
        return Hub(source, field)
    return Files(source, field)
