"""The compiled form of graphs that differ in integers only: integers are inputs of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.base.recipes import captured
from lamina.base.torch_private import storage_of
from lamina.capture.own.autocast import Autocast
from lamina.capture.own.reuse.sized import function_of, layout
from lamina.capture.own.segment import Examples, Segment, inputs_first
from lamina.capture.own.sharing.outline import Outline, with_numbers
from lamina.capture.own.sharing.torch_private import (
    Symbols,
    assuming_no_size,
    by_functions,
    evaluated,
    expression,
    like,
    text,
)
from lamina.capture.own.torch_private import asking_numbers, compiling, unhooked

__all__ = ["Bound", "Form"]

Backend = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]


class Form:
    """A graph of the family of ``outline`` whose integers at the positions ``varying`` are inputs.

    Positions that have had the same number in all ``samples``, the first of which the graph is traced with, are one
    input, so that they have to be one number in each graph that it stands for; truth values are inputs of their own.
    ``sizes_open``: it is to stand for sizes of 1, too. ``in_python``: torch's functions in Python say what operations
    give, many of which do so for symbols where C++ does not. Raises whatever tracing raises.
    """

    def __init__(
        self,
        segment: Segment,
        outline: Outline,
        samples: list[tuple[int, ...]],
        varying: list[int],
        sizes_open: bool = True,
        in_python: bool = False,
    ) -> None:
        self.open = assuming_no_size if sizes_open else contextlib.nullcontext
        self.grad: bool = segment.state[0]
        self.sizes, self.count = outline.sizes, len(outline.numbers)
        self.known: dict[tuple[int, ...], bool] = {}
        self._made_of: Any = _Made(segment, outline, samples, varying, in_python)
        self._guarded: Form | None = None if sizes_open else self
        self._pairs: list[tuple[Any, Any]] = []
        self.symbols = Symbols()
        self.constants = {at: samples[0][at] for at in range(len(samples[0])) if at not in set(varying)}
        self.places: list[list[int]] = []
        self.given: list[torch.SymInt] = []
        self._samples, self._of = samples, dict[int, int]()
        self.run: Callable[..., Any] | None = None
        group: dict[Any, int] = {}
        derived = self._derived(segment, set(varying))
        for at in varying:
            if at not in derived:
                alike = at if at in outline.truths else tuple(s[at] for s in samples)
                self._place(at, group.setdefault(alike, len(group)), at < outline.sizes)
        sizes = self._numbers(outline.sizes, derived)
        self._trace(segment, outline, sizes, by_functions() if in_python else contextlib.nullcontext())
        self.looks = [(kind, tuple(map(expression, numbers)), group) for kind, numbers, group in _looks(self.gm)]

    def _place(self, at: int, number: int, is_size: bool) -> None:
        """The integer at a position is the input of that number."""
        if number == len(self.places):
            self.places.append([])
            self.given.append(self.symbols.new(self._samples[0][at], is_size))
        self.places[number].append(at)
        self._of[at] = number

    def _derived(self, segment: Segment, varying: set[int]) -> dict[int, tuple[int, int]]:
        """Strides that have been the product of a size and a stride in all samples, by their positions."""
        found: dict[int, tuple[int, int]] = {}
        first = 0
        for look in segment.looks:
            rank = len(look[3])
            strides = [first + rank + dimension for dimension in range(rank)]
            order = sorted(range(rank), key=lambda d, at=strides: (self._samples[0][at[d]], -d))  # type: ignore[misc]
            for place, dimension in enumerate(order):
                at = strides[dimension]
                for other in reversed(order[:place]) if at in varying else ():
                    size, step = first + other, strides[other]
                    if all(s[size] * s[step] == s[at] for s in self._samples):
                        found[at] = size, step
                        break
            first += 2 * rank
        return found

    def _numbers(self, count: int, derived: dict[int, tuple[int, int]]) -> list[Any]:
        """The sizes and strides of the inputs, as far as they are symbols."""
        found: dict[int, Any] = {}

        def number(at: int) -> Any:
            if at not in found:
                if at in derived:
                    found[at] = number(derived[at][0]) * number(derived[at][1])
                else:
                    found[at] = self.constants[at] if at in self.constants else self.given[self._of[at]]
            return found[at]

        self.derived = derived
        return [number(at) for at in range(count)]

    def _trace(self, segment: Segment, outline: Outline, sizes: list[Any], dispatch: Any) -> None:
        mode, numbers = self.symbols.mode, iter(sizes)
        self.fakes: list[Any] = []
        with mode, torch.no_grad():
            for look in segment.looks:
                shape = [next(numbers) for _ in look[3]]
                self.fakes.append(like(look, shape, [next(numbers) for _ in look[4]]))
        graph = Graph()
        inputs: list[Node] = []
        for at, given in enumerate(self.given):
            inputs.append(graph.placeholder(f"n_{at}"))
            inputs[-1].meta["example_value"] = given
        rest = range(outline.sizes, len(outline.numbers))
        copies = with_numbers(
            segment, graph, [self.constants[at] if at in self.constants else inputs[self._of[at]] for at in rest]
        )
        self.gm = GraphModule(torch.nn.Module(), inputs_first(graph))
        with torch.set_grad_enabled(self.grad), self.open(), mode, unhooked(), asking_numbers(mode), dispatch:
            Examples(self.gm).run(*self.given, *self.fakes)
        results = ((node.name, copy.meta.get("example_value")) for node, copy in copies.items())
        self.told = {name: (*map(expression, one.shape),) for name, one in results if isinstance(one, torch.Tensor)}

    def compile(self, backend: Backend) -> None:
        """Have the graph compiled; backwards that are compiled later may rest on nothing more than it does."""
        with torch.set_grad_enabled(self.grad), self.open(), compiling(self.symbols.mode):
            self.run = backend(self.gm, [*self.given, *self.fakes])
        captured(self.run, self.gm, [*self.given, *self.fakes])
        self.symbols.settle()

    def fixed(self) -> set[int]:
        """Positions of integers that were to be inputs and that the graph does not work without knowing."""
        return {at for number in self.symbols.fixed() for at in self.places[number]}

    def values(self, numbers: Sequence[int]) -> tuple[int, ...] | None:
        """The inputs for a graph with these integers; None if this form does not stand for it."""
        if any(numbers[at] != number for at, number in self.constants.items()):
            return None
        if any(numbers[at] != numbers[size] * numbers[step] for at, (size, step) in self.derived.items()):
            return None
        found = []
        for places in self.places:
            value = numbers[places[0]]
            if any(numbers[at] != value for at in places):
                return None
            found.append(value)
        values = tuple(found)
        return values if self.symbols.hold(values) else None

    def proven(self, values: tuple[int, ...]) -> bool:
        """Whether this form stands for the graph with other integers, of which nothing was computed.

        So it does where all that tracing asks, sizes of 0 and 1 not being taken for others, is true of them, if tracing
        so comes to the same sizes, strides and offsets.
        """
        with contextlib.suppress(Exception):
            return self._holds(values)
        return False

    def told_as(self, name: str) -> str | None:
        """The text of a function of Python's that says what ``proven`` does; None if none can."""
        with contextlib.suppress(Exception):
            guarded = self._with_guards()
            if guarded is None:
                return None
            asked = [*self.symbols.texts(), *guarded.symbols.texts()]
            asked += [f"layout({_texts(one)}) == layout({_texts(two)})" for one, two in self._pairs]
            names = "".join(f"{text(symbol)}, " for symbol in self.symbols.names)
            lines = (f"def {name}(values):", f"({names}) = values", f"return {' and '.join(map('({})'.format, asked))}")
            made = "\n    ".join(lines)
            says = function_of(made, name)
            return made if all(says(values) == self._holds(values) for values in self.known) else None
        return None

    def _with_guards(self) -> Form | None:
        """The form of the same graph for which sizes of 0 and 1 are told from others, if it says the same."""
        if self._made_of is not None:
            made, self._made_of = self._made_of, None
            with contextlib.suppress(Exception):
                guarded = made.form() if self._guarded is None else self._guarded
                self._guarded = guarded if self._is_like(guarded) else None
        return self._guarded

    def _is_like(self, other: Form) -> bool:
        """Whether another form has the same inputs, none of them one number, and tensors of the same kinds."""
        if self.places != other.places or self.symbols.names != other.symbols.names or other.symbols.fixed():
            return False
        pairs = [*zip(self.looks, other.looks, strict=True)]
        self._pairs = [(one[1], two[1]) for one, two in pairs if one[1] != two[1]]
        return all((one[0], one[2]) == (two[0], two[2]) for one, two in pairs)

    def _holds(self, values: tuple[int, ...]) -> bool:
        """Whether all that was asked is true, and both forms say the same of all tensors."""
        guarded = self._with_guards()
        if guarded is None or not (self.symbols.hold(values) and guarded.symbols.hold(values)):
            return False
        known = dict(zip(self.symbols.names, values, strict=True))
        return all(_layout_for(one, known) == _layout_for(two, known) for one, two in self._pairs)

    def does_the_same(self, segment: Segment, values: tuple[int, ...]) -> bool:
        """Whether what each call of the graph gives looks as it does in this form, and shares the same memory."""
        gm, _, _ = segment.module(anew=True)
        found, known = _looks(gm), dict(zip(self.symbols.names, values, strict=True))
        if len(found) != len(self.looks):
            return False
        for (kind, numbers, group), (of, told, share) in zip(found, self.looks, strict=True):
            if (kind, group) != (of, share) or layout(numbers) != _layout_for(told, known):
                return False
        return True


