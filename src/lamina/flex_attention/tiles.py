"""``flex_attention`` on a CPU, tile by tile: the graphs of the user's functions become part of our kernels.

Eager makes the whole matrix of scores. Here a tile of it, some rows of some heads, stays in the cache between the
products. Columns that the mask hides from all rows of a tile are left out of it, where that cannot be noticed: eager
multiplies hidden values by zero, which is zero if all that is multiplied is finite, as is asked at each call.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from lamina.backends.regions import Boxed
from lamina.backends.torch_private import FLEX_ATTENTION, Special, has_data_sizes, laid_out_like
from lamina.base.decision import Decision
from lamina.base.devices import kind_of
from lamina.base.fx.editing import replace_node
from lamina.base.reasons import Reason
from lamina.base.recovery import recover
from lamina.base.symbolic.torch_private import has_symbols
from lamina.flex_attention.graphs import Example, Scores, attention_tile, visible_keys
from lamina.flex_attention.reasons import IN_TILES, NOT_IN_TILES, OTHER_DTYPES, OTHER_OPERANDS, RUN_TIME_SIZE
from lamina.options import Options
from lamina.record import Record

__all__ = ["Tiling", "cleared", "staying_calls", "tilings"]

_BYTES = 1 << 20
"""Scores of a tile, for each thread: what its second-level cache holds."""
_ROWS = 128
"""Rows of queries in a tile, where the cache allows: products of fewer are slower."""
_FEWEST_KEYS = 512
"""Below so many keys none are left out."""
_STEP = 16
"""Ranges of keys begin and end at multiples of this."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Tiling:
    """A call of ``flex_attention`` in ``outer``, to run in tiles: two graphs to compile, or a reason why not.

    ``tile`` computes a tile, ``ranges``, if it is there, which keys the mask shows to the rows of each.
    """

    outer: GraphModule
    call: Node
    name: str
    plan: _Plan | None = None
    ranges: GraphModule | None = None
    tile: GraphModule | None = None
    why: Reason | None = None

    def put(self, ranges: Boxed | None, tile: Boxed) -> None:
        """Put the compiled graphs in the place of the call."""
        assert self.plan is not None
        _replace(self.outer, self.call, self.name, _Tiled(replace(self.plan, ranges=ranges), tile))

    def decision(self) -> Decision:
        """Whether it runs in tiles, and in which."""
        said = self.why if self.plan is None else self.plan.reason(self.ranges is not None)
        assert said is not None
        return Decision("body", (self.name, self.call.name), self.plan is not None, said)


def tilings(outer: GraphModule, name: str, decompositions: Mapping[Any, Callable[..., Any]]) -> Iterator[Tiling]:
    """The calls of ``flex_attention`` in ``outer``, one after the other, and how they run in tiles."""
    for node in list(outer.graph.nodes):
        if node.op != "call_function" or node.target is not FLEX_ATTENTION:
            continue
        inner = f"{name}_{node.name}"
        try:
            found = _Call(outer, node, decompositions).tiled(inner)
        except _Unfit as why:
            found = Tiling(outer, node, inner, why=why.args[0])
        except Special as why:
            found = Tiling(outer, node, inner, why=NOT_IN_TILES(why=why))
        yield found


@contextlib.contextmanager
def staying_calls(name: str, options: Options, record: Record, found: list[Decision]) -> Iterator[None]:
    """What fails inside leaves calls of attention in the graph ``name`` as they are, and nothing ``found``."""
    try:
        yield
    except Exception as error:
        recover(
            error,
            doing="making tiles of attention",
            region=name,
            instead="it stays a call",
            strict=options.strict,
            note=record.noting(name, "bodies"),
            kind="body",
        )
        found.clear()


def cleared(outer: GraphModule) -> None:
    """Leave out of ``outer`` what only calls that were replaced read."""
    outer.graph.eliminate_dead_code()
    outer.recompile()


class _Unfit(Exception):
    """A call that stays torch's. Says why."""


def _replace(outer: GraphModule, node: Node, name: str, made: _Tiled) -> None:
    setattr(outer, name, made)
    with outer.graph.inserting_before(node):
        new = outer.graph.call_module(name, (*node.args[:3], *_reads(node, 7), *_reads(node, 8)))
    new.meta = dict(node.meta)
    replace_node(node, new)


def _reads(node: Node, place: int) -> Sequence[Any]:
    """The tensors that the score's function (7) or the mask's (8) reads."""
    found = node.args[place] if len(node.args) > place else ()
    assert isinstance(found, (tuple, list))
    return found


