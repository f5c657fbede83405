"""Rows shared by a cluster of programs: each holds a tile of the row in registers, and they exchange what they reduced.

A row that no program can hold would be read again for each phase. They are a thread-block cluster: the GPU runs
all of them at the same time, so that they may wait for each other. Each writes its part of a reduction to memory, waits
for the others, and joins all parts in the same order, so that all have the same result, to the bit and in every run.

Where a cluster shares a loop, each program goes over a part of the row in tiles, and reads it again for the next
phase: so few rows are under way at once that L2 still holds them.
"""

from __future__ import annotations

from dataclasses import replace

from lamina.codegen.triton.expressions import in_float
from lamina.codegen.triton.nest_analysis import NestAnalysis, size_text
from lamina.codegen.triton.online_softmax import Online
from lamina.codegen.triton.reductions import Accumulator, Reducer
from lamina.codegen.triton.source import UnsupportedKernel
from lamina.codegen.triton.text import Text
from lamina.codegen.triton.types import lifted, neutral
from lamina.ir.index import Expr, as_expr, prod
from lamina.ir.loops import Load, Reduce, Store

__all__ = ["Cluster", "cluster_lines"]

_JOINED = ("sum", "max", "min", "welford")


def cluster_lines(facts: NestAnalysis, k: int) -> list[str]:
    """Definitions of a cluster's index into its row, after those of the blocks beside it.

    Rows that begin anywhere are covered from the last aligned element before them on: whole aligned groups are read
    and written at once, a row's first and last elements are told apart by masks.
    """
    line, size, extent = facts.lines[k], facts.blocks[k].size, size_text(facts.extents[k])
    origin = facts.cluster_origin()
    if origin is None:
        return facts.line_text(k, f"{line}_pid * {size}")
    peel = facts.schedule.peel
    return [
        f"{line}_origin = {facts.text(origin)}",
        f"{line}_shift = {line}_origin % {peel}",
        f"{line}_start = tl.multiple_of({line}_origin // {peel} * {peel}, {peel})",
        f"{line}_own = {line}_pid * {size} + tl.arange(0, {size})",
        f"{line}_group = {line}_own // {peel} * {peel}",
        f"{line} = {line}_own - {line}_shift",
        f"{line}_in = ({line}_own >= {line}_shift) & ({line}_own < {line}_shift + {extent})",
        f"{line}_some = {line}_group < {line}_shift + {extent}",
        f"{line}_full = ({line}_group >= {line}_shift) & ({line}_group + {peel} <= {line}_shift + {extent})",
    ]


