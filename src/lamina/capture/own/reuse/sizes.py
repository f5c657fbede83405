"""Sizes of tensors that are others in each call: the program gets numbers, of which it is known where they are from."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch

from lamina.capture.own.pending import Pending
from lamina.capture.own.reuse.facts import Place
from lamina.capture.own.reuse.trace import Trace
from lamina.capture.own.reuse.values import Varying, size_of, stride_of
from lamina.capture.own.segment import Segment
from lamina.capture.own.sharing.form import Bound, Form
from lamina.capture.own.sharing.outline import integers, others
from lamina.capture.own.sharing.sized import Source, sized
from lamina.capture.own.torch_calls import QUERIES

__all__ = ["Sizes"]

_OF_SIZES = frozenset(
    ("shape", "size", "numel", "nelement", "__len__", "stride", "storage_offset", "is_contiguous", "is_same_size")
)
"""Questions whose answers are others for tensors of other sizes."""
_OF_NO_SIZES = QUERIES - _OF_SIZES
_FOLDED: dict[str, Callable[..., Any]] = {
    "Add": operator.add, "Mul": operator.mul, "FloorDiv": operator.floordiv, "Mod": operator.mod,
    "PythonMod": operator.mod, "Min": min, "Max": max,
}  # fmt: skip
"""What expressions of symbols are made of, by the names of their classes."""


class _Unknown(Exception):
    """It is not known where a number is from."""


class Sizes:
    """Sizes and strides that vary in one trace.

    ``varying`` has, by the texts of tensors' places, positions among the sizes and strides of each. ``forms`` are those
    that the graphs of an earlier call had, in their order: they tell how sizes of results come of those of inputs.
    Where it is not known how the program comes to a number, or what a graph does for others, all sizes are pinned.
    """

    def __init__(self, trace: Trace, varying: Mapping[str, frozenset[int]], forms: Sequence[Form | None]) -> None:
        self.trace, self.varying, self.forms = trace, varying, forms
        self.tensors: dict[int, tuple[torch.Tensor, Place, frozenset[int], list[int]]] = {}
        self.closed = not varying
        self._asked: Form | None = None
        self._known: dict[int, bool] = {}

    @property
    def is_open(self) -> bool:
        """Whether there are tensors whose sizes vary."""
        return bool(self.tensors) and not self.closed and self.trace.ended is None

    def look(self, tensor: torch.Tensor, place: Place, look: Any) -> tuple[str, Any]:
        """The kind and the value of the fact that is to be noted of how a tensor at a place looks."""
        positions = self.varying.get(str(place))
        numbers = [*look[2], *look[3]]
        if self.closed or not positions or max(positions) >= len(numbers):
            return "look", look
        self.tensors[id(tensor)] = tensor, place, positions, numbers
        return "varies", (look, tuple(sorted(positions)))

    def close(self) -> None:
        """Pin all sizes: what the call does rests on them."""
        if not self.is_open:
            return
        self.closed = True
        learning = self.trace.learning
        for _, place, positions, numbers in self.tensors.values():
            for at in sorted(positions):
                self.trace.note("constant", (self._place(place, at, len(numbers) // 2),), numbers[at])
        for key, known in list(learning.values.items()):
            if isinstance(known, Varying) and type(known.value) is int and self._is_size(known.place):
                del learning.values[key]  # a float stays an input: a graph for each would be another one for each size

    def is_one(self, value: Any) -> bool:
        """Whether a value is an integer that was made of sizes that vary."""
        if type(value) is not int or not self.is_open:
            return False
        known = self.trace.learning.values.get(id(value))
        return isinstance(known, Varying) and self._is_size(known.place)

    def told(self, name: str, args: tuple[Any, ...], found: Any, segment: Segment | None) -> Any:
        """What a tensor's question ``name`` is answered where eager has ``found`` the answer."""
        if name in _OF_NO_SIZES or not self.is_open:
            return found
        sizes = self._sizes(args[0], segment) if name in ("shape", "size", "numel", "nelement") else None
        if sizes is None or len(args) > 2:
            self.close()
            return found
        if name == "size" and len(args) == 2:
            if type(args[1]) is int:
                return sizes[args[1]]
            self.close()
            return found
        return torch.Size(sizes) if name in ("shape", "size") else reduce(self._product, sizes, 1)

    def step(self, run: Any, segment: Segment) -> tuple[Any, tuple[int, ...]]:
        """What a driver runs in place of a graph, and integers that it gives to that after the graph's inputs."""
        asked, self._asked = self._asked, None
        self.trace.learning.pin(*others(segment))
        if not self.is_open or not (self._depends(segment) or asked):
            return run, ()
        found = None
        if type(run) is Bound and asked in (None, run.form) and not segment.writes:
            found = self._sized(run, segment)
        if found is None:
            self.close()
        return found or (run, ())

    def _sized(self, bound: Bound, segment: Segment) -> tuple[Any, tuple[int, ...]] | None:
        given, learning, form = integers(segment), self.trace.learning, bound.form
        ranks = [len(look[3]) for look in segment.looks]
        of = [(at, part) for at, rank in enumerate(ranks) for part in range(2 * rank)]
        if learning.spoils is not None or len(of) != form.sizes or len(given) != form.count - form.sizes:
            return None
        numbers = [*{id(one): one for one in given if learning.is_learnt(one)}.values()]
        names = {id(one): f"n{at}" for at, one in enumerate(numbers)}

        def source(at: int) -> Source | None:
            if at >= form.sizes:
                name = names.get(id(given[at - form.sizes]))
                return None if name is None else (name, False)
            one, part = of[at]
            rank, tensor = ranks[one], segment.inputs[one]
            varies = part in self.tensors[id(tensor)][2] if id(tensor) in self.tensors else False
            text = f"t{one}.shape[{part}]" if part < rank else f"t{one}.stride({part - rank})"
            return text, not varies and self.trace.place_of(tensor) is not None

        offsets: list[Any] = [
            None if self.trace.place_of(t) is not None else t.storage_offset() for t in segment.inputs
        ]
        made = sized(bound, segment.inputs, numbers, source, offsets)
        return None if made is None else (made, tuple(numbers))

    def _sizes(self, tensor: Any, segment: Segment | None) -> list[int] | None:
        """The sizes of a tensor as numbers of which it is known where they are from."""
        if type(tensor) is not Pending:
            if id(tensor) in self.tensors:
                return [self._number(tensor, at) for at in range(len(self.tensors[id(tensor)][3]) // 2)]
            return None if self.trace.place_of(tensor) is None else [*tensor.shape]
        sizes = [*tensor._fake.shape]
        if segment is None:
            return None
        if not self._depends(segment):
            return sizes
        try:
            return self._computed(tensor, sizes, segment)
        except _Unknown:
            return None

    def _computed(self, tensor: Any, sizes: list[int], segment: Segment) -> list[int]:
        """The sizes of a result of a graph that has not run, as the form of an earlier one tells them."""
        graphs = self.trace.learning.graphs
        form = self.forms[graphs] if graphs < len(self.forms) else None
        told = None if form is None else form.told.get(segment.nodes[id(tensor._fake)].name)
        if form is None or told is None or len(told) != len(sizes) or segment.writes:
            raise _Unknown
        self._asked = form
        found = [self._value(one, form, segment) for one in told]
        if found != sizes:
            raise _Unknown
        return found

    def _value(self, told: Any, form: Form, segment: Segment) -> int:
        """The number that an expression of the symbols of a form is."""
        kind = type(told).__name__
        if isinstance(told, int) or getattr(told, "is_Integer", False):
            return int(told)
        if getattr(told, "is_Symbol", False):
            return self._symbol(told, form, segment)
        if kind not in _FOLDED:
            raise _Unknown
        return reduce(
            lambda one, other: self._operated(_FOLDED[kind], one, other),
            [self._value(part, form, segment) for part in told.args],
        )

    def _symbol(self, symbol: Any, form: Form, segment: Segment) -> int:
        if symbol not in form.symbols.names:
            raise _Unknown
        given = integers(segment)
        firsts = [0]
        for look in segment.looks:
            firsts.append(firsts[-1] + 2 * len(look[3]))
        for at in form.places[form.symbols.names.index(symbol)]:
            if at < firsts[-1]:
                one = next(place for place in range(len(firsts)) if firsts[place + 1] > at)
                tensor = segment.inputs[one]
                if self.trace.place_of(tensor) is not None:
                    return self._number(tensor, at - firsts[one])
            elif form.sizes <= at < form.sizes + len(given) and self.is_one(given[at - form.sizes]):
                return given[at - form.sizes]
        raise _Unknown

    def _number(self, tensor: torch.Tensor, at: int) -> int:
        """The size or stride at a position of a tensor from outside."""
        if id(tensor) not in self.tensors:
            fixed: int = (*tensor.shape, *tensor.stride())[at]
            return fixed
        _, place, positions, numbers = self.tensors[id(tensor)]
        if at not in positions:
            return numbers[at]
        found: Any = self.trace.learning.vary(numbers[at], self._place(place, at, len(numbers) // 2))
        number: int = found
        return number

    def _place(self, place: Place, at: int, rank: int) -> Place:
        function, dimension = (size_of, at) if at < rank else (stride_of, at - rank)
        return self.trace.facts.place("computed", None, (function, place, dimension))

    def _product(self, one: int, other: int) -> int:
        return self._operated(operator.mul, one, other)

    def _operated(self, function: Callable[..., Any], one: int, other: int) -> int:
        learning, found = self.trace.learning, function(one, other)
        if not (learning.is_learnt(one) or learning.is_learnt(other)):
            return int(found)
        computed: int = learning.compute(function, (one, other), found)
        return computed

    def _depends(self, segment: Segment) -> bool:
        """Whether results of a graph may look otherwise for other sizes."""
        inputs = (id(one) in self.tensors or self.trace.place_of(one) is None for one in segment.inputs)
        return any(inputs) or any(map(self.trace.learning.is_learnt, integers(segment)))

    def _is_size(self, place: Place) -> bool:
        found = self._known.get(place.number)
        if found is None:
            sizes = place.how == "computed" and place.key[0] in (size_of, stride_of)
            found = self._known[place.number] = sizes or any(map(self._is_size, place.operands))
        return found
