"""Linear attention: the loop against properties of the papers, the chunked form against the loop in float64."""

import pytest
import torch

from hymo.ops.linear_attention import linear_attention
from hymo.ops.linear_attention.chunked import decayed_scores


def draw(T, *, B=2, H=2, K=8, V=4, channels=True, erase=True, strongest=40.0, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    q, k = (torch.nn.functional.normalize(torch.randn(B, T, H, K, generator=g, dtype=dtype), dim=-1) for _ in range(2))
    v = torch.randn(B, T, H, V, generator=g, dtype=dtype)
    shape = (B, T, H, K) if channels else (B, T, H)
    decay = -torch.rand(shape, generator=g, dtype=dtype) ** 8 * strongest
    beta = 2 * torch.rand(B, T, H, generator=g, dtype=dtype) if erase else None
    state = torch.randn(B, H, K, V, generator=g, dtype=dtype)
    return q, k, v, decay, beta, state


@pytest.mark.parametrize("T", [1, 15, 31, 32, 33, 100])
@pytest.mark.parametrize("erase", [True, False])
@pytest.mark.parametrize("channels", [True, False])
def test_chunked_equals_the_loop_and_so_do_all_gradients(T, erase, channels):
    inputs = draw(T, erase=erase, channels=channels)
    starts = torch.zeros(2, T, dtype=torch.bool)
    starts[0, T // 2] = starts[1, T // 3] = True
    results = []
    for impl in ("reference", "chunked"):
        leaves = [None if x is None else x.clone().requires_grad_() for x in inputs]
        q, k, v, decay, beta, state = leaves
        o, final = linear_attention(q, k, v, decay, beta, initial_state_BHKV=state, starts_BT=starts, impl=impl)
        used = [x for x in leaves if x is not None]
        weight = torch.linspace(-1, 1, o.numel(), dtype=o.dtype).view_as(o)
        results.append([o, final, *torch.autograd.grad((o * weight).sum() + final.square().sum(), used)])
    for ours, truth in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-9)


def test_fp32_is_within_1e_5_of_float64():
    inputs = draw(100)
    truth, _ = linear_attention(*inputs[:5], impl="reference")
    ours, _ = linear_attention(*(x.float() for x in inputs[:5]))
    assert (ours.double() - truth).norm() / truth.norm() < 1e-5


def test_scores_equal_the_elementwise_definition():
    q, k, _, decay, _, _ = draw(16)
    q, k, G = (x[:, :16].transpose(1, 2) for x in (q, k, decay.cumsum(1)))
    direct = torch.zeros(2, 2, 16, 16, dtype=q.dtype)
    for i in range(16):
        for j in range(i + 1):
            direct[:, :, i, j] = (q[:, :, i] * k[:, :, j] * (G[:, :, i] - G[:, :, j]).exp()).sum(-1)
    torch.testing.assert_close(decayed_scores(q, k, G), direct)


def one_head(*rows):
    return torch.tensor(rows, dtype=torch.float64)[None, :, None]


def test_unit_beta_recalls_orthonormal_keys_exactly():
    keys = torch.eye(4, dtype=torch.float64)[None, :, None]
    values = torch.randn(1, 4, 1, 3, dtype=torch.float64)
    none, one = torch.zeros(1, 4, 1, dtype=torch.float64), torch.ones(1, 4, 1, dtype=torch.float64)
    _, state = linear_attention(keys, keys, values, none, one)
    torch.testing.assert_close(state[0, 0], values[0, :, 0])


def test_a_key_written_twice_is_replaced_with_the_erase_term_and_summed_without():
    key = one_head([1.0, 0.0], [1.0, 0.0])
    value = one_head([3.0], [5.0])
    none, one = torch.zeros(1, 2, 1, dtype=torch.float64), torch.ones(1, 2, 1, dtype=torch.float64)
    replaced, _ = linear_attention(key, key, value, none, one)
    added, _ = linear_attention(key, key, value, none)
    assert replaced[0, 1, 0, 0] == 5.0
    assert added[0, 1, 0, 0] == 8.0


def test_no_write_is_pure_decay():
    q, k, v, decay, beta, state = draw(10, channels=False)
    _, final = linear_attention(q, k, v, decay, torch.zeros_like(beta), initial_state_BHKV=state)
    torch.testing.assert_close(final, decay.sum(1).exp()[..., None, None] * state)


def test_equal_channels_are_the_scalar_decay():
    q, k, v, decay, beta, state = draw(50, channels=False)
    scalar, _ = linear_attention(q, k, v, decay, beta, initial_state_BHKV=state)
    wide, _ = linear_attention(q, k, v, decay[..., None].expand(*decay.shape, 8), beta, initial_state_BHKV=state)
    torch.testing.assert_close(wide, scalar)


def test_the_delta_acts_on_the_decayed_state():
    # one key, state 1, decay 1/2, write 0 with beta 1: the decayed state (1/2) is read and erased, leaving nothing
    key, value = one_head([1.0]), one_head([0.0])
    half, one = torch.full((1, 1, 1), 0.5, dtype=torch.float64).log(), torch.ones(1, 1, 1, dtype=torch.float64)
    _, final = linear_attention(key, key, value, half, one, initial_state_BHKV=torch.ones(1, 1, 1, 1, dtype=torch.float64))
    assert final.item() == 0.0


@pytest.mark.parametrize("split", [1, 31, 32, 50])
def test_the_state_carries_over_a_split_anywhere(split):
    *inputs, state = draw(64)
    whole, final = linear_attention(*inputs, initial_state_BHKV=state)
    head, middle = linear_attention(*(x[:, :split] for x in inputs), initial_state_BHKV=state)
    tail, end = linear_attention(*(x[:, split:] for x in inputs), initial_state_BHKV=middle)
    torch.testing.assert_close(torch.cat([head, tail], 1), whole)
    torch.testing.assert_close(end, final)


def test_documents_in_a_row_equal_each_alone():
    inputs = draw(70)[:5]
    starts = torch.zeros(2, 70, dtype=torch.bool)
    starts[:, [13, 45]] = True
    packed, _ = linear_attention(*inputs, starts_BT=starts)
    alone = [linear_attention(*(x[:, a:b] for x in inputs))[0] for a, b in ((0, 13), (13, 45), (45, 70))]
    torch.testing.assert_close(packed, torch.cat(alone, 1))
