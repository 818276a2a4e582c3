"""Numbers for people: 1.23 M, 1.5 GiB, 4 min 10 s; and back."""

from __future__ import annotations

import re

from hymo.errors import HymoError

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def si(value: float, unit: str = "") -> str:
    """1234567 -> '1.23 M': three digits and the usual letter; with a unit '1.23 Mtokens', and '64.8 tokens' below a thousand."""
    for factor, letter in ((1e18, " E"), (1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{letter}{unit}"
    return f"{value:.3g} {unit}".rstrip()


def in_bytes(value: float) -> str:
    """1536 -> '1.5 KiB'."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(value) >= 1024**power:
            return f"{value / 1024**power:.1f} {unit}"
    return f"{value:.0f} B"


def in_time(seconds: float) -> str:
    """4000 -> '1 h 6 min': the largest unit that fits, and the next one."""
    units = (("y", 31_557_600), ("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    for (name, size), (below, less) in zip(units, [*units[1:], ("", 0)], strict=True):
        if seconds >= size:
            whole, rest = divmod(int(seconds), size)
            part = rest // less if less else 0
            return f"{whole:,} {name}" + (f" {part} {below}" if part else "")
    return f"{seconds:.1f} s"


def parse_time(text: str) -> float:
    """'90s', '5m', '2h', '1d' -> seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if found is None or float(found[1]) == 0:
        raise HymoError(f"a time must be a positive number with s, m, h or d, such as 30m, but got {text!r}")
    return float(found[1]) * SECONDS[found[2]]
