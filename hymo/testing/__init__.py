"""Conformance suites that ship with the library: what every block and every op must satisfy, written once.

A test file names a suite and gives it configs; each property is then a test of its own for each config:

    class TestMyMixer(MixerContract):
        configs = {"default": {"type": "my_mixer", "n_heads": 2}, "no_rope": {"type": "my_mixer", "n_heads": 2, "rope": "none"}}

One suite per kind, because a position encoding and a prediction head do not map x to x: MixerContract, FfnContract, PositionContract,
HeadContract; and OpContract for the functions of `hymo.ops`. Needs pytest (the extra `hymo[test]`).
"""

import pytest

pytest.register_assert_rewrite("hymo.testing.common", "hymo.testing.blocks", "hymo.testing.heads", "hymo.testing.mixers", "hymo.testing.ops")

from hymo.testing.blocks import FfnContract, PositionContract  # noqa: E402
from hymo.testing.common import BlockContract, make_layer  # noqa: E402
from hymo.testing.heads import HeadContract  # noqa: E402
from hymo.testing.mixers import MixerContract  # noqa: E402
from hymo.testing.ops import OpContract  # noqa: E402

__all__ = ["BlockContract", "FfnContract", "HeadContract", "MixerContract", "OpContract", "PositionContract", "make_layer"]
