"""gated_recurrence: every implementation against the loop in float64. Triton runs on a GPU where there is one, else in its interpreter."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor, library
from torch.utils.checkpoint import checkpoint

from hymo.errors import KernelUnavailable
from hymo.ops.gated_recurrence import OperandError, gated_recurrence, resolve_impl
from hymo.testing.ops import Inputs, OpContract, run

CUDA = torch.cuda.is_available()
on_gpu = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
IMPLS = ("reference", "chunked", "triton")


def log_uniform(low: float, high: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.exp(math.log(low) + math.log(high / low) * torch.rand(shape, generator=generator, dtype=torch.float64))


def draw(
    generator: torch.Generator, T: int, *, B: int = 1, H: int = 2, S: int = 16, D: int = 16, documents: bool = False, state: bool = False
) -> Inputs:
    """Gates from 1e-4 to 1 and rates from −1e-4 to −60: from no decay in a thousand tokens to e^−60 in one."""
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    inputs: Inputs = {
        "v_BTHD": normal(B, T, H, D),
        "b_BTHS": normal(B, T, H, S),
        "c_BTHS": normal(B, T, H, S),
        "g_BTH": log_uniform(1e-4, 1, (B, T, H), generator),
        "A_HS": -log_uniform(1e-4, 60, (H, S), generator),
    }
    if state:
        inputs["initial_state_BHSD"] = normal(B, H, S, D)
    if documents:
        inputs["starts_BT"] = torch.rand(B, T, generator=generator) < 0.1
        inputs["starts_BT"][0, T // 2] = True
    return inputs


def case(T: int, **kwargs: object):
    return lambda generator: draw(generator, T, **kwargs)


def call(impl: str, **inputs: Tensor) -> tuple[Tensor, Tensor]:
    operands = [inputs.pop(name) for name in ("v_BTHD", "b_BTHS", "c_BTHS", "g_BTH", "A_HS")]
    return gated_recurrence(*operands, **inputs, impl=impl)


def seeded(T: int, seed: int = 0, dtype: torch.dtype = torch.float64, device: str = "cpu", **kwargs: object) -> Inputs:
    made = draw(torch.Generator().manual_seed(seed), T, **kwargs)
    return {name: value.to(device, dtype if value.is_floating_point() else None) for name, value in made.items()}


class TestChunked(OpContract):
    """On the CPU, and in a precision of its own choice: float32 whatever the operands."""

    cases = {f"T{T}": case(T, documents=T > 1, state=True) for T in (1, 15, 63, 64, 65, 100)} | {
        "long": case(1000, B=2, S=4, D=3),
        "one head": case(33, H=1, S=1, D=1, documents=True),
    }
    implementations = {"chunked": partial(call, "chunked")}
    reference = partial(call, "reference")
    tolerances = {torch.float32: 1e-5, torch.bfloat16: 5e-3}
    wide = ("A_HS", "initial_state_BHSD")


class TestTriton(OpContract):
    """On a GPU in every dtype. The interpreter gets float32 right and takes half a second a chunk, so there two chunks of one head must do."""

    cases = {"two chunks": case(17, H=1, S=3, D=5, documents=True, state=True)} | (
        {f"T{T}": case(T, S=32, D=32, documents=True, state=True) for T in (1, 63, 64, 65, 100, 1000, 4096)}
        | {f"S{S} D{D}": case(100, S=S, D=D) for S, D in ((32, 32), (64, 64), (128, 128), (16, 128), (128, 16), (24, 48))}
        if CUDA
        else {}
    )
    implementations = {"triton": partial(call, "triton")}
    reference = partial(call, "chunked")            # float64 as well, equal to the loop to 1e-12 (test below), and quick at T = 4096
    tolerances = {torch.float32: 1e-5} | ({torch.bfloat16: 5e-3, torch.float16: 5e-3} if CUDA else {})
    wide = ("A_HS", "initial_state_BHSD")
    device = "cuda" if CUDA else "cpu"


def test_triton_carries_the_state_from_span_to_span():
    contract = TestTriton()
    inputs = contract.inputs(case(130, H=1, state=True), torch.float32)
    contract.compare(run(partial(call, "triton"), inputs), contract.expected(case(130, H=1, state=True), torch.float32), 1e-5)


@pytest.mark.parametrize("T", [1, 31, 32, 33, 100])
def test_chunked_in_float64_is_the_loop(T):
    inputs = seeded(T, documents=True, state=True)
    got, expected = run(partial(call, "chunked"), inputs), run(partial(call, "reference"), inputs)
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-12, atol=1e-12)


def test_the_loop_is_the_formula_by_hand():
    """Two tokens, one number of state: H_1 = 2·3, H_2 = e^(0.5·−2) H_1 + 5·7, o_t = c_t H_t."""
    v, b, c = (torch.tensor(x, dtype=torch.float64).view(1, 2, 1, 1) for x in ([3.0, 7.0], [2.0, 5.0], [1.0, 10.0]))
    o, final = gated_recurrence(v, b, c, torch.full((1, 2, 1), 0.5).double(), torch.tensor([[-2.0]]).double(), impl="reference")
    second = 6 * math.exp(-1) + 35
    assert o.flatten().tolist() == pytest.approx([6, 10 * second])
    assert final.item() == pytest.approx(second)


@pytest.mark.parametrize("impl", IMPLS)
def test_documents_in_a_row_equal_each_alone(impl):
    """Also in every gradient, and with a first document whose numbers would drown the others if they leaked."""
    device, dtype = ("cuda" if CUDA and impl == "triton" else "cpu"), torch.float32
    lengths = (7, 1, 20)
    alone = [seeded(T, seed=T, dtype=dtype, device=device, H=1) for T in lengths]
    alone[0]["v_BTHD"] *= 1e6
    rate = alone[0]["A_HS"]
    packed = {name: torch.cat([x[name] for x in alone], dim=1) for name in alone[0] if name != "A_HS"} | {"A_HS": rate}
    packed["starts_BT"] = torch.zeros(1, sum(lengths), dtype=torch.bool, device=device)
    packed["starts_BT"][0, [7, 8]] = True
    for inputs in (packed, *alone):
        inputs |= {name: value.detach().requires_grad_() for name, value in inputs.items() if value.is_floating_point()}
    o_packed, final_packed = call(impl, **packed)
    o_packed.sum().backward()
    begin = 0
    for inputs in alone:
        o, final = call(impl, **{**inputs, "A_HS": rate.detach()})
        o.sum().backward()
        end = begin + o.shape[1]
        torch.testing.assert_close(o_packed[:, begin:end], o, rtol=1e-4, atol=1e-4 * o.abs().max().item())
        for name in ("v_BTHD", "b_BTHS", "c_BTHS", "g_BTH"):
            expected = inputs[name].grad
            torch.testing.assert_close(packed[name].grad[:, begin:end], expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item() + 1e-30)
        begin = end
    torch.testing.assert_close(final_packed, final, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("impl", "cuts"), [("reference", (1, 17, 39)), ("chunked", (1, 17, 32, 33, 39)), ("triton", (17,))])
def test_state_carried_over_a_split_continues_the_sequence(impl, cuts):
    device = "cuda" if CUDA and impl == "triton" else "cpu"
    inputs = seeded(40, dtype=torch.float32, device=device, H=1, documents=True, state=True)
    o, final = call(impl, **inputs)
    timed = [name for name in inputs if name not in ("A_HS", "initial_state_BHSD")]
    for cut in cuts:
        o_1, state = call(impl, **{**inputs, **{name: inputs[name][:, :cut] for name in timed}})
        o_2, last = call(impl, **{**inputs, **{name: inputs[name][:, cut:] for name in timed}, "initial_state_BHSD": state})
        torch.testing.assert_close(torch.cat([o_1, o_2], dim=1), o, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(last, final, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("impl", IMPLS)
def test_a_start_forgets_even_where_nothing_decays(impl):
    inputs = seeded(8, dtype=torch.float32, device="cuda" if CUDA and impl == "triton" else "cpu", H=1, state=True)
    inputs["A_HS"] = torch.zeros_like(inputs["A_HS"])
    inputs["starts_BT"] = torch.arange(8, device=inputs["A_HS"].device)[None] == 5
    o, _ = call(impl, **inputs)
    tail = {name: value[:, 5:] for name, value in inputs.items() if name not in ("A_HS", "initial_state_BHSD", "starts_BT")}
    torch.testing.assert_close(o[:, 5:], call(impl, **tail, A_HS=inputs["A_HS"])[0])


def test_chunked_gradients_are_the_numerical_ones():
    inputs = seeded(5, H=1, S=2, D=2, documents=True, state=True)
    names = [name for name, value in inputs.items() if value.is_floating_point()]
    leaves = [inputs[name].requires_grad_() for name in names]
    assert torch.autograd.gradcheck(lambda *x: call("chunked", **dict(zip(names, x, strict=True)), starts_BT=inputs["starts_BT"]), leaves)


def test_the_state_is_float32_under_autocast():
    inputs = seeded(20, dtype=torch.float32)
    expected = call("chunked", **inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = call("chunked", **inputs)
    for ours, truth in zip(got, expected, strict=True):
        assert torch.equal(ours, truth)


def kernel_operands(inputs: Inputs) -> tuple[Tensor, ...]:
    """What the operator behind impl="triton" takes, with gradients, `keep` aside."""
    names = ("v_BTHD", "b_BTHS", "c_BTHS", "g_BTH", "A_HS", "initial_state_BHSD")
    return *(inputs[name].requires_grad_() for name in names), inputs["starts_BT"]


def test_the_operator_is_registered_for_torch_compile():
    """Schema, autograd, shapes without computing, and forward and backward traced with sizes left open."""
    from hymo.ops.gated_recurrence.triton import _forward

    inputs = seeded(3, dtype=torch.float32, device="cuda" if CUDA else "cpu", H=1, documents=True, state=True)
    library.opcheck(_forward, (*kernel_operands(inputs), True))


def test_states_are_kept_for_a_backward_only(monkeypatch):
    from hymo.ops.gated_recurrence import triton

    operator, kept = triton._forward, []

    def forward(*args: object):
        results = operator(*args)
        kept.append(results[2].numel())
        return results

    monkeypatch.setattr(triton, "_forward", forward)
    inputs = seeded(3, dtype=torch.float32, device="cuda" if CUDA else "cpu", H=1)
    call("triton", **inputs)
    inputs["b_BTHS"].requires_grad_()
    with torch.no_grad():
        call("triton", **inputs)
    call("triton", **inputs)
    assert kept == [0, 0, 16 * 16]


def test_recomputed_states_give_the_gradients_of_kept_ones(monkeypatch):
    """As for large states, whose entering states are computed again for a group of spans: here one span of 128 tokens at a time."""
    from hymo.ops.gated_recurrence import triton

    inputs = seeded(130, dtype=torch.float32, device="cuda" if CUDA else "cpu", H=1, documents=True, state=True)
    kept = run(partial(call, "triton"), inputs)
    sizes = triton._sizes
    monkeypatch.setattr(triton, "_sizes", lambda v, S: sizes(v, S)._replace(keeps_chunks=False))
    monkeypatch.setattr(triton, "SCRATCH", 1)
    for name, value in run(partial(call, "triton"), inputs).items():
        assert (value - kept[name]).norm() <= 1e-6 * kept[name].norm(), name


@pytest.mark.parametrize("width", [16, 128])
def test_no_rows(width):
    device = "cuda" if CUDA else "cpu"
    v, b, c = (torch.zeros(0, 5, 1, n, device=device, requires_grad=True) for n in (width, 128, 128))
    g, A = torch.zeros(0, 5, 1, device=device, requires_grad=True), torch.zeros(1, 128, device=device, requires_grad=True)
    o, final = gated_recurrence(v, b, c, g, A, impl="triton")
    gradients = torch.autograd.grad(o.sum() + final.sum(), (v, b, c, g, A))
    assert [tuple(x.shape) for x in gradients] == [tuple(x.shape) for x in (v, b, c, g, A)]
    assert not gradients[-1].any()


def test_checkpointed_gradients_are_the_same():
    inputs = seeded(20, dtype=torch.float32, device="cuda" if CUDA else "cpu", H=1, state=True)
    plain = run(partial(call, "triton"), inputs)
    again = partial(checkpoint, lambda *values: call("triton", **dict(zip(inputs, values, strict=True))), use_reentrant=False)
    for name, value in run(lambda **x: again(*x.values()), inputs).items():
        assert torch.equal(value, plain[name]), name


@pytest.mark.parametrize("impl", ["chunked", "triton"])
def test_shapes_are_known_without_computing(impl):
    inputs = seeded(7, S=3, D=5, dtype=torch.bfloat16, device="meta")
    o, final = call(impl, **inputs)
    assert (o.shape, o.dtype, final.shape, final.dtype) == ((1, 7, 2, 5), torch.bfloat16, (1, 2, 3, 5), torch.float32)


@on_gpu
def test_torch_compile_without_a_graph_break():
    inputs = seeded(100, dtype=torch.float32, device="cuda", S=32, D=32, documents=True, state=True)
    got = run(torch.compile(partial(call, "triton"), fullgraph=True), inputs)
    for name, value in run(partial(call, "triton"), inputs).items():
        torch.testing.assert_close(got[name], value)


class TestRefusals:
    def test_shapes(self):
        inputs = seeded(4)
        with pytest.raises(OperandError, match="b must have shape"):
            call("reference", **{**inputs, "b_BTHS": inputs["b_BTHS"][..., :3]})

    def test_an_unknown_implementation(self):
        with pytest.raises(KernelUnavailable, match="did you mean 'chunked'"):
            resolve_impl("chunkd", "cpu")

    def test_triton_refuses_what_it_would_have_to_convert(self):
        inputs = seeded(4, dtype=torch.float32, device="cuda" if CUDA else "cpu")
        with pytest.raises(OperandError, match="share one dtype"):
            call("triton", **{**inputs, "b_BTHS": inputs["b_BTHS"].bfloat16()})
        with pytest.raises(OperandError, match="at most 128"):
            call("triton", **seeded(1, dtype=torch.float32, S=129, device="cuda" if CUDA else "cpu"))
