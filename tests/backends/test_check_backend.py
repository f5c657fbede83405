"""The suite passes what is right and names what is wrong, in words that a backend's author can act on."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from lamina.errors import BadArgument
from lamina.extend import Backend
from lamina.testing import check_backend

Run = Callable[..., Any]


def around(change: Callable[[list[Any], Run], Any]) -> Callable[[GraphModule, list[Any]], Run]:
    """A backend that runs graphs as they are, and does ``change`` to that."""

    def backend(gm: GraphModule, example_inputs: list[Any]) -> Run:
        return lambda *inputs: change(list(inputs), gm.forward)

    return backend


def wrong_values(inputs: list[Any], run: Run) -> Any:
    return [out * 1.001 if out.is_floating_point() else out for out in run(*inputs)]


def wrong_dtype(inputs: list[Any], run: Run) -> Any:
    return [out.double() for out in run(*inputs)]


def wrong_shape(inputs: list[Any], run: Run) -> Any:
    return [out.unsqueeze(0) for out in run(*inputs)]


def too_few(inputs: list[Any], run: Run) -> Any:
    return run(*inputs)[1:]


def no_tensor(inputs: list[Any], run: Run) -> Any:
    return [out.tolist() for out in run(*inputs)]


def writes_to_its_input(inputs: list[Any], run: Run) -> Any:
    outputs = run(*inputs)
    with torch.no_grad():
        inputs[0].add_(1)
    return outputs


def crash(inputs: list[Any], run: Run) -> Any:
    raise RuntimeError("out of luck")


def one_buffer(gm: GraphModule, example_inputs: list[Any]) -> Run:
    kept: list[Any] = []

    def run(*inputs: Any) -> Any:
        outputs = gm(*inputs)
        if [(o.shape, o.dtype) for o in kept] != [(o.shape, o.dtype) for o in outputs]:
            kept[:] = [o.clone() for o in outputs]
        for old, new in zip(kept, outputs, strict=True):
            old.copy_(new)
        return list(kept)

    return run


BROKEN = {
    "wrong values": (around(wrong_values), "forward", "largest error 0.001 of the largest element"),
    "wrong dtype": (around(wrong_dtype), "forward", "output 0 is of torch.float64, expected torch.float32"),
    "wrong shape": (around(wrong_shape), "forward", r"output 0 is of shape \(1, 5, 8\), expected \(5, 8\)"),
    "too few outputs": (around(too_few), "forward", "it returned 0 outputs, the graph has 1"),
    "no tensor": (around(no_tensor), "forward", "output 0 is a list, expected a tensor"),
    "a crash": (around(crash), "forward", "RuntimeError: out of luck"),
    "writes to an input": (around(writes_to_its_input), "forward", "it wrote to its inputs"),
    "one buffer": (one_buffer, "results that outlive the next call", "a second call changed the result of the first"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_backend_is_caught_and_its_fault_named(broken: str) -> None:
    backend, program, words = BROKEN[broken]
    report = check_backend(backend, show=False, programs=[program])
    assert not report.ok
    (row,) = [row for row in report.rows if row.name == program]
    assert not row.ok
    assert re.search(words, row.fault), row.fault
    assert program in report.failed
    assert row.fault in str(report)


@pytest.mark.parametrize("backend", ["aten", "lamina"])
def test_our_own_backends_pass(backend: str) -> None:
    report = check_backend(backend, show=False)
    assert report.ok, str(report)
    assert len(report.rows) >= 20


def test_a_compile_that_raises_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def refuses(gm: GraphModule, example_inputs: list[Any]) -> Run:
        raise ValueError("no such device")

    report = check_backend(refuses, programs=["forward"])
    row = report.rows[0]
    assert "'refuses' failed to compile arithmetic0_inference: ValueError: no such device" in row.fault
    printed = capsys.readouterr().out
    assert "FAILED" in printed
    assert "no such device" in printed


def test_what_is_left_to_the_fallback_is_in_the_rows() -> None:
    only = Backend("only floats", lambda gm, inputs: gm.forward, dtypes=(torch.float32,), training=False)
    report = check_backend(only, show=False, programs=["forward", "float64", "gradients"])
    assert report.ok, str(report)
    left = {row.name: row.left for row in report.rows}
    assert left["forward"] == ()
    assert "a tensor of torch.float64" in left["float64"]
    assert left["gradients"] == ("only floats does not train",)


def test_a_program_that_is_not_in_the_suite_is_named() -> None:
    with pytest.raises(BadArgument, match="no program is called 'backwards'"):
        check_backend("aten", programs=["backwards"])
    with pytest.raises(BadArgument, match=r"programs is the text 'forward'\n  do: pass a list"):
        check_backend("aten", programs="forward")


@pytest.mark.parametrize(("given", "words"), [(None, "backend is None"), ("atne", "no backend is called 'atne'")])
def test_what_is_no_backend_is_refused(given: Any, words: str) -> None:
    with pytest.raises(BadArgument, match=words):
        check_backend(given, show=False)
