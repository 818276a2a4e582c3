import pytest
import torch

from hymo.data.synthetic import Numbers
from hymo.data.tokenizer import BytesTokenizer
from hymo.errors import DataError, HymoError
from hymo.generate import Limits, Sampling, generate
from tests.made import model_of, tiny

BYTES = BytesTokenizer()
PROMPTS = [b"def f(x):", b"import"]


class Letters(BytesTokenizer):
    """ASCII alone, in a model that has room for more."""

    def __init__(self):
        self.token_bytes = [bytes([i]) for i in range(128)]


@pytest.fixture(scope="module")
def model():
    return model_of(tiny())


def test_a_completion_is_the_greedy_continuation(model):
    [found] = generate(model, BYTES, [b"abc"], Limits(5))
    tokens = torch.tensor([[97, 98, 99]])
    for _ in range(5):
        tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], dim=1)
    assert found.tokens == tokens[0, 3:].tolist()
    assert found.text == BYTES.decode(found.tokens)
    assert found.reason == "length"


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, 0.9, seed=4)])
def test_a_row_is_answered_as_if_alone(model, sampling):
    together = generate(model, BYTES, [*PROMPTS, b"x"], Limits(8), sampling)
    assert together[0] == generate(model, BYTES, PROMPTS[:1], Limits(8), sampling)[0]
    assert len({tuple(completion.tokens) for completion in together}) == 3


def test_a_seed_repeats_and_another_one_does_not(model):
    first, again, other = (generate(model, BYTES, PROMPTS, Limits(8), Sampling(1.0, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_text_is_streamed_as_it_will_be_returned(model):
    pieces = ["", ""]

    def on_text(row, text):
        assert text
        pieces[row] += text

    found = generate(model, BYTES, PROMPTS, Limits(20), Sampling(1.0), on_text=on_text)
    assert pieces == [completion.text for completion in found]


def test_a_stop_string_and_a_stop_token_end_a_row_and_no_other(model):
    free = generate(model, Letters(), PROMPTS, Limits(12), Sampling(2.0))
    stop = free[0].text[4:6]
    ended, other = generate(model, Letters(), PROMPTS, Limits(12, stop=[stop]), Sampling(2.0))
    assert (ended.text, ended.reason) == (free[0].text[: free[0].text.index(stop)], "stop")
    assert other == free[1]
    ended, _ = generate(model, Letters(), PROMPTS, Limits(12, stop_tokens=[free[0].tokens[3]]), Sampling(2.0))
    assert (ended.tokens, ended.reason) == (free[0].tokens[: free[0].tokens.index(free[0].tokens[3])], "stop")


def test_the_end_of_text_ends_a_completion(model):
    [free] = generate(model, BYTES, [b"a"], Limits(6))

    class Ending(BytesTokenizer):
        eot_id = free.tokens[2]

    [found] = generate(model, Ending(), [b"a"], Limits(6))
    assert (found.tokens, found.reason) == (free.tokens[: free.tokens.index(free.tokens[2])], "end")


def test_a_token_that_the_tokenizer_does_not_know_is_never_chosen(model):
    [found] = generate(model, Letters(), [b"a"], Limits(40), Sampling(5.0))
    assert max(found.tokens) < 128


def test_the_default_length_is_what_fits(model):
    assert [len(c.tokens) for c in generate(model, BYTES, [b"a" * 60, b"a" * 63])] == [4, 1]    # max_seq_len 64


def test_longer_is_allowed_when_asked_for(model):
    [found] = generate(model, BYTES, [b"a" * 60], Limits(10, longer=True))
    assert len(found.tokens) == 10


@pytest.mark.parametrize(
    ("prompts", "limits", "message"),
    [
        ([b"a" * 60], Limits(5), "must fit model.max_seq_len=64, but got 60 [+] 5 tokens; .*--longer"),
        ([b"a" * 64], Limits(), "must fit model.max_seq_len=64, but got 64 [+] 1 tokens"),
        ([b"a", b""], Limits(), "a prompt must hold one token at least"),
        ([], Limits(), "a prompt must hold one token at least"),
    ],
)
def test_prompts_that_cannot_be_gone_on_with(model, prompts, limits, message):
    with pytest.raises(HymoError, match=message):
        generate(model, BYTES, prompts, limits)


@pytest.mark.parametrize(("wrong", "message"), [({"max_tokens": 0}, "max_tokens must be 1"), ({"stop": ["a", ""]}, "a stop string must hold")])
def test_limits_that_make_no_sense(wrong, message):
    with pytest.raises(HymoError, match=message):
        Limits(**wrong)


def test_a_synthetic_task_is_prompted_in_numbers():
    model = model_of(tiny("data.source=synthetic:mqar"))
    [found] = generate(model, Numbers(200), [b"3 17 199"], Limits(3))
    assert found.text.split() == [str(token) for token in found.tokens]
    with pytest.raises(DataError, match="reads numbers such as '3 17 2', but got b'hello'"):
        generate(model, Numbers(200), [b"hello"])
    with pytest.raises(DataError, match="must lie in 0 … 199"):
        generate(model, Numbers(200), [b"200"])
