"""The state of the thread around a compiled graph as it runs: see ``aot.state``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lamina.aot.engine.torch_private import SET_GRAD, never_captured
from lamina.base.recipes import made_of

__all__ = ["leaving", "raising_again", "within"]


def within(compiled: Callable[..., Any], inference: bool) -> Callable[..., Any]:
    """``compiled`` in inference mode, or out of it."""

    def run(*inputs: Any) -> Any:
        with torch.inference_mode(inference):
            return compiled(*inputs)

    never_captured(run)
    return made_of(run, "within", compiled=compiled, inference=inference)


def raising_again(compiled: Callable[..., Any], captured: Callable[..., Any]) -> Callable[..., Any]:
    """``compiled``; where it raises, the graph as it was ``captured`` does, in the grad mode of that place."""

    def run(*inputs: Any) -> Any:
        try:
            return compiled(*inputs)
        except Exception:
            captured(*inputs)
            raise

    never_captured(run)
    return made_of(run, "raising again", compiled=compiled, captured=captured)


def leaving(compiled: Callable[..., Any], grad: bool, at_once: bool) -> Callable[..., Any]:
    """``compiled``, which leaves this grad mode; where it raises as well if that is switched ``at_once``."""

    def run(*inputs: Any) -> Any:
        results = compiled(*inputs)
        SET_GRAD(grad)
        return results

    def run_and_raise(*inputs: Any) -> Any:
        try:
            return compiled(*inputs)
        finally:
            SET_GRAD(grad)

    function = run_and_raise if at_once else run
    never_captured(function)
    return made_of(function, "leaving", compiled=compiled, grad=grad, at_once=at_once)
