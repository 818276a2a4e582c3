"""short_conv: both implementations against a loop in float64. Triton runs on a GPU where there is one, else in its interpreter."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import library

from hymo.errors import OperandError
from hymo.ops.short_conv import short_conv
from hymo.testing.ops import OpContract, run

CUDA = torch.cuda.is_available()
DEVICE = {"reference": "cpu", "triton": "cuda" if CUDA else "cpu"}
on_gpu = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")


def by_loop(x_BTD, weight_DW, history_BWD=None, starts_BT=None, activation=None):
    """One token and one tap at a time; a tap stops at the start of its token's document."""
    batch, length, channels = x_BTD.shape
    back = weight_DW.shape[1] - 1
    rows, histories = [], []
    for b in range(batch):
        visible = [x_BTD.new_zeros(channels)] * back if history_BWD is None else list(history_BWD[b])
        outputs = []
        for t in range(length):
            if starts_BT is not None and starts_BT[b, t]:
                visible = [torch.zeros_like(past) for past in visible]
            visible = [*visible, x_BTD[b, t]]
            conv = sum(weight_DW[:, j] * past for j, past in enumerate(visible))
            outputs.append(conv / (1 + torch.exp(-conv)) if activation else conv)
            visible = visible[1:]
        rows.append(torch.stack(outputs))
        histories.append(torch.stack(visible) if visible else x_BTD.new_zeros(0, channels))
    return torch.stack(rows), torch.stack(histories)


def case(batch, length, channels, width=4, *, history=False, starts=(), activation="silu"):
    def make(generator):
        inputs = {
            "x_BTD": torch.randn(batch, length, channels, generator=generator, dtype=torch.float64),
            "weight_DW": torch.randn(channels, width, generator=generator, dtype=torch.float64),
            "activation": activation,
        }
        if history:
            inputs["history_BWD"] = torch.randn(batch, width - 1, channels, generator=generator, dtype=torch.float64)
        if starts:
            inputs["starts_BT"] = torch.zeros(batch, length, dtype=torch.bool)
            inputs["starts_BT"][0, list(starts)] = True
        return inputs

    return make


class TestReference(OpContract):
    implementations = {"reference": partial(short_conv, impl="reference")}
    reference = staticmethod(by_loop)
    cases = {
        "plain": case(2, 63, 5, activation=None),
        "silu": case(2, 63, 5),
        "shorter than the window": case(2, 2, 5),
        "one token": case(1, 1, 3, history=True),
        "history": case(2, 10, 5, history=True, activation=None),
        "documents": case(2, 20, 5, starts=(1, 2, 9, 19)),
        "history and documents": case(2, 9, 5, history=True, starts=(0, 3, 8)),
        "one weight": case(2, 9, 5, 1, history=True, starts=(0, 3, 8)),
        "wide": case(1, 12, 3, 7, history=True, starts=(5,)),
    }


