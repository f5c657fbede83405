"""Faults put into the kernels that Lamina makes: one operation of a loop nest taken for another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lamina.backends import cpu
from lamina.ir.loops import Compute, Nest
from lamina.ir.plan import Kernel, KernelCall, Plan

__all__ = ["Swap", "wrong_code", "wrong_plan"]

Swap = Callable[[Any], bool]
"""Which kernels are wrong, asked of a ``Kernel``."""


def _swapped(nest: Nest, old: str, new: str) -> Nest:
    return replace(
        nest, body=tuple(replace(e, op=new) if isinstance(e, Compute) and e.op == old else e for e in nest.body)
    )


def has(op: str) -> Callable[[Kernel], bool]:
    """Kernels with this operation."""
    return lambda kernel: any(isinstance(e, Compute) and e.op == op for nest in kernel.nests for e in nest.body)


def wrong_code(monkeypatch: pytest.MonkeyPatch, old: str, new: str, backend: Any = cpu) -> list[str]:
    """Generated code does ``new`` where the nest says ``old``; gives the names of such kernels, once they are made."""
    real, wrong = backend.emit, has(old)
    names: list[str] = []

    def emit(kernel: Kernel, *rest: Any) -> Any:
        if wrong(kernel):
            names.append(kernel.name)
            kernel = replace(kernel, nests=tuple(_swapped(nest, old, new) for nest in kernel.nests))
        return real(kernel, *rest)

    monkeypatch.setattr(backend, "emit", emit)
    return names


def wrong_plan(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """The plan says ``new`` where the graph says ``old``, in kernels and their calls alike."""
    real = cpu.make_plan

    def make_plan(*args: Any) -> Plan:
        plan = real(*args)
        kernels = tuple(replace(k, nests=tuple(_swapped(n, old, new) for n in k.nests)) for k in plan.kernels)
        steps = tuple(
            replace(s, nests=tuple(_swapped(n, old, new) for n in s.nests)) if isinstance(s, KernelCall) else s
            for s in plan.steps
        )
        return replace(plan, kernels=kernels, steps=steps)

    monkeypatch.setattr(cpu, "make_plan", make_plan)