class _Call:
    """One call of ``flex_attention`` in a graph: what it is given."""

    def __init__(self, outer: GraphModule, node: Node, rules: Mapping[Any, Callable[..., Any]]) -> None:
        self.outer, self.node, self.rules = outer, node, rules
        mask: Any = node.args[4]
        self.score, self.mask = _held(outer, node.args[3]), _held(outer, mask[-1])
        self.scale: Any = node.args[5]
        self.query, self.key, self.value = (_value(a) for a in node.args[:3])
        self.mine, self.masks = (tuple(map(_value, _reads(node, place))) for place in (7, 8))

    def tiled(self, name: str) -> Tiling:
        self._check()
        batches, heads, rows, width = self.query.shape
        keys = self.key.shape[2]
        known = all(type(n) is int for n in (batches, rows, keys))
        of = self._scores(None, None)
        narrow = of.masks() and (not known or keys >= _FEWEST_KEYS)
        group, height = _side_by_side(heads), 0
        if known:
            group, height = _tile_shape(batches * heads, rows, keys, group if narrow else None)
            of = self._scores(None if narrow else keys, height if rows % height == 0 else None)
        statistics = any(user.args[1] in (1, 2) for user in self.node.users)
        tile = attention_tile(of, group, (width, self.value.shape[3]), statistics)
        sizes = [n if type(n) is int else None for n in (batches, rows, keys)]
        ranges = visible_keys(of, sizes) if narrow else None
        plan = _Plan(group, height, slice(len(self.mine), None), None, tuple(n is None for n in sizes))
        return Tiling(self.outer, self.node, name, plan, ranges, tile)

    def _check(self) -> None:
        if self.score is None or self.mask is None:
            raise _Unfit(NOT_IN_TILES(why="it holds no graphs"))
        operands = (self.query, self.key, self.value)
        reads = (x for x in (*self.mine, *self.masks) if not isinstance(x, torch.SymInt))
        tensors = (*operands, *reads)
        if not all(isinstance(x, Tensor) and kind_of(x).host for x in tensors):
            raise _Unfit(OTHER_OPERANDS(what="what it reads are not all tensors of the CPU"))
        if len({x.dtype for x in operands}) > 1 or self.query.dtype not in _DTYPES:
            raise _Unfit(OTHER_DTYPES(dtypes=", ".join(sorted({str(x.dtype) for x in operands}))))
        lasting = (n for x in operands for n in (x.shape[1], x.shape[3]))
        if any(map(has_data_sizes, tensors)) or not all(type(n) is int for n in lasting):
            raise _Unfit(RUN_TIME_SIZE(what="a size of its operands"))
        if not isinstance(self.scale, float):
            raise _Unfit(RUN_TIME_SIZE(what="its scale"))
        if any(x.numel() == 0 for x in operands if not has_symbols(x)):
            raise _Unfit(OTHER_OPERANDS(what="one of its operands is empty"))

    def _scores(self, keys: int | None, rows: int | None) -> Scores:
        assert self.score is not None
        assert self.mask is not None
        sizes = itertools.count(14, 2)
        mine, masks = ([_example(x, sizes) for x in of] for of in (self.mine, self.masks))
        heads, dtype = self.query.shape[1], self.query.dtype
        return Scores(self.score, self.mask, self.scale, heads, mine, masks, dtype, keys, rows, self.rules)


def _held(outer: GraphModule, node: Any) -> GraphModule | None:
    found = getattr(outer, str(node.target), None) if isinstance(node, Node) and node.op == "get_attr" else None
    return found if isinstance(found, GraphModule) else None


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, Node) else node


def _example(fake: Tensor | torch.SymInt, sizes: Iterator[int]) -> Example:
    """A contiguous tensor in the place of ``fake``, with one of ``sizes`` for each that is known only at run time."""
    if isinstance(fake, torch.SymInt):
        return next(sizes), None
    free = tuple(dim for dim, n in enumerate(fake.shape) if type(n) is not int)
    shape = [next(sizes) if dim in free else n for dim, n in enumerate(fake.shape)]
    return torch.empty(shape, dtype=fake.dtype), free


def _side_by_side(heads: int) -> int:
    """Of how many heads tiles are made where all else speaks for one: as many as threads, if that divides ``heads``."""
    return next(n for n in range(torch.get_num_threads(), 0, -1) if heads % n == 0)


