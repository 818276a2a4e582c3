"""Moments in the order of the device's own work. The host runs ahead of a GPU: its clock would tell when it looked, not when a step ended."""

from __future__ import annotations

import time

import torch

Moment = float | torch.cuda.Event


def now(device: torch.device) -> Moment:
    """When the device has done all that was asked of it so far. Waits for nothing."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def wait(moment: Moment) -> None:
    """Until the moment has come."""
    if isinstance(moment, torch.cuda.Event):
        moment.synchronize()


def seconds(begin: Moment, end: Moment) -> float:
    """From one moment of a device to another, both of which have come."""
    if isinstance(begin, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
        return float(begin.elapsed_time(end)) / 1e3
    if isinstance(begin, float) and isinstance(end, float):
        return end - begin
    raise TypeError(f"two moments must be of one device, but got {begin=} and {end=}")
