import pytest
import torch

from hymo import Block, Context
from hymo.errors import HymoError

DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1, 2], [-1, -1, -1, 0, 0, 0]])


def test_positions_count_from_the_start():
    assert Context.for_tokens((2, 3), "cpu", start_pos=5).positions_BT.tolist() == [[5, 6, 7]] * 2
    assert Context.for_tokens((2, 3), "cpu").starts_BT is None


def test_positions_restart_at_each_document():
    ctx = Context.for_tokens((2, 6), "cpu", DOCUMENTS)
    assert ctx.positions_BT.tolist() == [[0, 1, 0, 1, 2, 0], [0, 1, 2, 0, 1, 2]]
    assert ctx.starts_BT is not None
    assert ctx.starts_BT.int().tolist() == [[0, 0, 1, 0, 0, 1], [0, 0, 0, 1, 0, 0]]


@pytest.mark.parametrize("cut", range(1, 6))
@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["one_document", "packed"])
def test_a_pass_in_two_parts_is_the_same_pass(documents, cut):
    whole = Context.for_tokens((2, 6), "cpu", documents)
    first = Context.for_tokens((2, cut), "cpu", None if documents is None else documents[:, :cut])
    second = Context.for_tokens((2, 6 - cut), "cpu", None if documents is None else documents[:, cut:], past=first.whole)
    assert torch.equal(second.whole.positions_BT, whole.positions_BT)
    if documents is not None:
        assert torch.equal(second.whole.documents_BT, documents)
        assert torch.equal(torch.cat([first.starts_BT, second.starts_BT], dim=1), whole.starts_BT)


def test_parts_agree_on_whether_there_are_documents():
    first = Context.for_tokens((2, 3), "cpu")
    with pytest.raises(ValueError, match="all passes of a decode, or none, must name documents"):
        Context.for_tokens((2, 3), "cpu", DOCUMENTS[:, 3:], past=first)


def test_once_makes_a_value_once():
    ctx, made = Context.for_tokens((1, 2), "cpu"), []
    for _ in range(3):
        assert ctx.once("key", lambda: made.append(1) or "value") == "value"
    assert made == [1]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (lambda block: block.mixing_flops(8), "a block must state its mixing_flops, but Bare does not"),
        (lambda block: block.state_elems(8), "a block must state its state_elems, but Bare does not"),
        (lambda block: block.initial_state(1, "cpu", torch.float32), "a mixer must have initial_state and step to decode, but Bare has not"),
        (lambda block: block.step(torch.zeros(1, 1, 4), None, None), "a mixer must have initial_state and step to decode, but Bare has not"),
        (lambda block: block.loss_weights, "a head must state its loss_weights, but Bare does not"),
    ],
)
def test_what_a_block_does_not_offer_is_the_users_to_mend(asked, message):
    class Bare(Block):
        def __init__(self):
            torch.nn.Module.__init__(self)

    with pytest.raises(HymoError, match=message):
        asked(Bare())
