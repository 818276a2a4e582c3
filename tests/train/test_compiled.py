"""How many graphs a model takes, that no later step adds one, and that they compute what the layers compute."""

import pytest
import torch
from torch._dynamo.utils import counters

from hymo.data.batch import Batch
from hymo.model import build_hymo
from hymo.recipe import load_recipe
from hymo.train.compiled import compile_layers

# The compiler's own tracing sets off warnings that are not ours to mend; as errors they would end it.
pytestmark = pytest.mark.filterwarnings("default")
LENGTH = 8      # few tokens, one after another: the smallest graphs


def build(impl):
    return build_hymo(load_recipe("v1_0", ["model.pattern=MGGG*2", f"model.layers.G.mixer.impl={impl}"], scale="tiny"))


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(257, (2, LENGTH + 1), generator=generator)
    return Batch(tokens, (torch.rand(2, LENGTH + 1, generator=generator) < 0.2).cumsum(1).int())


def step(model, seed):
    losses = model.loss(batch(seed))
    (losses.main_sum + sum(losses.mtp_sums)).backward()
    return losses


def test_one_graph_for_each_kind_of_layer_and_no_more_after_warm_up():
    torch._dynamo.reset()
    counters.clear()
    model, plain = build("reference"), build("reference")
    compile_layers(model, backend="aot_eager")
    for seed in range(3):
        losses, expected = step(model, seed), step(plain, seed)
        torch.testing.assert_close(losses.main_sum, expected.main_sum)
        assert losses.metrics.keys() == expected.metrics.keys()
        assert counters["stats"]["unique_graphs"] == 3      # latent attention with experts, gated recurrence, prediction heads: 9 modules
    assert not counters["graph_break"]
    gradients = {name: p.grad for name, p in plain.named_parameters()}
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, gradients[name], atol=1e-3, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}")

    model.eval()
    for seed in range(2):
        with torch.no_grad():
            model.loss(batch(seed), mtp=False)
        assert counters["stats"]["unique_graphs"] == 5      # evaluation, without capacity and gradients: once for each kind of layer
    model.train()
    step(model, 9)
    assert counters["stats"]["unique_graphs"] == 5
    torch._dynamo.reset()


def traced_only(graph, inputs):
    """A backend that computes nothing: zeros in the shapes that the graph would give."""
    [output] = [node for node in graph.graph.nodes if node.op == "output"]
    examples = [node.meta["example_value"] for node in output.args[0]]
    return lambda *_: [torch.zeros(tuple(x.shape), dtype=x.dtype, requires_grad=x.requires_grad) for x in examples]


def test_kernels_are_part_of_their_layers_graph(monkeypatch):
    """What a GPU traces; in Triton's interpreter, which is never run here."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for operation in ("short_conv", "swiglu"):
        monkeypatch.setattr(f"hymo.ops.{operation}.resolve_impl", lambda impl, device: "triton")
    torch._dynamo.reset()
    counters.clear()
    model = build("triton")
    compile_layers(model, backend=traced_only)
    model.loss(batch(0))
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 3
    torch._dynamo.reset()
