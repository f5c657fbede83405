"""The tensors that a function works with beside its arguments: found, kept, given back, and widened."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from lamina.base.devices import kind_of
from lamina.base.reference import WIDE
from lamina.base.symbolic.torch_private import is_fake

__all__ = ["State", "reachable"]


def reachable(function: Callable[..., Any], arguments: Any = ()) -> State:
    """The state of ``function``: of modules and optimizers, and tensors, that it holds, closes over or is given.

    Looked for are the function itself, the object that it is or is a method of, with its attributes, what a
    ``functools.partial`` binds, its closure, its defaults, and the global names that its code reads.
    """
    state = State()
    seen: set[int] = set()

    def visit(value: Any, name: str) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, nn.Module):
            state.add_module(value, name)
        elif isinstance(value, torch.optim.Optimizer):
            state.optimizers.append(value)
        elif isinstance(value, Tensor):
            state.add(name, value)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                visit(item, f"{name}[{key!r}]")
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                visit(item, f"{name}[{index}]")
        elif isinstance(value, functools.partial):
            visit((value.func, value.args, value.keywords), name)
        else:
            for label, held in _held(value):
                visit(held, label)

    visit(function, "")
    owner = getattr(function, "__self__", function)
    if not isinstance(owner, (nn.Module, FunctionType, BuiltinFunctionType, ModuleType, type, functools.partial)):
        visit(dict(getattr(owner, "__dict__", {})), "self")
    for module in _modules_in(arguments):
        visit(module, "argument")
    return state


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """What a function holds, by name; nothing for other objects."""
    owner = getattr(value, "__self__", None)
    if owner is not None and callable(value) and not isinstance(owner, type(copy)):
        yield "", owner
        value = getattr(value, "__func__", None)
    code = getattr(value, "__code__", None)
    if not isinstance(code, CodeType):
        return
    for name, cell in zip(code.co_freevars, getattr(value, "__closure__", None) or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    named = {*code.co_names, *(n for c in code.co_consts if isinstance(c, CodeType) for n in c.co_names)}
    yield from ((n, value.__globals__[n]) for n in sorted(named) if n in value.__globals__)
    yield "default", value.__defaults__


def _modules_in(arguments: Any) -> list[nn.Module]:
    if isinstance(arguments, nn.Module):
        return [arguments]
    if isinstance(arguments, Mapping):
        return [m for item in arguments.values() for m in _modules_in(item)]
    return [m for item in arguments for m in _modules_in(item)] if isinstance(arguments, (list, tuple)) else []


class State:
    """Named tensors, those of modules among them, and optimizers."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.optimizers: list[torch.optim.Optimizer] = []

    def add(self, name: str, tensor: Tensor) -> None:
        """Note a tensor, once. One without memory has no state."""
        if not kind_of(tensor).stored or is_fake(tensor):
            return
        if not any(tensor is known for known in self.tensors.values()):
            self.tensors[name if name not in self.tensors else f"{name} ({len(self.tensors)})"] = tensor

    def add_module(self, module: nn.Module, name: str) -> None:
        """Note the parameters and buffers of a module."""
        for path, tensor in (*module.named_parameters(), *module.named_buffers()):
            self.add(f"{name}.{path}" if name else path, tensor)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Gradients are None inside; values, gradients and optimizers are in the end as they were."""
        values = {name: (t.data, t.detach().clone(), t.grad if t.is_leaf else None) for name, t in self.tensors.items()}
        optimizers = [copy.deepcopy(optimizer.state_dict()) for optimizer in self.optimizers]
        for tensor in self.tensors.values():
            if tensor.is_leaf:
                tensor.grad = None
        try:
            yield
        finally:
            with torch.no_grad():
                for name, tensor in self.tensors.items():
                    memory, value, grad = values[name]
                    if tensor.data_ptr() != memory.data_ptr() or tensor.dtype != memory.dtype:
                        tensor.data = memory
                    if not torch.equal(tensor.detach().nan_to_num(), value.nan_to_num()) or value.isnan().any():
                        tensor.detach().copy_(value)
                    if tensor.is_leaf:
                        tensor.grad = grad
            for optimizer, known in zip(self.optimizers, optimizers, strict=True):
                optimizer.load_state_dict(known)

    def widen(self) -> None:
        """Make the floating and complex tensors those of double precision; within ``kept``."""
        for tensor in self.tensors.values():
            if tensor.dtype in WIDE and tensor.layout is torch.strided:
                tensor.data = tensor.data.to(WIDE[tensor.dtype])
