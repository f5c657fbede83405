"""Private torch names of marks by which functions and tensors tell how they are to be captured, torch 2.11 to 2.13."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch.fx.traceback import annotate

from lamina.capture.compiled_before.torch_private import marked
from lamina.capture.module import is_transparent, original_of

__all__ = ["ANNOTATE", "MARK", "is_mark", "marked_dimensions", "never_entered", "seen_by_dynamo", "target_of_compiled"]

MARK = "_dynamo_"
"""What names of attributes begin with by which a tensor tells how it is to be captured."""
_MARKS = frozenset(
    (
        "mark_dynamic",
        "mark_static",
        "mark_static_address",
        "mark_strict_unbacked",
        "mark_unbacked",
        "maybe_mark_dynamic",
    )
)


ANNOTATE: Any = annotate
"""A context that has notes made on what FX traces within, which is nothing to a program."""
_VARYING = ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices")


def marked_dimensions(tensor: torch.Tensor, varying: bool) -> frozenset[int]:
    """The dimensions of a tensor whose sizes are marked to be ``varying``, or to be fixed."""
    names = _VARYING if varying else ("_dynamo_static_indices",)
    return frozenset(at for name in names for at in tensor.__dict__.get(name, ()))


def never_entered(function: Any) -> bool:
    """Whether ``torch.compiler.disable`` made a function, or it is answered without that."""
    return function is ANNOTATE or hasattr(function, "_torchdynamo_disable")


def is_mark(function: Any) -> bool:
    """Whether a function does nothing but give a tensor attributes by which it is to be captured."""
    return (
        type(function) is FunctionType
        and function.__module__ == "torch._dynamo.decorators"
        and function.__name__ in _MARKS
    )


_TARGET = "_lamina_target"


def target_of_compiled(function: Any) -> Any:
    """What is compiled in a callable that this front end has made, to be interpreted in its place; None of others."""
    if type(function) is FunctionType:
        return function.__dict__.get(_TARGET)
    return original_of(function) if is_transparent(function) else None


_UNSEEN = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
"""Python runs the frame, and Dynamo looks neither at it nor at what it calls."""


def seen_by_dynamo(function: Any, target: Any) -> Any:
    """``function``, in whose place Dynamo captures ``target`` where what it captures calls it, and never looks into it.

    Dynamo would capture the interpreter.
    """
    marked(function, target)._torchdynamo_inline = target  # type: ignore[attr-defined]
    function.__dict__[_TARGET] = target
    set_code_exec_strategy(function.__code__, _UNSEEN)
    return function
