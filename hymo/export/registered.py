"""The blocks that a model may be made of. In an exported folder this file names that model's own; here, all that can be found."""

from hymo.registry import discover

discover()
