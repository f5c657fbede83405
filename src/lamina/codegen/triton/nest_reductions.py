"""How each reduction of a nest is done: on one tile, carried through a loop, or exchanged by a cluster of programs."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.codegen.triton.cluster import Cluster
from lamina.codegen.triton.nest_analysis import NestAnalysis, Span
from lamina.codegen.triton.online_softmax import online_sums
from lamina.codegen.triton.operands import Operands
from lamina.codegen.triton.reciprocals import Reciprocals
from lamina.codegen.triton.reductions import Accumulator, Reducer
from lamina.codegen.triton.text import Text
from lamina.ir.loops import Reduce

__all__ = ["NestReductions"]


class NestReductions:
    """The reductions of a nest that loops carry, and those that were written together with another one.

    ``cluster``: the programs that have a tile of each row; ``sharing``: those that have a part of a loop each.
    """

    def __init__(self, facts: NestAnalysis, operands: Operands, reduce: Reducer, reciprocals: Reciprocals) -> None:
        self.facts, self.operands, self.reduce, self.reciprocals = facts, operands, reduce, reciprocals
        self.onlines = online_sums(facts.body) if facts.schedule.online else {}
        self.cluster = None if facts.cluster is None else Cluster(facts, reduce, facts.cluster)
        self.sharing = None if facts.shared_loop is None else Cluster(facts, reduce, facts.shared_loop)
        self.clusters = [cluster for cluster in (self.cluster, self.sharing) if cluster is not None]
        self._accumulators: dict[int, Accumulator] = {}
        self._joined: set[int] = set()

    def is_carried(self, position: int) -> bool:
        """Whether a reduction has begun and is not finished."""
        return position in self._accumulators

    def is_joined(self, position: int) -> bool:
        """Whether an equation was written together with a cluster's maximum."""
        return position in self._joined and self.cluster is not None and not self.cluster.at_ends

    def completes(self, position: int, opened: Span) -> bool:
        """Whether a reduction needs a loop that is not open, and so ends a phase of what the open ones contain."""
        return bool(self._ahead(position, opened)) and not self.repeated(position, opened)

    def repeated(self, position: int, opened: Span) -> Span:
        """The loops, not open, that a reduction goes through in each tile of another loop: its results vary over it."""
        over, eqn, facts = self._ahead(position, opened), self.facts.body[position], self.facts
        if not over or not isinstance(eqn, Reduce):
            return frozenset()
        kept = facts.span(eqn.value) - facts.span_of_axes(eqn.axes)
        return over if any(k in facts.loops and k not in opened for k in kept) else frozenset()

    def _ahead(self, position: int, opened: Span) -> Span:
        """The loops, not open, that a reduction which has not begun goes through."""
        eqn, facts = self.facts.body[position], self.facts
        if not isinstance(eqn, Reduce) or self.is_carried(position):
            return frozenset()
        return frozenset(k for k in facts.span_of_axes(eqn.axes) if k in facts.loops and k not in opened)

    # ---- through loops ----------------------------------------------------------------------------------------------

    def begin(self, text: Text, positions: Sequence[int]) -> None:
        """Define the shares of reductions that the next loop carries."""
        for p in positions:
            self._accumulators[p] = self._accumulator(p, positions)
            self.reduce.begin(text, self._accumulators[p])

    def _accumulator(self, position: int, together: Sequence[int]) -> Accumulator:
        eqn, facts = self.facts.body[position], self.facts
        assert isinstance(eqn, Reduce)
        over = facts.span_of_axes(eqn.axes)
        span = facts.span(eqn.value) | over
        paired = any(o.maximum == eqn.outs[0] and p in together for p, o in self.onlines.items())
        if self.reduce.folds(eqn):
            span -= over
        return Accumulator(eqn, f"{eqn.outs[0]}_acc", facts.dims(span), self.onlines.get(position), paired)

    def finish(self, text: Text, positions: Sequence[int]) -> None:
        """Join the shares of the reductions that a loop completed."""
        for p in positions:
            acc = self._accumulators.pop(p)
            if acc.online is None:
                waiting = (self._accumulators.get(q) for q in positions)
                totals = [t for t in waiting if t and t.online and t.online.maximum == acc.eqn.outs[0]]
                if self.sharing is not None:
                    self.sharing.gather(text, acc, totals)
                self.reduce.finish(text, acc)
                for total in totals:
                    self.reduce.finish_online(text, acc, total)
                    self.reciprocals.define(text, total.eqn)

    # ---- at a tile --------------------------------------------------------------------------------------------------

    def write(self, text: Text, position: int, eqn: Reduce) -> None:
        """Write what a reduction does with the tile at hand."""
        acc, value = self._accumulators.get(position), self.operands.value(eqn.value)
        if self.cluster is not None:
            self._exchange(text, self.cluster, eqn, value)
        elif acc is None:
            self.reduce.tile(text, eqn, value)
        else:
            peers = {a.eqn.outs[0]: a for a in self._accumulators.values()}
            self.reduce.accumulate(text, acc, value, peers)

    def _exchange(self, text: Text, cluster: Cluster, eqn: Reduce, value: str) -> None:
        """A reduction of a row that programs share; the sum beside a maximum is joined with it."""
        for p, online in self.onlines.items():
            total = self.facts.body[p]
            if online.maximum == eqn.outs[0] and isinstance(total, Reduce):
                self._joined.add(p)
                if cluster.write_online(text, eqn, total, online, value):
                    self._joined.add(self.facts.use_def.positions[total.value])
                self.reciprocals.define(text, total)
                return
        cluster.write(text, eqn, value)
