import math

import pytest
import torch

from hymo.errors import HymoError
from hymo.generate.sampling import Sampling

LOGITS = torch.tensor([[math.log(0.5), math.log(0.1), math.log(0.3), math.log(0.1)]])


def chosen(sampling, u):
    return sampling.choose(LOGITS, torch.tensor([u], dtype=torch.float64)).item()


def test_greedy_takes_the_most_probable():
    assert chosen(Sampling(), 0.99) == 0
    assert Sampling().choose(torch.tensor([[1.0, 3.0], [2.0, 2.0]]), torch.zeros(2)).tolist() == [1, 0]


@pytest.mark.parametrize(("u", "token"), [(0.0, 0), (0.49, 0), (0.51, 2), (0.79, 2), (0.81, 1), (0.89, 1), (0.91, 3), (0.9999999, 3)])
def test_u_falls_into_the_tokens_probability(u, token):
    assert chosen(Sampling(temperature=1), u) == token


@pytest.mark.parametrize(("top_p", "u", "token"), [(0.4, 0.999, 0), (0.6, 0.62, 0), (0.6, 0.63, 2), (0.85, 0.9, 1), (0.85, 0.88, 2)])
def test_top_p_keeps_the_fewest_that_reach_it(top_p, u, token):
    # 0.4: {0}; 0.6: {0, 2} with 0.5/0.8 and 0.3/0.8; 0.85: {0, 2, 1} with 5/9, 3/9, 1/9
    assert chosen(Sampling(temperature=1, top_p=top_p), u) == token


def test_temperature_sharpens():
    # squares of 0.5, 0.3, 0.1, 0.1: 25, 9, 1, 1 of 36
    assert chosen(Sampling(temperature=0.5), 24.9 / 36) == 0
    assert chosen(Sampling(temperature=0.5), 25.1 / 36) == 2
    assert chosen(Sampling(temperature=1e-6), 0.99) == 0


def test_frequencies_are_the_probabilities():
    u = Sampling(seed=3).uniforms(1, 20_000)[0]
    drawn = Sampling(temperature=1).choose(LOGITS.expand(20_000, -1), u)
    found = torch.bincount(drawn, minlength=4) / 20_000
    torch.testing.assert_close(found, torch.tensor([0.5, 0.1, 0.3, 0.1]), atol=0.015, rtol=0)


def test_a_rows_numbers_depend_on_seed_and_row_alone():
    few, many = Sampling(seed=1).uniforms(1, 5), Sampling(seed=1).uniforms(3, 9)
    assert torch.equal(few[0], many[0, :5])
    assert not torch.equal(many[0], many[1])
    assert not torch.equal(few, Sampling(seed=2).uniforms(1, 5))


@pytest.mark.parametrize("wrong", [{"temperature": -1}, {"temperature": math.nan}, {"temperature": math.inf}, {"top_p": 0}, {"top_p": 1.1}])
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(HymoError, match=f"{next(iter(wrong))} must be"):
        Sampling(**wrong)
