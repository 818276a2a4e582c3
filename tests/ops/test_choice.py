import pytest

from hymo.errors import KernelUnavailable
from hymo.ops import choice
from hymo.ops.choice import resolve as resolve_one_of

KNOWN = ("auto", "reference", "chunked", "triton")


def resolve(operation, impl, device, otherwise):
    return resolve_one_of(operation, impl, KNOWN, device, otherwise)


@pytest.mark.parametrize(("device", "expected"), [("cpu", "chunked"), ("meta", "chunked"), ("cuda", "triton"), ("cuda:1", "triton")])
def test_auto_depends_on_the_device(device, expected):
    assert resolve("an_op", "auto", device, otherwise="chunked") == expected


def test_auto_without_triton(monkeypatch):
    monkeypatch.setattr(choice, "TRITON_INSTALLED", False)
    assert resolve("an_op", "auto", "cuda", otherwise="chunked") == "chunked"
    with pytest.raises(KernelUnavailable, match="an_op's kernel needs the triton package"):
        resolve("an_op", "triton", "cuda", otherwise="chunked")


def test_triton_by_name(monkeypatch):
    assert resolve("an_op", "triton", "cpu", otherwise="chunked") == "triton"      # the tests run in Triton's interpreter
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert resolve("an_op", "triton", "cuda", otherwise="chunked") == "triton"
    with pytest.raises(KernelUnavailable, match="an_op's Triton kernel needs a CUDA device, but got 'cpu'; use impl='chunked'"):
        resolve("an_op", "triton", "cpu", otherwise="chunked")


def test_any_other_name_stands():
    assert resolve("an_op", "reference", "cuda", otherwise="chunked") == "reference"


def test_an_unknown_name():
    with pytest.raises(KernelUnavailable, match="must be one of auto, reference, chunked, triton, but got impl='chunkd'; did you mean 'chunked'"):
        resolve("an_op", "chunkd", "cpu", otherwise="chunked")
