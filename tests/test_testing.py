"""The suites find what they are there to find: each fault below passes everything else and fails one test."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import nn

from hymo import Block, BlockConfig, registry
from hymo.ops.short_conv import short_conv
from hymo.testing import FfnContract, HeadContract, MixerContract, OpContract, PositionContract


class Sound(Block):
    """y_t = W x_t + sum of the last three inputs, weighted: a mixer that keeps the contract."""

    class Config(BlockConfig):
        """One width."""

        type: Literal["faulty"] = "faulty"

    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.linear = nn.Linear(layer.d_model, layer.d_model, bias=False)
        self.taps = nn.Parameter(torch.empty(layer.d_model, 3))

    def forward(self, x, ctx):
        return self.linear(x) + short_conv(x, self.taps, starts_BT=ctx.starts_BT)[0]

    def initial_state(self, batch, device, dtype):
        return torch.zeros(batch, 2, self.layer.d_model, device=device, dtype=dtype)

    def step(self, x, state, ctx):
        y, state = short_conv(x, self.taps, history_BWD=state, starts_BT=ctx.starts_BT)
        return self.linear(x) + y, state

    def mixing_flops(self, context):
        return 6.0 * self.layer.d_model

    def state_elems(self, context):
        return 2 * self.layer.d_model

    def init_parameter(self, name, weight, generator):
        if name == "taps":
            weight.fill_(1 / 3)
        return name == "taps"


class Acausal(Sound):
    def forward(self, x, ctx):
        return super().forward(x, ctx) + 0.1 * x.mean(dim=1, keepdim=True)


class Leaky(Sound):
    def forward(self, x, ctx):
        return self.linear(x) + short_conv(x, self.taps)[0]


class Forgetful(Sound):
    """Decodes from the last input only."""

    def step(self, x, state, ctx):
        return super().step(x, torch.cat([torch.zeros_like(state[:, :1]), state[:, 1:]], dim=1), ctx)


class BlindToPadding(Sound):
    def step(self, x, state, ctx):
        y, state = short_conv(x, self.taps, history_BWD=state)
        return self.linear(x) + y, state


class Hoarder(Sound):
    """Keeps a view, and with it everything it ever read."""

    def step(self, x, state, ctx):
        y, _ = super().step(x, state, ctx)
        return y, torch.cat([state, x], dim=1)[:, -2:]


class Undercounted(Sound):
    def mixing_flops(self, context):
        return 0.0


class Squared(Sound):
    """Attention counted as a full square."""

    def forward(self, x, ctx):
        heads = x.unsqueeze(1)
        return super().forward(x, ctx) + nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).squeeze(1)

    def mixing_flops(self, context):
        return super().mixing_flops(context) + 4.0 * self.layer.d_model * context


class Uninitialised(Sound):
    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.register_buffer("table", torch.empty(3))


class Idle(Sound):
    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.unused = nn.Linear(2, 2, bias=False)


class Allocating(Sound):
    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.taps = nn.Parameter(torch.ones(layer.d_model, 3, device="cpu"))


class Undescribed(Sound):
    class Config(BlockConfig):
        """A field without a description."""

        type: Literal["faulty"] = "faulty"
        width: int = 3


class Random(Sound):
    def forward(self, x, ctx):
        return super().forward(x, ctx) + torch.randn_like(x)


class Widening(Sound):
    def forward(self, x, ctx):
        return super().forward(x, ctx).double()


class Timeless(Sound):
    def forward(self, x, ctx):
        return self.linear(x)


class OneToken(Sound):
    """Fails on rows shorter than its window."""

    def forward(self, x, ctx):
        return super().forward(x, ctx) if x.shape[1] > 2 else x * float("nan")


class Jagged(Sound):
    """A function whose gradient is not finite."""

    def forward(self, x, ctx):
        return super().forward(x, ctx) + (self.taps[0, 0] * 0).abs().sqrt()


class Suite(MixerContract):
    configs: ClassVar[dict[str, dict[str, Any]]] = {"only": {"type": "faulty"}}

    def elementwise_flops(self, block, context):
        return 6.0 * block.layer.d_model


def properties_of(suite: type) -> dict[str, Callable[[Any], None]]:
    return {name: getattr(suite, name) for name in dir(suite) if name.startswith("test_")}


def failures(suite: Any) -> set[str]:
    """Names of the suite's tests that fail, every parametrised one at each of its values."""
    failed = set()
    for name, test in properties_of(type(suite)).items():
        calls: list[dict[str, Any]] = [{"config": config} for config in suite.configs.values()]
        for mark in getattr(test, "pytestmark", []):
            names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
            values = [value if len(names) > 1 else (value,) for value in mark.args[1]]
            calls = [{**call, **dict(zip(names, value, strict=True))} for call in calls for value in values]
        for call in calls:
            try:
                getattr(suite, name)(**call)
            except Exception:
                failed.add(name)
    return failed


@pytest.fixture
def registered(monkeypatch):
    registry.names("mixer")
    monkeypatch.setattr(registry, "_blocks", dict(registry._blocks))
    return lambda kind, block: registry.register(kind, "faulty")(block)


