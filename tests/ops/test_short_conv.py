import pytest
import torch
import torch.nn.functional as F

from hymo.ops.short_conv import short_conv
from hymo.testing import OpContract


def by_loop(x_BTD, weight_DW, history_BWD=None, starts_BT=None):
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
            outputs.append(sum(weight_DW[:, j] * past for j, past in enumerate(visible)))
            visible = visible[1:]
        rows.append(torch.stack(outputs))
        histories.append(torch.stack(visible) if visible else x_BTD.new_zeros(0, channels))
    return torch.stack(rows), torch.stack(histories)


def case(batch, length, channels, width, history=False, starts=()):
    def make(generator):
        inputs = {
            "x_BTD": torch.randn(batch, length, channels, generator=generator, dtype=torch.float64),
            "weight_DW": torch.randn(channels, width, generator=generator, dtype=torch.float64),
        }
        if history:
            inputs["history_BWD"] = torch.randn(batch, width - 1, channels, generator=generator, dtype=torch.float64)
        if starts:
            inputs["starts_BT"] = torch.zeros(batch, length, dtype=torch.bool)
            inputs["starts_BT"][0, list(starts)] = True
        return inputs

    return make


class TestShortConv(OpContract):
    implementations = {"torch": short_conv}
    reference = staticmethod(by_loop)
    cases = {
        "plain": case(2, 63, 5, 4),
        "shorter_than_the_window": case(2, 2, 5, 4),
        "one_token": case(1, 1, 3, 4, history=True),
        "history": case(2, 10, 5, 4, history=True),
        "documents": case(2, 20, 5, 4, starts=(1, 2, 9, 19)),
        "history_and_documents": case(2, 9, 5, 4, history=True, starts=(0, 3, 8)),
        "wide": case(1, 12, 3, 7, history=True, starts=(5,)),
    }


def test_is_torch_conv1d():
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, 30, 6, generator=generator), torch.randn(6, 1, 4, generator=generator)
    expected = F.conv1d(F.pad(x.mT, (3, 0)), weight, groups=6).mT
    torch.testing.assert_close(short_conv(x, weight.squeeze(1))[0], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("cut", [1, 2, 3, 8, 9])
def test_cut_anywhere(cut):
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, 10, 6, generator=generator), torch.randn(6, 4, generator=generator)
    starts = torch.zeros(2, 10, dtype=torch.bool)
    starts[0, [2, 8]] = True
    whole, end = short_conv(x, weight, starts_BT=starts)
    first, history = short_conv(x[:, :cut], weight, starts_BT=starts[:, :cut])
    second, history = short_conv(x[:, cut:], weight, history_BWD=history, starts_BT=starts[:, cut:])
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    torch.testing.assert_close(history, end)


def test_one_weight_has_no_history():
    y, history = short_conv(torch.ones(1, 5, 2), torch.full((2, 1), 3.0))
    assert torch.equal(y, torch.full((1, 5, 2), 3.0))
    assert history.shape == (1, 0, 2)
