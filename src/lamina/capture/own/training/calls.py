"""Calls of torch's that optimizers make, which end no graph: what they ask is known, or another call does the same."""

from __future__ import annotations

import os
from types import FrameType
from typing import Any

import torch

from lamina.base.torch_private import is_leaf
from lamina.capture.own.frame import MISSING
from lamina.capture.own.nested import flat
from lamina.capture.own.pending import Pending
from lamina.capture.own.places import by_interpreter
from lamina.capture.own.reuse.ahead import number_ahead
from lamina.capture.own.torch_calls import name_of, recordable

__all__ = ["answered"]

_TORCH = os.path.dirname(torch.__file__) + os.sep
_KINDS = (torch.Tensor, torch.nn.Parameter)


def answered(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
    """What a call gives that is made from ``frame``; ``MISSING`` if it is not one of these."""
    name = name_of(func)
    if name == "requires_grad_" and _is_so(*args, **kwargs):
        return args[0]
    if name == "item" and recorder.trace is not None and len(args) == 1:
        return number_ahead(recorder.trace, recorder.segment, args[0], recorder.regions.ahead)
    if kwargs.get("out") is not None and not torch.is_grad_enabled() and by_interpreter(frame, _TORCH):
        return _into(recorder, func, args, kwargs)
    return MISSING


def _is_so(tensor: Any, wanted: Any = True, *rest: Any, **named: Any) -> bool:
    """Whether ``requires_grad_`` finds a leaf as it is to be."""
    wanted = named.pop("requires_grad", wanted)
    if rest or named or type(wanted) is not bool or type(tensor) not in _KINDS:
        return False
    return is_leaf(tensor) and tensor.requires_grad is wanted


def _into(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that writes what it gives to the tensor ``out`` that looks the same: a copy does that."""
    out, given = kwargs["out"], {name: value for name, value in kwargs.items() if name != "out"}
    copy = torch.Tensor.copy_
    if type(out) not in (Pending, torch.Tensor) or not recordable(func, args, given, Pending):
        return MISSING
    if not recordable(copy, (out,), {}, Pending) or not _gives_alike(func, args, given, out):
        return MISSING
    made = recorder.recorded(func, args, given)
    found = None if made is None else recorder.recorded(copy, (out, made[0]), {})
    return MISSING if found is None else found[0]


def _gives_alike(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: torch.Tensor) -> bool:
    """Whether a call gives one tensor that looks as ``out`` does, as both of its operands do."""
    operands = list(flat((args, kwargs)))
    alike = all((one.shape, one.dtype, one.device) == (out.shape, out.dtype, out.device) for one in operands)
    return func in (torch.maximum, torch.minimum) and alike and len(operands) == 2
