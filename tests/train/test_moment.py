"""Durations on the device's own time line, here the host's."""

import time

import pytest
import torch

from hymo.train import moment

CPU = torch.device("cpu")


def test_seconds_between_two_moments():
    before = time.perf_counter()
    begin = moment.now(CPU)
    time.sleep(0.01)
    end = moment.now(CPU)
    moment.wait(end)
    assert 0.01 <= moment.seconds(begin, end) <= time.perf_counter() - before


def test_moments_of_two_devices_have_no_time_between_them():
    with pytest.raises(TypeError, match="of one device"):
        moment.seconds(moment.now(CPU), "later")
