"""Regional compilation: one graph for every kind of layer, however many layers there are, and one for the prediction heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hymo.model import HyMo

GRAPHS = 8      # that a kind of layer may take: trained or evaluated, at some batch sizes


def compile_layers(model: HyMo, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile each layer and the prediction heads, in place, for the shapes that they meet.

    To the compiler two layers of one kind are the same function of other weights, for their parts make nothing for each other (`Block.prepare`) and
    know no name of their own: start-up costs a graph per kind, and no later step compiles. What lies between (embedding, final norm, loss) is few
    large kernels already.
    """
    kinds = {(layer.mixer.key, layer.ffn.key if layer.ffn else None) for layer in map(model.layer, range(len(model.layers)))}
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, GRAPHS * len(kinds))
    for module in (*model.layers, model.mtp):
        module.compile(backend=backend, dynamic=False)
