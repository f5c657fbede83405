"""Graphs run by ATen on the program's own tensors, and what they give held against what they should."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from lamina.base.accuracy import judge_alone, tensors
from lamina.base.recovery import brief
from lamina.base.reference import copied, in_double
from lamina.blame.observed import Generators, GraphCall
from lamina.first_call.check import differs
from lamina.first_call.steps import recorded

__all__ = ["Captured", "Reference", "Values", "evaluated", "first_departure", "run_captured", "with_results"]

Values = list[Any] | Exception
"""What an evaluation gave: results and what became of its inputs, or what it raised."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What should come out: by ATen, and in double precision where the graph runs so."""

    eager: Values
    exact: Values

    @classmethod
    def of(cls, evaluate: Callable[[bool], Values]) -> Reference:
        """The reference that ``evaluate`` gives, which is told whether to do so in double precision."""
        return cls(evaluate(False), evaluate(True))

    def complaint(self, ours: Values) -> str:
        """How ``ours`` differs; "" if it does not."""
        if isinstance(ours, Exception) or isinstance(self.eager, Exception):
            if isinstance(ours, Exception) and isinstance(self.eager, Exception):
                return ""
            return f"it raises {brief(ours)}" if isinstance(ours, Exception) else "it does not raise"
        if len(ours) != len(self.eager):
            return f"{len(ours)} values, not {len(self.eager)}"
        exact = None if isinstance(self.exact, Exception) or len(self.exact) != len(ours) else self.exact
        for place, (mine, eager) in enumerate(zip(ours, self.eager, strict=True)):
            text = differs(mine, eager, None if exact is None else exact[place])
            if text:
                return f"value {place}: {text}"
        return ""


@contextmanager
def _precision(wide: bool) -> Iterator[None]:
    if not wide:
        yield
        return
    with in_double():
        yield


def with_results(run: Callable[[list[Any]], Any], inputs: Sequence[Any], generators: Generators) -> Values:
    """What ``run`` gives on copies of ``inputs``, and these copies afterwards."""
    given = copied(list(inputs))
    generators.again()
    try:
        with torch.no_grad():
            outputs = run(list(given))
    except Exception as error:
        return error
    return [*(outputs if isinstance(outputs, (tuple, list)) else [outputs]), *given]


def evaluated(gm: GraphModule, inputs: Sequence[Any], generators: Generators, wide: bool = False) -> Values:
    """What a functional graph gives by ATen, and its inputs afterwards; in double precision if ``wide``."""
    with _precision(wide):
        return with_results(lambda given: gm.forward(*given), copied(list(inputs), wide=wide), generators)


@dataclass(frozen=True, slots=True)
class Captured:
    """What a captured graph gives: its results, inputs afterwards, and gradients of its inputs (None without one)."""

    results: list[Any]
    inputs: list[Any]
    gradients: list[Tensor | None]
    cotangents: list[Tensor]

    def values(self) -> list[Any]:
        """All of them."""
        return [*self.results, *self.inputs, *self.gradients]


def run_captured(
    gm: GraphModule, call: GraphCall, wide: bool = False, cotangents: Sequence[Tensor] | None = None
) -> Captured | Exception:
    """A captured graph run as in its first call and differentiated with ``cotangents``, or random ones."""
    given = copied(call.inputs, wide=wide)
    call.generators.again()
    try:
        with torch.set_grad_enabled(call.gradients), _precision(wide):
            leaves = [x.view_as(x) if isinstance(x, Tensor) and x.requires_grad else x for x in given]
            outputs = tensors(gm.forward(*leaves))
            roots = [t for t in outputs if t.requires_grad]
            chosen = _cotangents(roots) if cotangents is None else list(cotangents)
            chosen = [c.to(t) for c, t in zip(chosen, roots, strict=True)]
            wanted = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
            found = iter(torch.autograd.grad(roots, wanted, chosen, allow_unused=True) if roots and wanted else ())
    except Exception as error:
        return error
    gradients = [next(found, None) if isinstance(x, Tensor) and x.requires_grad else None for x in given]
    after = [x.detach() if isinstance(x, Tensor) else x for x in leaves]
    return Captured([t.detach() for t in outputs], after, gradients, chosen)


def _cotangents(roots: Sequence[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for t in roots:
        kind = torch.complex128 if t.is_complex() else torch.float64
        made.append(torch.randn(t.shape, dtype=kind, generator=generator).to(t))
    return made


def first_departure(before: GraphModule, after: GraphModule, inputs: Sequence[Any], generators: Generators) -> str:
    """The first node of ``after`` that has another value than the one of its name, or of its place in the results,
    ``before``; of new ones among its operands the last. "" where none differs.
    """
    try:
        with torch.no_grad():
            generators.again()
            old = recorded(before, copied(list(inputs))).values
            generators.again()
            new = recorded(after, copied(list(inputs))).values
    except Exception:
        return ""
    names = dict(zip(_returned(after), _returned(before), strict=False))
    for node in after.graph.nodes:
        same = node.name if node.name in old else names.get(node.name, "")
        if _all_alike(old.get(same, ()), new.get(node.name, ())):
            continue
        fresh = [n.name for n in node.all_input_nodes if n.name not in old and n.op != "placeholder"]
        return str(fresh[-1] if fresh and node.name in old else node.name)
    return ""


def _returned(gm: GraphModule) -> list[str]:
    returned: Any = gm.graph.output_node().args[0]
    items = returned if isinstance(returned, (tuple, list)) else [returned]
    return [getattr(item, "name", "") for item in items]


def _all_alike(old: Sequence[Tensor], new: Sequence[Tensor]) -> bool:
    return not any(a.shape == b.shape and judge_alone(b, a) for a, b in zip(old, new, strict=False))
