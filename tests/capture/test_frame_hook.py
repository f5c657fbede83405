"""After a call nothing of Dynamo's is left between Python and its frames, whatever became of the call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lamina

X = torch.arange(1.0, 4.0)


def is_on() -> bool:
    """Whether Python runs frames by another function than its own."""
    python: Any = ctypes.pythonapi
    python._PyInterpreterState_GetEvalFrameFunc.restype = ctypes.c_void_p
    python.PyInterpreterState_Get.restype = ctypes.c_void_p
    found = python._PyInterpreterState_GetEvalFrameFunc(ctypes.c_void_p(python.PyInterpreterState_Get()))
    return bool(found != ctypes.cast(python._PyEval_EvalFrameDefault, ctypes.c_void_p).value)


def raises(*_: Any) -> Any:
    raise ValueError("a fault of the backend")


def fails(x: torch.Tensor) -> torch.Tensor:
    raise KeyError("a fault of the program")


def breaks(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return x + 1


WAYS: dict[str, Callable[[], Any]] = {
    "backend raises": lambda: lamina.compile(lambda x: x + 1, backend=raises),
    "backend raises in a whole graph": lambda: lamina.compile(lambda x: x + 1, backend=raises, fullgraph=True),
    "option of torch.compile": lambda: torch.compile(lambda x: x + 1, backend="lamina", options={"no": 1}),
    "graph break in a whole graph": lambda: lamina.compile(breaks, backend="eager", fullgraph=True),
    "program raises": lambda: lamina.compile(fails, backend="eager"),
    "nothing compiled": lambda: lamina.compile(lambda x: 1, backend="eager"),
    "all is well": lambda: lamina.compile(lambda x: x + 1, backend="eager"),
}


@pytest.mark.filterwarnings("ignore:lamina")
@pytest.mark.parametrize("way", WAYS)
def test_the_hook_is_off_after_a_call(way: str) -> None:
    torch._dynamo.reset()
    if is_on():
        pytest.skip("left on by something else in this process")
    compiled, seen = WAYS[way](), []
    for _ in range(2):
        try:
            compiled(X)
        except Exception as error:
            seen.append(error)
        assert not is_on()
    assert (not seen) == (way in ("nothing compiled", "all is well"))


@pytest.mark.filterwarnings("ignore:lamina")
@pytest.mark.parametrize("fails", [False, True])
def test_the_hook_stays_on_within_a_compiled_function(fails: bool) -> None:
    torch._dynamo.reset()
    if is_on():
        pytest.skip("left on by something else in this process")
    inner = lamina.compile(lambda x: x + 1, backend=raises if fails else "eager")
    seen: list[bool] = []

    def outer(x: torch.Tensor) -> torch.Tensor:
        try:
            torch._dynamo.graph_break()  # in a try statement: Python runs all of it, and Dynamo sees what it calls
            inner(x)
        except lamina.LaminaError:
            seen.append(is_on())
        return x * 3

    compiled = lamina.compile(outer, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(X), X * 3)
        assert not is_on()
    assert seen == [True] * (2 * fails)