def _tile_shape(heads: int, rows: int, keys: int, group: int | None) -> tuple[int, int]:
    """How many heads and how many rows a tile has; with a ``group`` given, each tile has keys of its own."""
    scores = _BYTES * torch.get_num_threads() // 4
    height = min(rows, max(32, min(_ROWS, scores // ((group or 1) * keys))))
    height = -(-rows // -(-rows // height))
    fitting = (n for n in range(heads, 0, -1) if heads % n == 0 and n * height * keys <= scores)
    return group or next(fitting, 1), height


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a call is cut: ``group`` heads and at most ``rows`` rows in a tile. At 0 each call's sizes tell how many.

    ``masks`` are the places, among what the functions read, of what the mask's function reads; ``ranges`` gives the
    first and the last visible key of each row; it takes the numbers of batches, rows and keys, where they are ``free``.
    """

    group: int
    rows: int
    masks: slice
    ranges: Boxed | None
    free: tuple[bool, ...]

    def reason(self, narrow: bool) -> Reason:
        keys = "the keys that its rows see" if narrow else "all keys"
        return IN_TILES(heads=self.group, rows=self.rows or "some", keys=keys)

    def spans(self, batches: int, heads: int, rows: int, value: Tensor, reads: Sequence[Any]) -> list[list[int]]:
        """First head, first and last row, first and last key of each tile."""
        keys, narrow = value.shape[1], self.ranges is not None and value.shape[1] >= _FEWEST_KEYS
        height = self.rows or _tile_shape(heads, rows, keys, self.group)[1]
        count = -(-rows // height)
        edges = [rows * i // count for i in range(count + 1)]
        cuts = [
            [head, top, bottom, 0, keys]
            for head in range(0, heads, self.group)
            for top, bottom in itertools.pairwise(edges)
        ]
        if self.ranges is None or not narrow or not _finite(value):
            return cuts
        numbers = itertools.compress((batches, rows, keys), self.free)
        firsts, lasts = (found.tolist() for found in self.ranges([*numbers, *reads[self.masks]]))
        for cut in cuts:
            head, top, bottom, _, _ = cut
            seen = range(head, head + self.group) if len(firsts) > 1 else (0,)
            first = min(min(firsts[h][top:bottom]) for h in seen) // _STEP * _STEP
            last = -(-max(max(lasts[h][top:bottom]) for h in seen) // _STEP) * _STEP
            cut[3:] = (first, min(last, keys)) if first < last else (0, min(_STEP, keys))
        return cuts


def _finite(value: Tensor) -> bool:
    """Whether all elements are finite, of which a sum that overflows gives no proof."""
    return math.isfinite(value.sum(dtype=torch.float32).item())


def _of_each_head(operand: Tensor, batches: int, heads: int) -> Tensor:
    """Keys or values for each head of queries, one matrix after the other."""
    repeated = operand.unsqueeze(2).expand(-1, -1, heads // operand.shape[1], -1, -1)
    return repeated.expand(batches, -1, -1, -1, -1).reshape(batches * heads, *operand.shape[2:])


class _Tiled(torch.nn.Module):
    """A call in tiles, in its place in a graph."""

    def __init__(self, plan: _Plan, run: Boxed) -> None:
        super().__init__()
        self.plan, self.run = plan, run

    def forward(self, *inputs: Any) -> Any:
        with torch.no_grad():
            return self.whole(*(x.resolve_neg() if isinstance(x, Tensor) else x for x in inputs))

    def whole(self, query: Tensor, key: Tensor, value: Tensor, *reads: Any) -> Any:
        plan, (batches, heads, rows, width) = self.plan, query.shape
        queries = query.reshape(batches * heads, rows, width)
        keys, values = (_of_each_head(x, batches, heads) for x in (key, value))
        reads = tuple(r.contiguous() if isinstance(r, Tensor) else r for r in reads)
        made: list[Tensor] = []
        for head, top, bottom, first, last in plan.spans(batches, batches * heads, rows, values, reads):
            group = slice(head, head + plan.group)
            of = (queries[group, top:bottom], keys[group, first:last], values[group, first:last])
            found = self.run([head, top, first, *(x.contiguous() for x in of), *reads])
            if not made:
                made = [x.new_empty((batches * heads, rows, *x.shape[2:])) for x in found]
            for whole, part in zip(made, found, strict=True):
                whole[group, top:bottom] = part
        out, *others = (x.view(batches, heads, *x.shape[1:]) for x in made)
        return (out if query.is_contiguous() else laid_out_like(out, query), *others)