def test_a_sound_mixer_passes(registered):
    registered("mixer", Sound)
    assert failures(Suite()) == set()


@pytest.mark.parametrize(
    ("block", "test"),
    [
        (Acausal, "test_causal"),
        (Leaky, "test_packed_documents_equal_separate_ones"),
        (Leaky, "test_gradients_do_not_cross_documents"),
        (Forgetful, "test_step_equals_forward"),
        (BlindToPadding, "test_left_padded_prompts_decode_as_if_alone"),
        (Hoarder, "test_decode_state_weighs_what_is_stated"),
        (Undercounted, "test_flops_against_torch"),
        (Squared, "test_flops_against_torch"),
        (Uninitialised, "test_init_covers_everything"),
        (Idle, "test_gradients"),
        (Jagged, "test_gradients"),
        (Allocating, "test_meta_build"),
        (Undescribed, "test_config_is_strict_and_described"),
        (Random, "test_same_seed_same_output"),
        (Widening, "test_shape_and_dtype_kept"),
        (OneToken, "test_shape_and_dtype_kept"),
        (Timeless, "test_mixes_over_time"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_fault_is_found(registered, block, test):
    registered("mixer", block)

    class Narrow(Suite):
        pass

    for name in properties_of(Narrow):
        if name != test:
            setattr(Narrow, name, lambda self, **_: None)
    assert failures(Narrow()) == {test}


# -- the other kinds --------------------------------------------------------------------------------------------------------------------
def test_an_ffn_that_looks_at_its_neighbours_is_found(registered):
    registered("ffn", Sound)

    class Ffn(FfnContract):
        configs = Suite.configs
        elementwise_flops = Suite.elementwise_flops

    assert failures(Ffn()) == {"test_tokens_are_independent", "test_keeps_no_state"}


def test_a_position_that_counts_columns_is_found(registered):
    class Columns(Sound):
        def __init__(self, config, layer):
            Block.__init__(self, config, layer)

        def forward(self, x, ctx):
            return x * torch.arange(1, x.shape[1] + 1)[None, :, None, None].to(x.dtype)

    registered("position", Columns)

    class Positions(PositionContract):
        configs = Suite.configs

    assert failures(Positions()) == {"test_positions_come_from_the_context", "test_positions_restart_in_each_document"}


def test_a_head_that_reads_its_label_is_found(registered):
    class Cheat(Sound):
        def forward(self, hidden, tokens, embed, ctx):
            ahead = torch.cat([tokens[:, 2:], tokens[:, :1]], dim=1)
            return [self.linear(hidden[:, :-1] + embed(ahead))]

    registered("head", Cheat)

    class Heads(HeadContract):
        configs = Suite.configs
        idle = ("taps",)

    assert failures(Heads()) == {"test_sees_exactly_the_tokens_before_its_label"}


# -- ops --------------------------------------------------------------------------------------------------------------------------------
def plain(x, w):
    return x @ w


class Rounded(torch.autograd.Function):
    """The right output and a gradient of x that is 2 % off."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return 1.02 * grad @ w.T, x.T @ grad


def unwritten(x, w):
    out = torch.empty(x.shape[0], w.shape[1])
    return out.where(torch.zeros_like(out, dtype=torch.bool), x @ w) + 0 * out.nan_to_num(1.0).sign().sum() * out[0, 0]


def out_of_bounds(x, w):
    """Reads the number after the last one of x, and multiplies it by zero."""
    beyond = torch.as_strided(x.detach(), (1,), (1,), x.storage_offset() + x.numel()) if x.storage_offset() else x.new_zeros(1)
    return x @ w + 0 * beyond


def contiguous_only(x, w):
    flat = torch.as_strided(x, x.shape, (x.shape[1], 1), x.storage_offset())
    return flat @ w


def overwriting(x, w):
    result = x.clone() @ w.clone()
    w.data.zero_()
    return result


@pytest.mark.parametrize(
    ("implementation", "found"),
    [
        (plain, set()),
        (Rounded.apply, {"test_outputs_and_gradients", "test_poisoned_memory", "test_strided_inputs"}),
        (unwritten, {"test_poisoned_memory"}),
        (out_of_bounds, {"test_poisoned_memory"}),
        (contiguous_only, {"test_strided_inputs"}),
        (overwriting, {"test_inputs_are_left_alone"}),
    ],
    ids=["sound", "rough_gradient", "unwritten", "out_of_bounds", "contiguous_only", "overwriting"],
)
def test_faults_of_ops_are_found(implementation, found):
    class Ops(OpContract):
        cases = {"odd": lambda g: {"x": torch.randn(7, 5, generator=g).double(), "w": torch.randn(5, 3, generator=g).double()}}
        implementations = {"it": implementation}
        reference = staticmethod(plain)

    suite, case = Ops(), Ops.cases["odd"]
    failed = set()
    for name in properties_of(Ops):
        call = {"case": case, "implementation": implementation, **({"dtype": torch.float32} if name == "test_outputs_and_gradients" else {})}
        try:
            getattr(suite, name)(**call)
        except AssertionError:
            failed.add(name)
    assert failed == found
