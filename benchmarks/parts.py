"""Which part of the model a GPU kernel belongs to, from a torch.profiler trace.

A kernel is launched by an operation, and operations are nested: what is compiled runs inside the region of its layer, forward or backward, and the
region is that layer's whose own operation (recurrence, attention, grouped product) it holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

SWIGLU = (2304, 4608)       # hidden widths of v1.0's shared expert and prediction heads
OVERHEAD = {    # CUPTI's kinds, as the profiler names them
    "Driver Compiler", "Buffer Flush", "Instrumentation", "Resource", "Runtime Triggered Module Loading", "Lazy Function Loading",
    "Command Buffer Full", "Activity Buffer Request", "UVM Activity Init",
}
MARKS = {"gated_recurrence": "GDN", "grouped_mm": "MLA + MoE", "flex": "MLA + MoE"}


def table(prof: Any, tokens: int) -> str:
    """Milliseconds by part, scaled to 16,384 tokens, and their share of the step from its first kernel to its last."""
    spent: dict[str, float] = defaultdict(float)
    kernels: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    spans: list[tuple[float, float]] = []
    regions: dict[int, str] = {}
    events = prof.events()
    for event in events:
        if "cuda" in str(event.device_type).lower() and not getattr(event, "is_user_annotation", False):
            spans.append((event.time_range.start, event.time_range.end))
        for kernel in event.kernels if is_operation(event) else []:
            part = part_of(event, kernel.name, regions)
            spent[part] += kernel.duration
            kernels[part][short(kernel.name)] += kernel.duration
    spans.sort()
    begin, end = (spans[0][0], max(stop for _, stop in spans)) if spans else (0.0, 0.0)
    busy = covered(spans)
    spent["idle"] = end - begin - busy
    missed = sum(stop - start for start, stop in spans) - sum(time for part, time in spent.items() if part != "idle")
    spent["(not attributed)" if missed >= 0 else "(attributed twice)"] = missed
    scale, whole = 16384 / tokens / 1e3, max(end - begin, 1e-9)
    lines = [f"{'part':36} {'ms / 16,384 tokens':>18} {'share':>7}   largest kernels"]
    for part, time in sorted(spent.items(), key=lambda item: -item[1]):
        largest = sorted(kernels[part].items(), key=lambda item: -item[1])[:4]
        lines.append(f"{part:36} {time * scale:18.2f} {time / whole:7.1%}   " + ", ".join(f"{name} {t * scale:.2f}" for name, t in largest))
    lines.append(f"{'all ' + format(tokens, ',') + ' tokens':36} {whole * scale:18.2f}")
    return "\n".join(lines)


def is_operation(event: Any) -> bool:
    """Calls of the CUDA runtime and the profiler's own overhead have numbers of their own, which can be those of operations: the kernels listed
    under them are another operation's."""
    return "cpu" in str(event.device_type).lower() and not event.name.startswith("cu") and event.name not in OVERHEAD


def part_of(event: Any, kernel: str, regions: dict[int, str]) -> str:
    """Name of the row."""
    chain = list(ancestors(event))
    names = " ".join(e.name for e in chain)
    if "NorMuon" in names:
        return "optimizer: NorMuon"
    if "AdamW" in names:
        return "optimizer: AdamW"
    if "LinearCrossEntropy" in names:
        return "head + loss, 3 heads: products" if is_product(event, kernel) else "head + loss, 3 heads: rows and the rest"
    compiled = [e for e in chain if "Compiled" in e.name]
    if compiled:
        region = compiled[-1]
        if region.id not in regions:
            inside = " ".join(below(region)).lower()
            regions[region.id] = next((name for mark, name in MARKS.items() if mark in inside), "MTP")
        return f"{regions[region.id]}: {kind(event, kernel, names)}"
    if "AccumulateGrad" in names:
        return "gradients: accumulation"
    if "embedding" in names.lower():
        return "embedding"
    if "foreach" in names:
        return "gradients: norm and clipping"
    return "outside the layers"


def kind(event: Any, kernel: str, names: str) -> str:
    """What a kernel inside a layer does."""
    low = f"{names} {kernel}".lower()
    if "gated_recurrence" in low:
        return "recurrence"
    if "short_conv" in low:
        return "convolution"
    if "flex_attention" in kernel or "flash" in low or "cudnn" in low or "efficient_attention" in low:
        return "attention"
    if "grouped_mm" in low:
        return "grouped products"
    if is_product(event, kernel):
        return "SwiGLU products" if any(width in SWIGLU for shape in event.input_shapes for width in flat(shape)) else "projections"
    if "sort" in low or "search" in low:
        return "routing"
    return "elementwise, reductions, casts"


def is_product(event: Any, kernel: str) -> bool:
    return event.name in ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm") and "splitKreduce" not in kernel


def flat(shape: Any) -> Iterator[int]:
    """The numbers of nested lists of shapes."""
    if isinstance(shape, (list, tuple)):
        for part in shape:
            yield from flat(part)
    elif isinstance(shape, int):
        yield shape


def ancestors(event: Any) -> Iterator[Any]:
    while event is not None:
        yield event
        event = event.cpu_parent


def below(event: Any) -> Iterator[str]:
    yield event.name
    for kernel in event.kernels:
        yield kernel.name
    for child in event.cpu_children:
        yield from below(child)


def covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of intervals sorted by their beginnings."""
    total, until = 0.0, float("-inf")
    for start, stop in spans:
        total += max(0.0, stop - max(start, until))
        until = max(until, stop)
    return total


def short(name: str) -> str:
    """A kernel's name without its template arguments."""
    return name.replace("void ", "").split("<")[0].split("(")[0][-60:]
