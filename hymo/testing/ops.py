"""The suite of ops: every implementation against a plain one in float64, outputs and all gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

Inputs = dict[str, Any]
Results = dict[str, Tensor]


class OpContract:
    """A function of tensors, given by its implementations and a reference that also runs in float64.

    cases            by test id: a function from a generator to the op's keyword arguments, tensors in float64 (odd shapes belong here)
    implementations  by test id: callables of those keyword arguments that return a tensor or a tuple of tensors
    reference        the plainest form of the same function
    tolerances       by dtype: largest ||got - expected|| / ||expected|| of each output and each gradient
    wide             arguments that stay fp32 when the others are bf16 (states, decay rates)
    device           where the implementations run; the reference follows

    Inputs are rounded to the dtype first and the reference sees the rounded ones, so that a tolerance measures the computation alone.
    """

    cases: ClassVar[dict[str, Callable[[torch.Generator], Inputs]]]
    implementations: ClassVar[dict[str, Callable[..., Any]]]
    reference: ClassVar[Callable[..., Any]]
    tolerances: ClassVar[dict[torch.dtype, float]] = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
    wide: ClassVar[tuple[str, ...]] = ()
    device: ClassVar[str] = "cpu"

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        axes: dict[str, dict[str, Any]] = {"case": self.cases, "implementation": self.implementations}
        axes["dtype"] = {str(dtype)[6:]: dtype for dtype in self.tolerances}
        for argument, values in axes.items():
            if argument in metafunc.fixturenames:
                metafunc.parametrize(argument, list(values.values()), ids=list(values))

    # -- the contract --------------------------------------------------------------------------------------------------------------
    def test_outputs_and_gradients(self, case: Callable[[torch.Generator], Inputs], implementation: Callable[..., Any], dtype: torch.dtype) -> None:
        self.compare(run(implementation, self.inputs(case, dtype)), self.expected(case, dtype), self.tolerances[dtype])

    def test_poisoned_memory(self, case: Callable[[torch.Generator], Inputs], implementation: Callable[..., Any]) -> None:
        """NaN around every input and in every fresh buffer: nothing outside is read, nothing inside stays unwritten."""
        inputs = {name: surround(value) if isinstance(value, Tensor) else value for name, value in self.inputs(case, torch.float32).items()}
        with poisoned_memory():
            results = run(implementation, inputs)
        self.compare(results, self.expected(case, torch.float32), self.tolerances[torch.float32])

    def test_strided_inputs(self, case: Callable[[torch.Generator], Inputs], implementation: Callable[..., Any]) -> None:
        inputs = {name: scatter_storage(value) if isinstance(value, Tensor) else value for name, value in self.inputs(case, torch.float32).items()}
        self.compare(run(implementation, inputs), self.expected(case, torch.float32), self.tolerances[torch.float32])

    def test_inputs_are_left_alone(self, case: Callable[[torch.Generator], Inputs], implementation: Callable[..., Any]) -> None:
        inputs = self.inputs(case, torch.float32)
        before = {name: value.clone() for name, value in inputs.items() if isinstance(value, Tensor)}
        run(implementation, inputs)
        assert all(torch.equal(inputs[name], value) for name, value in before.items())

    # -- helpers -------------------------------------------------------------------------------------------------------------------
    def inputs(self, case: Callable[[torch.Generator], Inputs], dtype: torch.dtype) -> Inputs:
        made = case(torch.Generator().manual_seed(20))
        return {name: self.rounded(name, value, dtype) for name, value in made.items()}

    def rounded(self, name: str, value: Any, dtype: torch.dtype) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.is_floating_point():
            value = value.to(torch.float32 if name in self.wide else dtype)
        return value.to(self.device)

    def expected(self, case: Callable[[torch.Generator], Inputs], dtype: torch.dtype) -> Results:
        inputs = self.inputs(case, dtype)
        exact = {name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value for name, value in inputs.items()}
        return run(type(self).reference, exact)

    def compare(self, got: Results, expected: Results, tolerance: float) -> None:
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            assert got[name].shape == value.shape, f"{name} has the wrong shape"
            error = (got[name].double() - value).norm()
            limit = tolerance * value.norm()
            assert error <= limit, f"{name} must be within {tolerance} of float64, but its relative error is {(error / value.norm()).item():.2e}"


def run(function: Callable[..., Any], inputs: Inputs) -> Results:
    """Outputs by number and the gradients of every floating input, for a fixed random weighting of the outputs."""
    leaves = {name: value.detach().requires_grad_() for name, value in inputs.items() if isinstance(value, Tensor) and value.is_floating_point()}
    outputs = function(**{**inputs, **leaves})
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    total = torch.zeros((), dtype=torch.float64, device=outputs[0].device)
    for seed, output in enumerate(outputs):
        weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        total = total + (output.double() * weight.bfloat16().to(output.device)).sum()       # exact in bf16: the weights add no error of their own
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    results = {f"output {i}": output.detach() for i, output in enumerate(outputs)}
    for name, grad in zip(leaves, grads, strict=True):
        results[f"gradient of {name}"] = torch.zeros_like(leaves[name]) if grad is None else grad
    return results


def surround(value: Tensor) -> Tensor:
    """The same values, contiguous, between two stretches of NaN (of large numbers, for an integer tensor; of True, for bool)."""
    poison = float("nan") if value.is_floating_point() else True if value.dtype == torch.bool else torch.iinfo(value.dtype).max // 2
    margin = 4096
    storage = torch.full((value.numel() + 2 * margin,), poison, dtype=value.dtype, device=value.device)
    inside = storage[margin : margin + value.numel()]
    inside.copy_(value.flatten())
    return inside.view(value.shape)


def scatter_storage(value: Tensor) -> Tensor:
    """The same values with the axes in memory reversed and a gap after each number."""
    gapped = torch.zeros(*reversed(value.shape), 2, dtype=value.dtype, device=value.device)
    view = gapped[..., 0].permute(*reversed(range(value.ndim)))
    view.copy_(value)
    return view


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Inside, torch.empty and its kin hand out NaN (torch's own aid to finding reads of uninitialised memory)."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")         # ops without a deterministic form warn; only the filling is wanted here
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
