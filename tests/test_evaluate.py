import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from hymo.data import Batch
from hymo.evaluate import evaluate
from hymo.model import HyMo, build_hymo
from hymo.recipe import Recipe, load_recipe

BYTES = torch.tensor([1, 2, 3, 0, 1] + [1] * 252)       # token 3 stands for no bytes


class Words:
    """A tokenizer whose tokens stand for different numbers of bytes."""

    bytes_per_token = BYTES


@dataclass
class Held:
    """Data of these batches."""

    batches: list[Batch]
    tokenizer: Words

    def validation(self, rows: int) -> Iterator[Batch]:
        return iter(self.batches)


@pytest.fixture
def recipe() -> Recipe:
    return load_recipe("v1_0", [
        "model.pattern=MG", "model.d_model=16", "model.layers.M.ffn.inter_dim=16", "model.layers.G.mixer.d_inner=16",
        "model.layers.M.ffn.capacity_factor=0.01", "model.mtp.inter_dim=16", "train.seq_len=9", "train.tokens_per_step=18", "train.device=cpu",
    ], scale="tiny")


@pytest.fixture
def batches() -> list[Batch]:
    tokens = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 3, 2, 2], [4, 3, 1, 1, 0, 2, 2, 2, 2, 2], [1, 2, 3, 4, 0, 1, 2, 3, 4, 0]])
    documents = torch.tensor([[0] * 8 + [1] * 2, [0, 0, 1, 1, 1, 1, 1, -1, -1, -1], [0] * 10], dtype=torch.int32)
    return [Batch(tokens[:2], documents[:2]), Batch(tokens[2:], documents[2:])]


@torch.no_grad()
def by_hand(model: HyMo, batches: list[Batch]) -> tuple[float, float, dict[int, float]]:
    """Loss, bits per byte and loss by context, one token after another from the model's logits."""
    nats: list[float] = []
    byte_nats = size = 0.0
    buckets: dict[int, list[float]] = {}
    for batch in batches:
        logits: Tensor = model(batch.inputs, batch.input_documents).double()
        for row in range(len(batch)):
            context = 0
            for t in range(batch.tokens.shape[1] - 1):
                here, ahead = int(batch.documents[row, t]), int(batch.documents[row, t + 1])
                context = context + 1 if t and here == int(batch.documents[row, t - 1]) else 1
                if ahead != here or ahead == -1:
                    continue
                label = int(batch.tokens[row, t + 1])
                loss = -float(torch.log_softmax(logits[row, t], dim=-1)[label])
                nats.append(loss)
                buckets.setdefault(2 ** int(math.log2(context)), []).append(loss)
                if BYTES[label]:
                    byte_nats, size = byte_nats + loss, size + int(BYTES[label])
    return sum(nats) / len(nats), byte_nats / math.log(2) / size, {k: sum(v) / len(v) for k, v in buckets.items()}


def test_every_figure_by_hand(recipe: Recipe, batches: list[Batch]) -> None:
    model = build_hymo(recipe).eval()
    loss, bpb, buckets = by_hand(model, batches)
    model.train()
    found = evaluate(model, Held(batches, Words()), recipe)  # type: ignore[arg-type]
    assert found.tokens == (7 + 1) + (1 + 4) + 9
    assert found.loss == pytest.approx(loss, rel=1e-5)
    assert found.bpb == pytest.approx(bpb, rel=1e-5)
    assert found.loss_by_position == pytest.approx(buckets, rel=1e-5)
    assert sorted(found.loss_by_position) == [1, 2, 4, 8]
    assert model.training, "the mode is given back"


def test_capacity_does_not_hold_in_evaluation_and_no_statistic_moves(recipe: Recipe, batches: list[Batch]) -> None:
    """At a capacity factor of 0.01 training drops nearly every assignment; the figures above come from a model that dropped none."""
    model = build_hymo(recipe)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    evaluate(model, Held(batches, Words()), recipe)  # type: ignore[arg-type]
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_a_task_without_bytes_has_no_bits_per_byte(recipe: Recipe, batches: list[Batch]) -> None:
    held = Held(batches, Words())
    held.tokenizer.bytes_per_token = torch.zeros(257, dtype=torch.int64)  # type: ignore[misc]
    found = evaluate(build_hymo(recipe), held, recipe)  # type: ignore[arg-type]
    assert found.bpb is None
    assert math.isfinite(found.loss)


def test_more_rows_at_once_change_nothing(recipe: Recipe, batches: list[Batch]) -> None:
    model = build_hymo(recipe)
    whole = evaluate(model, Held(batches, Words()), recipe)  # type: ignore[arg-type]
    single = evaluate(model, Held([b.rows(i, i + 1) for b in batches for i in range(len(b))], Words()), recipe)  # type: ignore[arg-type]
    assert single.loss == pytest.approx(whole.loss, rel=1e-6)
    assert single.tokens == whole.tokens


def test_what_blocks_measure_is_the_mean_over_tokens(recipe: Recipe, batches: list[Batch]) -> None:
    """Padding apart. By hand: the experts that the router prefers, and g·|A| of every head."""
    model = build_hymo(recipe).eval()
    router, mixer, norm = model.layers[0].ffn, model.layers[1].mixer, model.layers[1].mixer_norm
    assert isinstance(router, torch.nn.Module)
    chosen: list[Tensor] = []
    rates: list[Tensor] = []
    router.register_forward_pre_hook(lambda _, args: chosen.append(router.gate(args[0]).topk(2, dim=-1).indices))
    norm.register_forward_hook(lambda _, args, out: rates.append(torch.sigmoid(
        mixer.dt_proj(_inner(mixer, out)) + mixer.dt_bias) * mixer.A_log.exp().mean(-1)))  # fmt: skip
    found = evaluate(model, Held(batches[1:], Words()), recipe, measure=True).measures  # type: ignore[arg-type]
    assert list(found) == ["moe/load/M0", "decay_rate/G0"]
    counts = torch.bincount(chosen[0].flatten(), minlength=4)
    assert found["moe/load/M0"] == pytest.approx((counts / counts.sum()).tolist())
    assert found["decay_rate/G0"] == pytest.approx(rates[0].mean(dim=(0, 1)).tolist(), rel=1e-5)
    padded = evaluate(model, Held(batches, Words()), recipe, measure=True).measures  # type: ignore[arg-type]
    assert sum(padded["moe/load/M0"]) == pytest.approx(1)
    assert evaluate(model, Held(batches, Words()), recipe).measures == {}  # type: ignore[arg-type]


def _inner(mixer: torch.nn.Module, x: Tensor) -> Tensor:
    """SiLU of the causal convolution of W_in x."""
    inner = mixer.in_proj(x).mT
    return torch.nn.functional.silu(mixer.conv(torch.nn.functional.pad(inner, (3, 0)))).mT


HEADS = {"gdn": 4, "gated_deltanet": 6, "kda": 7, "mamba2": 28, "gla": 4, "mla": 0, "attention": 0}


@pytest.mark.parametrize(("mixer", "heads"), HEADS.items())
def test_every_decay_is_measured_a_positive_rate_a_head(recipe: Recipe, batches: list[Batch], mixer: str, heads: int) -> None:
    other = load_recipe("v1_0", ["model.pattern=GM", "model.d_model=16", f"model.layers.G.mixer={{type: {mixer}}}"], scale="tiny")
    found = evaluate(build_hymo(other), Held(batches, Words()), other, measure=True).measures.get("decay_rate/G0", [])  # type: ignore[arg-type]
    assert len(found) == heads
    assert all(rate > 0 for rate in found)