def _layout_for(told: Sequence[Any], known: dict[Any, int]) -> tuple[Any, ...]:
    """The ``layout`` of a tensor of which expressions tell, for these values of symbols."""
    return layout([evaluated(number, known) for number in told])


def _texts(told: Sequence[Any]) -> str:
    """Expressions as the text of a tuple."""
    return f"({''.join(f'{text(one)}, ' for one in told)})"


@dataclass(slots=True)
class _Made:
    """What a form was made of, to make it anew."""

    segment: Any
    outline: Outline
    samples: list[tuple[int, ...]]
    varying: list[int]
    in_python: bool

    def __post_init__(self) -> None:
        kept = {name: getattr(self.segment, name) for name in ("looks", "graph", "key", "state")}
        self.segment = SimpleNamespace(**kept)  # without the tensors that it read

    def form(self) -> Form:
        """The form for which sizes of 0 and 1 are told from others."""
        with Autocast(self.segment.state[1]):
            return Form(self.segment, self.outline, self.samples, self.varying, False, self.in_python)


def _looks(gm: GraphModule) -> list[tuple[Any, tuple[Any, ...], int]]:
    """What each tensor of a graph is: its dtype, its sizes, strides and offset, and the first with the same memory."""
    found: list[tuple[Any, tuple[Any, ...], int]] = []
    memories: dict[int, int] = {}
    for node in gm.graph.nodes:
        tensor = node.meta.get("example_value")
        if isinstance(tensor, torch.Tensor) and "within" not in node.meta:
            group = memories.setdefault(storage_of(tensor), len(memories))
            found.append((tensor.dtype, (*tensor.shape, *tensor.stride(), tensor.storage_offset()), group))
    return found


@dataclass(slots=True, eq=False, weakref_slot=True)
class Bound:
    """A ``form`` with the integers of one graph."""

    form: Form
    values: tuple[int, ...]

    def __call__(self, *inputs: torch.Tensor) -> Any:
        assert self.form.run is not None
        return self.form.run(*self.values, *inputs)