class TestTriton(TestReference):
    """On a GPU in every dtype; the interpreter, whose bf16 arithmetic is wrong, takes 20 ms a token, so there few tokens in short spans must do."""

    implementations = {"triton": partial(short_conv, impl="triton")}
    cases = {
        "one token": case(2, 1, 3, history=True),
        "two tokens": case(1, 2, 5, history=True),
        "three tokens, plain": case(1, 3, 130, activation=None),
        "a span": case(1, 4, 3, starts=(1, 3)),
        "three spans": case(1, 9, 4, 3, history=True, starts=(4, 7)),
        "one weight": case(1, 5, 3, 1, history=True, starts=(2,)),
        "wider than a span": case(1, 5, 3, 6, history=True, starts=(3,)),
    } | (
        {f"T{T}": case(2, T, 1280, history=True, starts=(0, 1, T // 2, T - 1)) for T in (63, 64, 65, 130, 1000)}
        | {f"{channels} channels": case(2, 100, channels, history=True, starts=(50,)) for channels in (1, 100, 127, 2304)}
        if CUDA
        else {}
    )
    tolerances = {torch.float32: 1e-5} | ({torch.bfloat16: 5e-3, torch.float16: 5e-3} if CUDA else {})
    device = DEVICE["triton"]

    @pytest.fixture(autouse=True)
    def short_spans(self, monkeypatch):
        if not CUDA:
            from hymo.ops.short_conv import triton

            for name, tokens in (("FORWARD_SPAN", 4), ("BACKWARD_SPAN", 4), ("GROUP", 2)):
                monkeypatch.setattr(triton, name, tokens)


@pytest.mark.parametrize("T", [63, 64, 65, 130])
def test_lengths_around_a_span(T):
    contract, make = TestTriton(), case(1, T, 3, 2, history=True, starts=(1, T - 3))
    contract.compare(run(partial(short_conv, impl="triton"), contract.inputs(make, torch.float32)), contract.expected(make, torch.float32), 1e-5)


def test_is_torch_conv1d():
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, 30, 6, generator=generator), torch.randn(6, 1, 4, generator=generator)
    expected = F.conv1d(F.pad(x.mT, (3, 0)), weight, groups=6).mT
    torch.testing.assert_close(short_conv(x, weight.squeeze(1))[0], expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(short_conv(x, weight.squeeze(1), activation="silu")[0], F.silu(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("impl", ["reference", "triton"])
@pytest.mark.parametrize("cut", [1, 2, 3, 8, 9])
def test_cut_anywhere(impl, cut):
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*shape, generator=generator).to(DEVICE[impl]) for shape in ((2, 10, 6), (6, 4)))
    starts = torch.zeros(2, 10, dtype=torch.bool, device=x.device)
    starts[0, [2, 8]] = True
    conv = partial(short_conv, weight_DW=weight, activation="silu", impl=impl)
    whole, end = conv(x, starts_BT=starts)
    first, history = conv(x[:, :cut], starts_BT=starts[:, :cut])
    second, history = conv(x[:, cut:], history_BWD=history, starts_BT=starts[:, cut:])
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    torch.testing.assert_close(history, end)


@pytest.mark.parametrize("impl", ["reference", "triton"])
def test_not_even_nan_crosses_a_start(impl):
    """In either direction: neither a later output nor an earlier gradient, of an input or of the history."""
    x, history = (torch.ones(1, length, 3, device=DEVICE[impl]) for length in (9, 3))
    x[:, 2:4] = float("nan")
    weight, starts = torch.ones(3, 4, device=x.device), torch.zeros(1, 9, dtype=torch.bool, device=x.device)
    starts[0, [2, 4]] = True
    leaves = [x.requires_grad_(), history.requires_grad_()]
    y, _ = short_conv(x, weight, history_BWD=history, starts_BT=starts, activation="silu", impl=impl)
    dx, dhistory = torch.autograd.grad(y.sum(), leaves)
    finite = [True] * 2 + [False] * 2 + [True] * 5
    assert y[0, :, 0].isfinite().tolist() == finite
    assert dx[0, :, 0].isfinite().tolist() == finite
    assert dhistory.isfinite().all()


@pytest.mark.parametrize("impl", ["reference", "triton"])
def test_float64_is_kept(impl):
    inputs = case(1, 9, 3, history=True, starts=(4,))(torch.Generator().manual_seed(0))
    inputs = {name: value.to(DEVICE[impl]) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
    got = run(partial(short_conv, impl=impl), inputs)
    for name, value in run(by_loop, inputs).items():
        torch.testing.assert_close(got[name], value, rtol=1e-12, atol=1e-12)


def test_one_weight_has_no_history():
    y, history = short_conv(torch.ones(1, 5, 2), torch.full((2, 1), 3.0))
    assert torch.equal(y, torch.full((1, 5, 2), 3.0))
    assert history.shape == (1, 0, 2)


def test_the_operators_are_registered_for_torch_compile():
    from hymo.ops.short_conv.triton import _backward, _forward

    made = case(1, 3, 5, history=True, starts=(1,))(torch.Generator().manual_seed(0))
    x, weight, history = (made[name].float().to(DEVICE["triton"]) for name in ("x_BTD", "weight_DW", "history_BWD"))
    starts = made["starts_BT"].to(x.device)
    leaves = [z.clone().requires_grad_() for z in (x, weight, history)]
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    library.opcheck(_forward, (*leaves, starts, True), test_utils=tests)
    library.opcheck(_backward, (x, weight, history, starts, torch.ones_like(x), True), test_utils=tests)
    library.opcheck(_backward, (x, weight, None, None, torch.ones_like(x), False), test_utils=tests)


@pytest.mark.parametrize("impl", ["reference", "triton"])
def test_shapes_are_known_without_computing(impl):
    y, history = short_conv(torch.empty(2, 7, 5, device="meta", dtype=torch.bfloat16), torch.empty(5, 4, device="meta"), impl=impl)
    assert (y.shape, y.dtype, history.shape, history.dtype) == ((2, 7, 5), torch.bfloat16, (2, 3, 5), torch.bfloat16)


@on_gpu
def test_torch_compile_without_a_graph_break():
    inputs = case(2, 100, 256, history=True, starts=(7,))(torch.Generator().manual_seed(0))
    inputs = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
    conv = partial(short_conv, impl="triton")
    got = run(torch.compile(conv, fullgraph=True), inputs)
    for name, value in run(conv, inputs).items():
        torch.testing.assert_close(got[name], value)


@pytest.mark.parametrize("impl", ["reference", "triton"])
class TestEdges:
    def test_no_tokens(self, impl):
        x, history = torch.randn(2, 0, 3, device=DEVICE[impl]), torch.randn(2, 3, 3, device=DEVICE[impl], requires_grad=True)
        y, after = short_conv(x, torch.ones(3, 4, device=DEVICE[impl]), history_BWD=history, activation="silu", impl=impl)
        torch.testing.assert_close(after, history)
        assert torch.equal(torch.autograd.grad(y.sum() + 0 * after.sum(), history)[0], torch.zeros_like(history))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"weight_DW": torch.ones(5, 4)}, r"weight must have shape \(3, 4\)"),
            ({"weight_DW": torch.ones(3, 0)}, "W > 0"),
            ({"history_BWD": torch.ones(2, 2, 3)}, r"history must have shape \(2, 3, 3\)"),
            ({"starts_BT": torch.ones(1, 6, dtype=torch.bool)}, r"starts must have shape \(2, 6\)"),
            ({"starts_BT": torch.ones(2, 6)}, "starts must be bool"),
            ({"activation": "relu"}, "activation must be None or 'silu'"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, impl, change, message):
        inputs = {"x_BTD": torch.ones(2, 6, 3), "weight_DW": torch.ones(3, 4), **change}
        on_device = {name: value.to(DEVICE[impl]) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
        with pytest.raises(OperandError, match=message):
            short_conv(**on_device, impl=impl)