class Cluster:
    """The exchanges of one nest's reductions, in memory at ``w0``."""

    def __init__(self, facts: NestAnalysis, reduce: Reducer, k: int) -> None:
        self.facts, self.reduce, self.k = facts, reduce, k
        self.programs = facts.members(k)
        self.padded = 1 << max(self.programs - 1, 1).bit_length()
        self.slots = 0
        self.total = sum(3 if e.op == "welford" else 1 for e in facts.body if isinstance(e, Reduce))
        self.origin = facts.cluster_origin()
        self.at_ends = False
        for eqn in facts.body:
            if isinstance(eqn, Reduce):
                known = eqn.op in _JOINED and lifted(facts.dtype[eqn.value]) == "float32"
                if not known or facts.span_of_axes(eqn.axes) != {k}:
                    raise UnsupportedKernel(f"a cluster that joins {eqn.op} of {facts.dtype[eqn.value]}")

    def workspace(self) -> Expr:
        """Bytes that the exchanges of all clusters take."""
        facts = self.facts
        clusters = prod(facts.pieces(j) for j, b in enumerate(facts.blocks) if b.role == "grid")
        return clusters * as_expr(4 * self.padded * max(self.total, 1))

    def lines(self) -> list[str]:
        """Definitions of where the cluster's parts are, and of the places of its programs there."""
        line = self.facts.lines[self.k]
        if self.k == self.facts.shared_loop:
            share, extent = self.facts.share(self.k), size_text(self.facts.extents[self.k])
            own = [f"{line}_first = {line}_pid * {share}", f"{line}_end = tl.minimum({line}_first + {share}, {extent})"]
        else:
            own = [f"{line}_edge = {self._edge(line)}"]
        return [
            f"{line}_exchange = pid // {self.programs} * {self.padded * self.total}",
            f"{line}_peers = tl.arange(0, {self.padded})",
            *own,
        ]

    def _edge(self, line: str) -> str:
        """Whether a program has points beyond its row."""
        end = f"({line}_pid + 1) * {self.facts.blocks[self.k].size}"
        extent = size_text(self.facts.extents[self.k])
        if self.origin is None:
            return f"{end} > {extent}"
        return f"({line}_pid == 0) | ({end} > {line}_shift + {extent})"

    # ---- reductions -----------------------------------------------------------------------------------------------

    def write(self, text: Text, eqn: Reduce, value: str) -> None:
        """A reduction of the whole row."""
        facts, reduce = self.facts, self.reduce
        over, dtype = facts.span_of_axes(eqn.axes), facts.dtype[eqn.value]
        name = f"{eqn.outs[0]}_acc"
        acc = Accumulator(eqn, name, over)
        if eqn.op == "welford":
            self._moments(text, name, in_float(value, dtype), facts.inside(over))
            self._exchange(text, {f"{name}_{part}": "0.0" for part in ("n", "k", "q")})
            text.add(f"{name}_s = tl.zeros_like({name}_q)")
        else:
            fill = neutral(eqn.op, dtype)
            self._given(text, f"{name}_x", eqn, value, fill)
            text.add(f"{name} = {reduce.fold(eqn.op, f'{name}_x', over, over, dtype)}")
            self._exchange(text, {name: fill})
        reduce.finish(text, acc)

    def gather(self, text: Text, acc: Accumulator, totals: list[Accumulator]) -> None:
        """Make the shares that a program took over its part of a loop those of all programs: one share of each.

        ``totals`` is the sum of exponentials beside a maximum, if there is one.
        """
        reduce, name, eqn = self.reduce, acc.name, acc.eqn
        over, dtype = self.facts.span_of_axes(eqn.axes), self.facts.dtype[eqn.value]
        if eqn.op == "welford":
            shape = self.facts.shape(acc.span)
            text.add(f"{name}_n = tl.broadcast_to({name}_n, {shape})")
            text.add(f"{name}_n1 = tl.where({name}_n == 0.0, 1.0, {name}_n)")
            text.add(f"{name}_m = {name}_k + {name}_s / {name}_n1")
            text.add(f"{name}_all = tl.sum({name}_n, axis=None)")
            text.add(f"{name}_k = tl.sum({name}_n * {name}_m, axis=None) / tl.maximum({name}_all, 1.0)")
            text.add(f"{name}_d = {name}_m - {name}_k")
            own = f"{name}_q - {name}_s * {name}_s / {name}_n1 + {name}_n * {name}_d * {name}_d"
            text.add(f"{name}_q = tl.sum({own}, axis=None)")
            text.add(f"{name}_n = {name}_all")
            self._exchange(text, {f"{name}_{part}": "0.0" for part in ("n", "k", "q")})
            text.add(f"{name}_s = tl.zeros_like({name}_q)")
            return
        values = {name: neutral(eqn.op, dtype)}
        mine = reduce.fold(eqn.op, name, acc.span, over, dtype)
        for total in totals:
            low = total.name
            text.add(f"{name}_mine = {mine}")
            text.add(f'{name}_base = tl.where(tl.abs({name}_mine) == float("inf"), 0.0, {name}_mine)')
            text.add(f'{name}_own = tl.where(tl.abs({name}) == float("inf"), 0.0, {name})')
            power = reduce.exp(f"{name}_own - {name}_base", dtype)
            text.add(f"{low} = tl.sum(tl.where({low} == 0.0, 0.0, {low} * {power}), axis=None)")
            values[low], mine = "0.0", f"{name}_mine"
        text.add(f"{name} = {mine}")
        self._exchange(text, values)

    def _given(self, text: Text, name: str, eqn: Reduce, value: str, fill: str) -> None:
        """``name`` is what the program reduces: ``fill`` at points beyond the row, which few programs have."""
        facts, line = self.facts, self.facts.lines[self.k]
        over = facts.span_of_axes(eqn.axes)
        given = self.reduce.spread(in_float(value, facts.dtype[eqn.value]), facts.span(eqn.value), over, (), fill)
        text.add(f"{name} = {given}")
        masks = facts.inside(over)
        if masks:
            text.open(f"if {line}_edge:")
            text.add(f"{name} = tl.where({' & '.join(masks)}, {name}, {fill})")
            text.close()

    def write_online(self, text: Text, top: Reduce, total: Reduce, online: Online, value: str) -> bool:
        """A row's maximum and the sum of exponentials that stands on it, exchanged together.

        Whether the exponentials themselves are defined: those of the program's own maximum, multiplied.
        """
        facts, reduce = self.facts, self.reduce
        over, dtype = facts.span_of_axes(top.axes), facts.dtype[top.value]
        high, low = f"{top.outs[0]}_acc", f"{total.outs[0]}_acc"
        fill = neutral("max", dtype)
        self._given(text, f"{high}_x", top, value, fill)
        text.add(f"{high} = {reduce.fold('max', f'{high}_x', over, over, dtype)}")
        text.add(f'{high}_shift = tl.where(tl.abs({high}) == float("inf"), 0.0, {high})')
        power = f"{total.value}_own"
        text.add(f"{power} = {reduce.exp(f'{high}_x - {high}_shift', dtype)}")
        text.add(f"{low} = {reduce.fold('sum', power, over, over, dtype)}")
        text.add(f"{high}_mine = {high}")
        self._exchange(text, {high: fill, low: "0.0"})
        first = Accumulator(top, high, over, paired=True)
        reduce.finish(text, first)
        reduce.finish_online(text, first, Accumulator(total, low, over, online))
        exact = facts.schedule.approximate_sums and not facts.schedule.approximate
        if exact or facts.dtype[total.value] != "float32":
            return False
        away = reduce.exp(f"{high}_shift - {total.outs[0]}_shift", dtype)
        text.add(f'{high}_factor = tl.where({high}_mine == float("-inf"), 0.0, {away})')
        text.add(f"{total.value} = {power} * {high}_factor")
        return True

    def _moments(self, text: Text, name: str, value: str, masks: list[str]) -> None:
        """Count, mean and sum of squared deviations of the program's own points."""
        inside = " & ".join(masks)
        size = self.facts.blocks[self.k].size
        text.add(f"{name}_n = {f'tl.sum(({inside}).to(tl.float32), axis=None)' if inside else f'{float(size)}'}")
        text.add(f"{name}_x = {f'tl.where({inside}, {value}, 0.0)' if inside else value}")
        text.add(f"{name}_k = tl.sum({name}_x, axis=None) / {f'tl.maximum({name}_n, 1.0)' if inside else f'{name}_n'}")
        away = f"{name}_x - {name}_k"
        text.add(f"{name}_d = {f'tl.where({inside}, {away}, 0.0)' if inside else away}")
        text.add(f"{name}_q = tl.sum({name}_d * {name}_d, axis=None)")

    def _exchange(self, text: Text, values: dict[str, str]) -> None:
        """Each name's number becomes the vector of all programs' numbers, with its filling beyond the last."""
        line = self.facts.lines[self.k]
        places = {}
        for name in values:
            places[name] = f"w0 + {line}_exchange + {self.slots * self.padded}"
            text.add(f"tl.store({places[name]} + {line}_pid, {name})")
            self.slots += 1
        text.add(f"meet({self.programs})")
        for name, fill in values.items():
            mask = f", mask={line}_peers < {self.programs}, other={fill}" if self.padded != self.programs else ""
            text.add(f'{name} = tl.load({places[name]} + {line}_peers{mask}, cache_modifier=".cg")')

    # ---- memory ---------------------------------------------------------------------------------------------------

    def meets(self, index: Expr) -> bool:
        """Whether an access goes along rows that begin anywhere, in aligned groups."""
        facts = self.facts
        return self.origin is not None and index - self.origin == as_expr(facts.axes[facts.blocks[self.k].axes[0]])

    def pointer(self, buffer: str) -> str:
        """Addresses of such an access."""
        line = self.facts.lines[self.k]
        return f"{buffer} + {line}_start + {line}_own"

    def load(self, eqn: Load) -> str:
        """Such a load: a group that holds any point of the row is read as a whole."""
        mask = f"{self.facts.lines[self.k]}_{'in' if self.at_ends else 'some'}"
        return f"tl.load({self.pointer(eqn.buffer)}, mask={mask})"

    def store(self, text: Text, eqn: Store, value: str) -> None:
        """Such a store: of groups that lie in the row."""
        mask = f"{self.facts.lines[self.k]}_{'in' if self.at_ends else 'full'}"
        text.add(f"tl.store({self.pointer(eqn.buffer)}, {value}, mask={mask})")

    def begin_ends(self, text: Text) -> None:
        """Go on with a tile of the row's first and last group, as far as they are not full: the first program's."""
        facts, k = self.facts, self.k
        line, extent, peel = facts.lines[k], size_text(facts.extents[k]), facts.schedule.peel
        self.at_ends = True
        facts.blocks = tuple(replace(b, size=2 * peel) if j == k else b for j, b in enumerate(facts.blocks))
        text.add(f"{line}_end = tl.arange(0, {2 * peel})")
        text.add(f"{line}_tail = ({line}_shift + {extent}) // {peel} * {peel}")
        text.add(f"{line}_own = tl.where({line}_end < {peel}, {line}_end, {line}_tail + {line}_end - {peel})")
        text.add(f"{line} = {line}_own - {line}_shift")
        first = f"({line}_shift > 0) & ({line}_own >= {line}_shift)"
        last = f"{line}_own < {line}_shift + {extent}"
        text.add(f"{line}_in = ({line}_pid == 0) & tl.where({line}_end < {peel}, {first}, {last})")
