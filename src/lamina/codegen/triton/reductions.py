"""Reductions of tiles and the accumulators that carry them through loops.

Outside a loop a reduction is one expression of its tile. In a loop every point of the tile keeps a share of its own,
with no exchange between threads, and the shares are joined after the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lamina.codegen.triton.broadcast_loads import points_at_once
from lamina.codegen.triton.expressions import in_float
from lamina.codegen.triton.nest_analysis import NestAnalysis, Span, size_text
from lamina.codegen.triton.online_softmax import Online
from lamina.codegen.triton.source import UnsupportedKernel
from lamina.codegen.triton.text import Text
from lamina.codegen.triton.types import HALVES, kind, lifted, neutral, typed
from lamina.ir.index import as_expr, prod
from lamina.ir.loops import Reduce

__all__ = ["Accumulator", "Reducer"]

_NEIGHBOURS = 8
"""Points of one 16-byte access, which a thread holds: they share one maximum and one sum."""


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A reduction under way: the tile of shares it keeps in variables that begin with ``name``.

    ``paired``: a maximum beside which an online sum is taken.
    """

    eqn: Reduce
    name: str
    span: Span
    online: Online | None = None
    paired: bool = False


class Reducer:
    """Texts of reductions over a nest's tiles."""

    def __init__(self, facts: NestAnalysis) -> None:
        self.facts = facts
        self.fast_sums = facts.schedule.approximate_sums

    # ---- one tile -------------------------------------------------------------------------------------------------

    def tile(self, text: Text, eqn: Reduce, value: str) -> None:
        """Reduce a tile that holds every reduced point."""
        facts = self.facts
        over = facts.span_of_axes(eqn.axes)
        dtype = facts.dtype[eqn.value]
        span = facts.span(eqn.value)
        masks = facts.inside(over)
        if eqn.op == "welford":
            self._tile_moments(text, eqn, value)
            return
        if eqn.op in ("argmax", "argmin"):
            given = self.spread(in_float(value, dtype), span, over, masks, neutral(eqn.op, dtype))
            text.add(f"{eqn.outs[0]}_x = {given}")
            place = self.place(eqn)
            inside = " & ".join(masks)
            self._first_place(text, eqn, f"{eqn.outs[0]}_x", place, inside, span | over, over)
            return
        given = self.spread(in_float(value, dtype), span, over, masks, neutral(eqn.op, dtype))
        text.add(f"{eqn.outs[0]} = {self.rounded(self.fold(eqn.op, given, span | over, over, dtype), eqn)}")

    def spread(self, value: str, span: Span, over: Span, masks: Sequence[str], fill: str) -> str:
        """The value along reduced dimensions it does not vary over, and ``fill`` at points that do not exist."""
        facts = self.facts
        if facts.dims(over - span):
            value = f"tl.broadcast_to({value}, {facts.shape(span | over)})"
        if not masks:
            return value
        return f"tl.where({' & '.join(masks)}, {value}, {fill})"

    def fold(self, op: str, value: str, span: Span, over: Span, dtype: str) -> str:
        """``value``, which varies over ``span``, reduced along the dimensions of ``over``."""
        dims = sorted(self.facts.dim[k] for k in self.facts.dims(over))
        if not dims:
            return value
        logical = op in ("any", "all")
        if logical:
            value = f"({value}).to(tl.int32)"
        scalar = not self.facts.dims(span - over)
        name, extra = self._function(op, dtype)
        if scalar:
            made = f"{name}({value}, axis=None{extra})"
        else:
            made = value
            for dim in reversed(dims):
                made = f"{name}({made}, axis={dim}{extra}, keep_dims=True)"
        if logical:
            return f"{made} != 0"
        return f"{made}.to({typed(lifted(dtype))})" if self._widened(op, dtype) else made

    def _function(self, op: str, dtype: str) -> tuple[str, str]:
        floating = kind(dtype) == "float"
        if op in ("max", "argmax"):
            return ("max_over" if floating else "tl.max"), ""
        if op in ("min", "argmin"):
            return ("min_over" if floating else "tl.min"), ""
        if op == "any":
            return "tl.max", ""
        if op == "all":
            return "tl.min", ""
        if op == "prod":
            return "tl.reduce", ", combine_fn=multiply"
        return "tl.sum", ""

    def _widened(self, op: str, dtype: str) -> bool:
        """Whether Triton reduces small integers in 32 bits."""
        return op != "prod" and kind(dtype) in ("int", "uint") and dtype not in ("int32", "int64", "uint32", "uint64")

    def rounded(self, text: str, eqn: Reduce) -> str:
        """The result in the equation's dtype."""
        return f"{text}.to({typed(eqn.dtype)})" if eqn.dtype in HALVES else text

    def _tile_moments(self, text: Text, eqn: Reduce, value: str) -> None:
        """Mean and sum of squared deviations of a tile, in two passes over registers."""
        facts, (mean, squares) = self.facts, eqn.outs
        dtype = facts.dtype[eqn.value]
        over, span = facts.span_of_axes(eqn.axes), facts.span(eqn.value)
        masks = facts.inside(over)
        given = self.spread(in_float(value, dtype), span, over, masks, "0.0")
        count = self.count(eqn, dtype)
        wide = f"{mean}_wide"
        text.add(f"{mean}_x = {given}")
        text.add(f"{wide} = {self.fold('sum', f'{mean}_x', span | over, over, dtype)} / {count}")
        away = self.spread(f"{mean}_x - {wide}", span | over, over, masks, "0.0")
        text.add(f"{mean}_d = {away}")
        total = self.fold("sum", f"{mean}_d * {mean}_d", span | over, over, dtype)
        text.add(f"{mean} = {self.rounded(wide, eqn)}")
        text.add(f"{squares} = {self.rounded(total, eqn)}")

    def count(self, eqn: Reduce, dtype: str) -> str:
        """Number of reduced points, as a number that divides values of ``dtype``."""
        total = prod(self.facts.axes[a].extent for a in eqn.axes)
        if total.is_int:
            return f"{float(max(total.const, 0))}" if total.const else 'float("nan")'
        return f"({size_text(total)}).to({typed(lifted(dtype))})"

    def place(self, eqn: Reduce) -> str:
        """A point's position among the reduced ones."""
        position, step = as_expr(0), as_expr(1)
        for axis in reversed(eqn.axes):
            position = position + step * as_expr(self.facts.axes[axis])
            step = step * self.facts.axes[axis].extent
        return self.facts.text(self.facts.joined(position))

    def _first_place(
        self, text: Text, eqn: Reduce, value: str, place: str, inside: str, span: Span, over: Span
    ) -> None:
        """The smallest of ``place`` among the points that hold the best value."""
        facts, out = self.facts, eqn.outs[0]
        dtype = facts.dtype[eqn.value]
        best = self.fold(eqn.op, value, span, over, dtype)
        text.add(f"{out}_top = {best}")
        same = f"({value} == {out}_top)"
        if kind(dtype) == "float":
            same = f"({same} | ({value} != {value}))"
        if inside:
            same = f"({same} & {inside})"
        far = "9223372036854775807"
        text.add(f"{out}_at = tl.where({same}, ({place}) + tl.full((), 0, tl.int64), {far})")
        text.add(f"{out} = {self.fold('min', f'{out}_at', span, over, 'int64')}")

    # ---- loops ----------------------------------------------------------------------------------------------------

    def folds(self, eqn: Reduce) -> bool:
        """Whether the points of a loop's tile are added up before they go into the share of their column: where each
        thread holds the same columns of all of the tile's rows, so that a share for each would only take registers.
        """
        facts = self.facts
        over = facts.dims(facts.span_of_axes(eqn.axes))
        if facts.schedule.kind != "mixed" or facts.rank != 2 or eqn.op != "sum" or len(over) != 1:
            return False
        (row,) = over
        (column,) = set(facts.dim) - over
        if facts.blocks[row].role != "loop" or facts.blocks[column].role != "whole":
            return False
        if column not in facts.span(eqn.value):
            return False
        at_once = points_at_once(facts, row, column)
        return at_once is not None and facts.blocks[column].size >= at_once

    def begin(self, text: Text, acc: Accumulator) -> None:
        """Define the shares before the loop."""
        facts, eqn, name = self.facts, acc.eqn, acc.name
        shape = facts.shape(acc.span)
        dtype = facts.dtype[eqn.value]
        held = typed(lifted(dtype))
        if acc.online is not None:
            text.add(f"{name} = tl.full({self.few(acc.span)}, 0.0, {held})")
        elif acc.paired:
            text.add(f'{name} = tl.full({self.few(acc.span)}, float("-inf"), {held})')
        elif eqn.op == "welford":
            some = frozenset(k for k in facts.dims(facts.span_of_axes(eqn.axes)) if facts.ragged(k))
            text.add(f"{name}_n = tl.full({facts.shape(some)}, 0.0, {held})")  # columns share their rows' counts
            for part in ("k", "s", "q"):
                text.add(f"{name}_{part} = tl.full({shape}, 0.0, {held})")
        else:
            text.add(f"{name} = tl.full({shape}, {neutral(eqn.op, dtype)}, {held})")
            if eqn.op in ("argmax", "argmin"):
                text.add(f"{name}_at = tl.full({shape}, -1, tl.int64)")

    def accumulate(self, text: Text, acc: Accumulator, value: str, peers: dict[str, Accumulator]) -> None:
        """Take a tile's values into the shares."""
        facts, eqn, name = self.facts, acc.eqn, acc.name
        dtype = facts.dtype[eqn.value]
        over = facts.span_of_axes(eqn.axes)
        masks = facts.inside(over)
        if acc.online is not None:
            return  # joined with its maximum
        if eqn.op == "welford":
            self._take_moments(text, acc, in_float(value, dtype), " & ".join(masks))
            return
        fill = neutral(eqn.op, dtype)
        given = self.spread(in_float(value, dtype), facts.span(eqn.value), over, masks, fill)
        if self.folds(eqn):
            given = self.fold(eqn.op, given, facts.span(eqn.value) | over, over, dtype)
        if eqn.op in ("argmax", "argmin"):
            self._take_best(text, acc, given, masks)
            return
        partner = next((p for p in peers.values() if p.online and p.online.maximum == eqn.outs[0]), None)
        if partner is not None:
            self._take_online(text, acc, partner, given)
            return
        text.add(f"{name} = {self._join(eqn.op, name, given, dtype)}")

    def _join(self, op: str, a: str, b: str, dtype: str) -> str:
        if op == "sum":
            return f"{a} + {b}" if dtype != "bool" else f"{a} | {b}"
        if op == "prod":
            return f"{a} * {b}"
        if op in ("any", "all"):
            return f"{a} {'|' if op == 'any' else '&'} {b}"
        name = "maximum" if op == "max" else "minimum"
        if kind(dtype) == "float" and lifted(dtype) == "float32":
            return f"tl.{name}({a}, {b}, propagate_nan=tl.PropagateNan.ALL)"
        return f"tl.{name}({a}, {b})" if kind(dtype) != "float" else f"{name}({a}, {b})"

    def exp(self, text: str, dtype: str) -> str:
        """The exponential in a sum beside a maximum."""
        return f"fast_exp({text})" if self.fast_sums and lifted(dtype) == "float32" else f"libdevice.exp({text})"

    def neighbours(self, span: Span) -> int:
        """Points that share a maximum in an online sum: those of one access, where the tile is a single row."""
        facts = self.facts
        if facts.rank != 1 or not facts.dims(span):
            return 1
        (k,) = facts.dims(span)
        return _NEIGHBOURS if facts.blocks[k].size >= 32 * _NEIGHBOURS else 1

    def few(self, span: Span) -> str:
        """Shape of an online sum's shares."""
        share = self.neighbours(span)
        if share == 1:
            return self.facts.shape(span)
        (k,) = self.facts.dims(span)
        return f"({self.facts.blocks[k].size // share},)"

    def _take_online(self, text: Text, top: Accumulator, total: Accumulator, given: str) -> None:
        """Take a tile into a maximum and the sum beside it; a thread's neighbours change their shift together."""
        dtype = self.facts.dtype[top.eqn.value]
        new, own = f"{top.name}_new", f"{top.name}_x"
        share = self.neighbours(top.span)
        text.add(f"{own} = {given}")
        if share > 1:
            (k,) = self.facts.dims(top.span)
            text.add(f"{own} = tl.reshape({own}, ({self.facts.blocks[k].size // share}, {share}))")
            text.add(f"{new} = {self._join('max', top.name, f'max_over({own}, axis=1)', dtype)}")
        else:
            text.add(f"{new} = {self._join('max', top.name, own, dtype)}")
        text.add(f'{new}_shift = tl.where(tl.abs({new}) == float("inf"), 0.0, {new})')
        scaled = f"{total.name} * {self.exp(f'{top.name} - {new}_shift', dtype)}"
        power = self.exp(f"{own} - {new}_shift{'[:, None]' if share > 1 else ''}", dtype)
        added = f"tl.sum({power}, axis=1)" if share > 1 else power
        text.add(f"{total.name} = {scaled} + {added}")
        text.add(f"{top.name} = {new}")

    def _take_best(self, text: Text, acc: Accumulator, given: str, masks: Sequence[str]) -> None:
        name, eqn = acc.name, acc.eqn
        sign = ">" if eqn.op == "argmax" else "<"
        text.add(f"{name}_x = {given}")
        better = f"({name}_x {sign} {name}) | ({name}_at < 0)"
        if kind(self.facts.dtype[eqn.value]) == "float":
            better += f" | (({name}_x != {name}_x) & ({name} == {name}))"
        place = self.place(eqn)
        if len(eqn.axes) > 1:  # loops may go through them in another order
            same = f"({name}_x == {name}) | (({name}_x != {name}_x) & ({name} != {name}))"
            better += f" | (({same}) & ({place} < {name}_at))"
        better = f"({better}) & {' & '.join(masks)}" if masks else better
        text.add(f"{name}_better = {better}")
        text.add(f"{name} = tl.where({name}_better, {name}_x, {name})")
        text.add(f"{name}_at = tl.where({name}_better, {place}, {name}_at)")

    def _take_moments(self, text: Text, acc: Accumulator, value: str, inside: str) -> None:
        """Sums of the distances to each share's first finite value, which keep their digits."""
        name, facts = acc.name, self.facts
        missing = facts.dims(facts.span_of_axes(acc.eqn.axes) - facts.span(acc.eqn.value))
        given = f"tl.broadcast_to({value}, {facts.shape(acc.span)})" if missing else value
        text.add(f"{name}_x = {given}")
        shape = facts.shape(acc.span)
        count = f"{name}_n" if inside or shape == "()" else f"tl.broadcast_to({name}_n, {shape})"
        first = f'({count} == 0) & (tl.abs({name}_x) < float("inf"))'
        text.add(f"{name}_k = tl.where({first}{f' & {inside}' if inside else ''}, {name}_x, {name}_k)")
        away = f"{name}_x - {name}_k"
        text.add(f"{name}_d = {f'tl.where({inside}, {away}, 0.0)' if inside else away}")
        held = typed(lifted(facts.dtype[acc.eqn.value]))
        text.add(f"{name}_n = {name}_n + {f'({inside}).to({held})' if inside else '1.0'}")
        text.add(f"{name}_s = {name}_s + {name}_d")
        text.add(f"{name}_q = {name}_q + {name}_d * {name}_d")

    def finish(self, text: Text, acc: Accumulator) -> None:
        """Join the shares into the result after the loop."""
        facts, eqn, name = self.facts, acc.eqn, acc.name
        dtype = facts.dtype[eqn.value]
        over = facts.span_of_axes(eqn.axes)
        if acc.online is not None:
            return
        if eqn.op == "welford":
            self._finish_moments(text, acc, over, dtype)
        elif eqn.op in ("argmax", "argmin"):
            self._first_place(text, eqn, name, f"{name}_at", f"({name}_at >= 0)", acc.span, over)
            text.add(f"{eqn.outs[0]} = tl.where({eqn.outs[0]} == 9223372036854775807, 0, {eqn.outs[0]})")
        else:
            text.add(f"{eqn.outs[0]} = {self.rounded(self.fold(eqn.op, name, acc.span, over, dtype), eqn)}")

    def finish_online(self, text: Text, top: Accumulator, total: Accumulator) -> None:
        """The sum belonging to a maximum that is already joined."""
        eqn, online = total.eqn, total.online
        assert online is not None
        dtype = self.facts.dtype[eqn.value]
        high, out = top.eqn.outs[0], eqn.outs[0]
        over = self.facts.span_of_axes(eqn.axes)
        if dtype in HALVES:
            raise UnsupportedKernel("an online sum of 16-bit values")
        text.add(f'{out}_shift = tl.where(tl.abs({high}) == float("inf"), 0.0, {high})')
        part = f"{top.name}_own"
        text.add(f'{part} = tl.where(tl.abs({top.name}) == float("inf"), 0.0, {top.name})')
        scaled = f"tl.where({total.name} == 0.0, 0.0, {total.name} * {self.exp(f'{part} - {out}_shift', dtype)})"
        text.add(f"{out} = {self.fold('sum', scaled, total.span, over, dtype)}")
        if not online.guarded:
            text.add(f'{out} = tl.where(tl.abs({high}) == float("inf"), float("nan"), {out})')
        else:
            text.add(f'{out} = tl.where({high} == float("inf"), float("inf"), {out})')

    def _finish_moments(self, text: Text, acc: Accumulator, over: Span, dtype: str) -> None:
        name, (mean, squares) = acc.name, acc.eqn.outs
        text.add(f"{name}_n1 = tl.where({name}_n == 0.0, 1.0, {name}_n)")
        text.add(f"{name}_m = {name}_k + {name}_s / {name}_n1")
        whole = self.fold("sum", f"{name}_n * {name}_m", acc.span, over, dtype)
        text.add(f"{mean}_wide = {whole} / {self.count(acc.eqn, dtype)}")
        text.add(f"{name}_d = {name}_m - {mean}_wide")
        own = f"{name}_q - {name}_s * {name}_s / {name}_n1 + {name}_n * {name}_d * {name}_d"
        text.add(f"{mean} = {self.rounded(f'{mean}_wide', acc.eqn)}")
        text.add(f"{squares} = {self.rounded(self.fold('sum', own, acc.span, over, dtype), acc.eqn)}")
