"""Memory accesses of a nest: addresses of a tile's points, the masks they are touched under, loads, stores, checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lamina.codegen.triton.broadcast_loads import broadcast_loads
from lamina.codegen.triton.cluster import Cluster
from lamina.codegen.triton.nest_analysis import NestAnalysis, Span
from lamina.codegen.triton.operands import Operands
from lamina.codegen.triton.reductions import Reducer
from lamina.codegen.triton.source import UnsupportedKernel
from lamina.codegen.triton.text import Text
from lamina.codegen.triton.turns import Turns, put_together, taken_apart
from lamina.codegen.triton.types import literal
from lamina.ir.index import Expr, as_expr
from lamina.ir.loops import Check, Load, Store, axes_of

__all__ = ["Memory"]

_ATOMIC = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint32", "uint64")
"""Types that the GPU adds to memory in one operation."""
_HALF = ("float16", "bfloat16")


class Memory:
    """Accesses of a nest's equations to memory.

    ``cluster`` has accesses of its own along the rows it shares. ``first_check`` numbers the nest's Checks among the
    kernel's.
    """

    def __init__(
        self, facts: NestAnalysis, operands: Operands, reduce: Reducer, cluster: Cluster | None, first_check: int = 0
    ) -> None:
        self.facts, self.operands, self.reduce, self.cluster = facts, operands, reduce, cluster
        self.first_check = first_check
        self._alongside = broadcast_loads(facts)
        self._aligned: dict[int, Expr] = {}
        self._done: set[int] = set()

    @contextmanager
    def aligned(self, k: int, origin: Expr) -> Iterator[None]:
        """Meanwhile the tile of block ``k`` is in the aligned middle of a row whose first element is ``origin``."""
        self._aligned[k] = origin
        yield
        del self._aligned[k]

    # ---- addresses and masks ----------------------------------------------------------------------------------------

    def _pointer(self, buffer: str, index: Expr, span: Span) -> str:
        """Address of every point of ``span``."""
        facts = self.facts
        for k, origin in self._aligned.items():
            if index - origin == as_expr(facts.axes[facts.blocks[k].axes[0]]) and facts.dims(span) == {k}:
                return f"{buffer} + {facts.lines[k]}_start + {facts.lines[k]}_own"
        scalar, vector = facts.parts(index)
        text = f"{buffer} + {scalar}" if scalar else buffer
        if vector:
            text = f"{text} + ({vector})"
        if facts.dims(span) != facts.dims(facts.expr_span(index)):
            text = f"{text} + tl.zeros({facts.shape(span)}, tl.int32)"
        return text

    def _mask(self, eqn: Load | Store, span: Span) -> list[str]:
        """Conditions under which memory is touched."""
        masks = self.facts.inside(span)
        masks += [self.operands.value(check.cond) for check in self.facts.guards(eqn)]
        if eqn.mask is not None:
            masks.append(self.operands.value(eqn.mask))
        return list(dict.fromkeys(masks))

    def _first(self, span: Span) -> list[str]:
        """Conditions that pick one of the programs that would all do the same."""
        facts = self.facts
        shared = [k for k, b in enumerate(facts.blocks) if b.role in ("grid", "cluster")]
        alone = [k for k in shared if k not in span and facts.pieces(k) != 1]
        alone += [k for k in (facts.shared_loop,) if k is not None and k not in span]
        return [f"({facts.lines[k]}_pid == 0)" for k in alone]

    def _once(self, eqn: Store, span: Span) -> list[str]:
        """Conditions that pick one of the points of a block which would all do the same; none where the nest reads what
        is stored, as each point has to find there what it left.

        H200, a condition of each row stored by each of its 1702 points, beside 83 M results: 814 us, by one 289.
        """
        facts = self.facts
        if any(isinstance(e, Load) and e.buffer == eqn.buffer for e in facts.body):
            return []
        varies = axes_of(eqn, facts.values).union(*(axes_of(check, facts.values) for check in facts.guards(eqn)))
        return [f"({a} == 0)" for k in sorted(span) for a in facts.blocks[k].axes if a not in varies]

    # ---- accesses ---------------------------------------------------------------------------------------------------

    def load(self, eqn: Load) -> str:
        """The expression of a load."""
        facts = self.facts
        if self.cluster is not None and self.cluster.meets(eqn.index[0]) and eqn.mask is None:
            return self.cluster.load(eqn)
        span = facts.eqn_span(eqn)
        row = self._alongside.get(facts.use_def.positions[eqn.out])
        text = self._pointer(eqn.buffer, eqn.index[0], span if row is None else span | {row})
        masks = self._mask(eqn, span)
        if masks:
            text += f", mask={' & '.join(masks)}"
        if eqn.mask is not None:
            text += f", other={literal(eqn.fill, eqn.dtype)}"
        if facts.schedule.evict_first and eqn.index[0].axes() == facts.axes.keys():
            text += ', eviction_policy="evict_first"'
        if eqn.buffer in facts.fresh:
            text += ', cache_modifier=".cg"'
        return f"tl.load({text})"

    def store(self, text: Text, eqn: Store) -> None:
        """Write a store, or an addition to what is stored."""
        facts = self.facts
        span = facts.eqn_span(eqn)
        value = self.operands.value(eqn.value)
        if facts.dims(span) and not facts.dims(facts.span(eqn.value)):
            value = f"tl.broadcast_to({value}, {facts.shape(span)})"
        if eqn.mode != "set":
            self._add(text, eqn, span, value)
        elif eqn.mask is None and self.cluster is not None and self.cluster.meets(eqn.index[0]):
            self.cluster.store(text, eqn, value)
        else:
            pointer = self._pointer(eqn.buffer, eqn.index[0], span)
            masks = [*self._mask(eqn, span), *self._first(span), *self._once(eqn, span)]
            text.add(f"tl.store({pointer}, {value}{_masked(masks)})")

    def by_turns(self, text: Text, position: int) -> bool:
        """Write the access at ``position`` with those that it takes turns with, at the first of loads and the last of
        stores; whether it is one of such.
        """
        turns = self.facts.turns.get(position)
        if turns is None:
            return False
        eqns = [self.facts.body[p] for p in turns.positions]
        loads, stores = [e for e in eqns if isinstance(e, Load)], [e for e in eqns if isinstance(e, Store)]
        if any(self._once(e, self.facts.eqn_span(e)) for e in stores):
            return False
        if loads and not self._done.intersection(turns.positions):
            self._load_together(text, turns, loads)
        self._done.add(position)
        if stores and self._done.issuperset(turns.positions):
            self._store_together(text, turns, stores)
        return True

    def _load_together(self, text: Text, turns: Turns, eqns: Sequence[Load]) -> None:
        span = self._last() | self.facts.expr_span(turns.rest)
        pointer, masks = self._together(turns, eqns[0].buffer, span)
        tile = f"tl.load({pointer}{_masked(masks)})"
        text.extend(taken_apart(tile, [e.out for e in eqns], self._shape(span)))

    def _store_together(self, text: Text, turns: Turns, eqns: Sequence[Store]) -> None:
        span = self._last().union(self.facts.expr_span(turns.rest), *(self.facts.eqn_span(e) for e in eqns))
        pointer, masks = self._together(turns, eqns[0].buffer, span)
        shape = self.facts.shape(span)
        held = f".to({eqns[0].buffer}.dtype.element_ty)"
        values = [f"tl.broadcast_to({self.operands.value(e.value)}, {shape}){held}" for e in eqns]
        text.add(f"tl.store({pointer}, {put_together(values, self._shape(span))}{_masked(masks)})")

    def _last(self) -> Span:
        """The block along the tile's last dimension."""
        return frozenset({max(self.facts.dim, key=self.facts.dim.__getitem__)})

    def _shape(self, span: Span) -> list[int]:
        return [self.facts.blocks[k].size if k in span else 1 for k in self.facts.dim]

    def _together(self, turns: Turns, buffer: str, span: Span) -> tuple[str, list[str]]:
        """Addresses of the elements that take turns at points of ``span``, and the conditions that they exist."""
        facts = self.facts
        (k,) = self._last()
        line = f"{facts.lines[k]}_by{turns.step}"
        scalar, vector = facts.parts(turns.rest)
        # Added to the address one by one: the sum of two numbers of 32 bits may have more.
        pointer = " + ".join([buffer, *([scalar] if scalar else []), *([f"({vector})"] if vector else []), line])
        inside = [f"{line}_in" if name == f"{facts.lines[k]}_in" else name for name in facts.inside(span)]
        return pointer, [*inside, *self._first(span)]

    def _add(self, text: Text, eqn: Store, span: Span, value: str) -> None:
        """Add to memory that other points add to as well: those of the program's own tile are added up before."""
        facts, place = self.facts, self.facts.expr_span(eqn.index[0])
        dtype = facts.buffers[eqn.buffer]
        masks = self._mask(eqn, span) + self._first(span)
        pointer = self._pointer(eqn.buffer, eqn.index[0], span)
        if dtype == "bool":
            text.add(f"tl.store({pointer}, True{_masked([*masks, value])})")
            return
        if dtype not in _ATOMIC:
            raise UnsupportedKernel(f"an atomic addition of {dtype}")
        lost = facts.dims(span - place)
        if lost and eqn.mask is None and not facts.guards(eqn) and dtype not in _HALF:
            given = self.reduce.spread(value, span, lost, facts.inside(lost), "0")
            value = self.reduce.fold("sum", given, span, lost, dtype)
            masks = facts.inside(place) + self._first(span)
            pointer = self._pointer(eqn.buffer, eqn.index[0], place)
        text.add(f'tl.atomic_add({pointer}, {value}{_masked(masks)}, sem="relaxed")')

    def check(self, text: Text, position: int, eqn: Check) -> None:
        """Write the Check at ``position``: where it does not hold, its number is left in memory."""
        facts = self.facts
        span = facts.eqn_span(eqn)
        masks = [f"~{self.operands.value(eqn.cond)}", *facts.inside(span), *self._first(span)]
        pointer = "failed" + (f" + tl.zeros({facts.shape(span)}, tl.int32)" if facts.dims(span) else "")
        number = self.first_check + facts.checks.index(position) + 1
        text.add(f"tl.store({pointer}, {number}{_masked(masks)})")
        # Stops the GPU's work, as eager's assertion does, so that nobody goes on with a wrong result.
        text.add(f"tl.device_assert(~({' & '.join(masks)}), {eqn.message!r})")


def _masked(masks: list[str]) -> str:
    """The argument that gives an access its mask."""
    return f", mask={' & '.join(masks)}" if masks else ""
