import pytest
import torch

from hymo.errors import DataError, ProbeError
from hymo.model import build_hymo
from hymo.probes.base import Subject, open_probe
from hymo.recipe import load_recipe


def asked(recipe, **options):
    return open_probe("mqar", options).asked(recipe)


def test_the_published_test_follows_from_the_published_training():
    assert asked(load_recipe("mqar")) == [(64, 4), (64, 8), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256)]


@pytest.mark.parametrize(
    ("recipe", "overrides", "cells"),
    [
        ("mqar", ["train.seq_len=128", "data.options.segments=[[128, 8, 1]]"], [(128, 8), (128, 16), (128, 32), (256, 64), (512, 128)]),
        ("mqar", ["data.options={vocab: 256, segments: [[64, 16, 1]]}"], [(64, 16), (128, 32)]),     # 256 tokens do not fit 256 kinds
        ("v1_0", [], [(64, 4), (64, 8), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256), (2048, 512), (4096, 1024)]),
    ],
)
def test_load_then_length_as_far_as_the_run_allows(recipe, overrides, cells):
    assert asked(load_recipe(recipe, overrides)) == cells


def test_a_model_that_looks_back_recalls_everything(oracle, task_recipe):
    """The token after the earlier occurrence of the one just read: right wherever a filler does not happen to be the key."""
    subject = Subject(build_hymo(task_recipe), task_recipe)
    oracle(subject, lambda row: row[row.index(row[-1]) + 1] if row[-1] in row[:-1] else 0)
    found = open_probe("mqar", {"examples": 64}).measure(subject)
    assert found.axes == (("", ["64x4", "64x8", "64x16"]),)
    assert found.cells[0] == 1.0
    assert min(found.cells) > 0.99
    assert found.metrics["probe/mqar/64x4"] == 1.0
    assert found.summary == {"accuracy": pytest.approx(sum(found.cells) / 3)}


def test_a_memory_of_one_pair_recalls_one(oracle, task_recipe):
    subject = Subject(build_hymo(task_recipe), task_recipe)
    oracle(subject, lambda row: row[1] if row[-1] == row[0] else 0)
    found = open_probe("mqar", {"examples": 64, "cells": [(64, 4), (64, 16)]}).measure(subject)
    assert found.cells == [0.25, 1 / 16]


def test_chance_is_told_and_what_is_longer_than_in_training(task_recipe, text_recipe):
    """Values are the tokens of V/2 … V−1: 64 of 128, and 129 of 257."""
    found = open_probe("mqar", {"examples": 4}).measure(Subject(build_hymo(task_recipe), task_recipe))
    assert found.setting.endswith("of a vocabulary of 128; guessing among its 64 values: 0.0156")
    assert found.beyond == ()
    found = open_probe("mqar", {"examples": 4}).measure(Subject(build_hymo(text_recipe), text_recipe))
    assert found.setting.endswith("guessing among its 129 values: 0.0078")
    assert found.beyond == ("128x32", "256x64")


def test_it_is_deterministic(task_recipe):
    subject = Subject(build_hymo(task_recipe), task_recipe)
    torch.manual_seed(0)
    first = open_probe("mqar", {"examples": 16}).measure(subject)
    torch.manual_seed(1)
    assert open_probe("mqar", {"examples": 16}).measure(subject) == first


def test_a_run_on_text_is_asked_in_its_own_vocabulary(text_recipe):
    probe = open_probe("mqar")
    assert probe.task(text_recipe).vocab_size == 257
    assert probe.asked(text_recipe) == [(64, 4), (64, 8), (64, 16), (128, 32), (256, 64)]
    probe.check(text_recipe)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"vocab": 8192}, ProbeError, "must fit the model's vocabulary of 128, but needs 8192 tokens"),
        ({"cells": [[1024, 256]]}, ProbeError, "at most 4 times the trained length, 256 tokens, but got rows of 1024"),
        ({"cells": [[64, 17]]}, DataError, "4 tokens of a row for each pair, but got 17 pairs and T=64"),
        ({"cells": [[128, 4]]}, DataError, "more tokens in its vocabulary than in a row"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(task_recipe, options, error, message):
    with pytest.raises(error, match=message) as caught:
        open_probe("mqar", options).check(task_recipe)
    assert "\n" not in str(caught.value)
