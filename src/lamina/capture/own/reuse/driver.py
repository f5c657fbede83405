"""A trace as one flat function of Python's: the facts hold, its graphs run, its writes are done again."""

from __future__ import annotations

from collections.abc import Callable
from types import MemberDescriptorType, MethodType
from typing import Any

import torch

from lamina.capture.own.results import distinct
from lamina.capture.own.reuse.facts import Fact, constant_key, is_settled
from lamina.capture.own.reuse.trace import DICTS, Trace
from lamina.capture.own.torch_private import SET_GRAD, autocast_states, is_wrapped, settings

__all__ = ["Driver", "Miss", "share_memory", "state_of_torch"]

_BUILT = (list, tuple, set, dict)


def state_of_torch() -> tuple[Any, ...]:
    """What torch's state is that decides what calls compute: grad mode, autocast and settings."""
    return torch.is_grad_enabled(), autocast_states(), settings()


def share_memory(tensors: tuple[torch.Tensor, ...]) -> bool:
    """Whether two tensors lie in the same memory."""
    memories = [tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()]
    return len(set(memories)) < len(memories)


class Miss:
    """What a driver gives for a call that it is not for: ``fact`` is the first that does not hold.

    None: a place is not there, or a graph failed before anything was written.
    """

    __slots__ = ("fact",)

    def __init__(self, fact: Fact | None) -> None:
        self.fact = fact


class Unbuildable(Exception):
    """A trace cannot say how to make a value again."""


class Driver:
    """The program of a trace whose call gave ``result``; raises ``Unbuildable`` if it cannot be written.

    ``source`` is its text; ``run(args, kwargs)`` gives the call's result, or a ``Miss``.
    """

    def __init__(self, trace: Trace, result: Any) -> None:
        self.facts = trace.facts
        self._trace = trace
        self._built: dict[int, tuple[Any, str]] = {}
        self._making: list[str] = []
        steps = self._steps()
        effects = [self._effect(*self._parts(effect)) for effect in trace.effects]
        returned = self.expression(result)
        self.source = "\n".join(
            (
                "def driver(args, kwargs):",
                "    try:",
                *(f"        {line}" for line in self.facts.lines()),
                "        pass",
                "    except Exception:",
                "        return gone",
                *(f"    {line}" for line in (*steps, *self._making, *effects)),
                f"    return {returned}",
                "",
            )
        )
        self._constants = self.facts.objects
        self.run = self._compiled()
        del self._trace, self._built

    def failing(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fact | None:
        """The first fact that does not hold for a call; None if all do, or if a place is not there."""
        found = self._asked(args, kwargs)
        return found.fact if type(found) is Miss else None

    def _compiled(self) -> Callable[..., Any]:
        facts = self.facts.facts
        space: dict[str, Any] = {f"m{number}": Miss(fact) for number, fact in enumerate(facts)}
        space.update(self._constants)
        space.update(
            gone=Miss(None), state=state_of_torch, is_wrapped=is_wrapped, share_memory=share_memory,
            constant_key=constant_key, new=object.__new__, bound=MethodType, within=_within, distinct=distinct,
        )  # fmt: skip
        exec(compile(self.source, "<driver of a call>", "exec"), space)
        checks = self.source.split("    except Exception:")[0] + "    except Exception:\n        return gone\n"
        exec(compile(checks.replace("def driver", "def asked"), "<facts of a call>", "exec"), space)
        self._asked: Callable[..., Any] = space["asked"]
        run: Callable[..., Any] = space["driver"]
        return run

    def _steps(self) -> list[str]:
        trace = self._trace
        found = []
        entry = trace.state[0]
        again = not any(run.writes or run.draws for run in trace.steps)
        for number, run in enumerate(trace.steps):
            results = [f"t{number}_{place}" for place in range(len(run.results))]
            for made, name in zip(run.results, results, strict=True):
                self._built[id(made)] = made, name
            given = ", ".join(self.expression(tensor) for tensor in run.inputs)
            function = self.facts.object(run.run)
            called = f"{function}({given})"
            if run.switches or run.grad is not entry:
                called = f"within({run.grad}, {function}, ({given}{',' if given else ''}))"
            if run.aliased:
                called = f"distinct({called}, ({given}{',' if given else ''}))"
            left = f"{', '.join((*results, '*_'))} = " if results else ""
            found.append(f"{left}{called}")
        if found and again:
            return ["try:", *(f"    {line}" for line in found), "except Exception:", "    return gone"]
        return found

    def _parts(self, effect: Any) -> tuple[Any, str, list[str]]:
        return effect.function, self.expression(effect.target), [self.expression(value) for value in effect.operands]

    def _effect(self, function: Any, target: str, operands: list[str]) -> str:
        return f"{self.facts.object(function)}({', '.join((target, *operands))})"

    def expression(self, value: Any) -> str:
        """An expression for a value as it is at the end of the call."""
        trace = self._trace
        if is_settled(value):
            return self.facts.literal(value)
        found = self._built.get(id(value))
        if found is not None:
            if not found[1]:
                raise Unbuildable(f"a {type(value).__qualname__} that holds itself")
            return found[1]
        place = trace.place_of(value)
        if place is not None:
            return place.variable
        self._built[id(value)] = value, ""
        made = self._made(value)
        name = f"v{len(self._making)}"
        self._making.append(f"{name} = {made}")
        self._built[id(value)] = value, name
        return name

    def _made(self, value: Any) -> str:
        kind = type(value)
        if kind in _BUILT:
            return self._container(value)
        if kind is MethodType:
            return f"bound({self.expression(value.__func__)}, {self.expression(value.__self__)})"
        if isinstance(value, tuple) and hasattr(kind, "n_sequence_fields"):
            return f"{self.facts.object(kind)}({self._container(tuple(value))})"
        if self._trace.is_made(value) and not isinstance(value, type) and self._is_simple(kind):
            return self._instance(value)
        raise Unbuildable(f"a {kind.__qualname__}")

    def _container(self, value: Any) -> str:
        if type(value) in DICTS:
            return "{" + ", ".join(f"{self.expression(k)}: {self.expression(v)}" for k, v in value.items()) + "}"
        parts = ", ".join(self.expression(part) for part in value)
        if type(value) is list:
            return f"[{parts}]"
        if type(value) is set:
            return f"{{{parts}}}" if value else f"{self.facts.object(set)}()"
        return f"({parts},)" if parts else "()"

    def _is_simple(self, kind: type) -> bool:
        """Whether an instance is what is in its ``__dict__``."""
        plain: bool = not any(
            isinstance(entry, MemberDescriptorType) for base in kind.__mro__ for entry in vars(base).values()
        )
        return plain and getattr(kind, "__new__", None) is object.__new__

    def _instance(self, value: Any) -> str:
        kind = type(value)
        name = f"v{len(self._making)}"
        self._making.append(f"{name} = new({self.facts.object(kind)})")
        self._built[id(value)] = value, name
        space = self._container(dict(vars(value)))
        self._making.append(f"{name}.__dict__.update({space})")
        return name


def _within(grad: bool, run: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> Any:
    """Run a graph in a grad mode."""
    before = torch.is_grad_enabled()
    SET_GRAD(grad)
    try:
        return run(*inputs)
    finally:
        SET_GRAD(before)
