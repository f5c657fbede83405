"""What makes a nest valid: names, types, axes, indices and stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

from lamina.base.dtypes import DTYPES
from lamina.errors import InvalidIR
from lamina.ir.index import Axis, Div, Expr, Loaded, Mod, Size
from lamina.ir.loops import (
    ERRORS,
    Buffer,
    Check,
    Compute,
    Constant,
    Equation,
    Index,
    Load,
    Nest,
    Random,
    Reduce,
    Scan,
    Source,
    Store,
    defined,
    operands,
)
from lamina.ir.loops_print import equation_text
from lamina.ir.ops import OPS, REDUCTIONS, SCANS, result_dtype

__all__ = ["verify_nest"]

_AROUND = 5
"""Lines shown before and after the offending equation."""

_LOGICAL = frozenset(("any", "all"))


def verify_nest(
    nest: Nest, buffers: Mapping[str, Buffer], sizes: set[str] | None = None, sources: Iterable[Source] = ()
) -> None:
    """Raise ``InvalidIR`` unless the nest obeys every rule.

    ``sizes`` are the sizes that may be used (any, when ``None``); with ``sources``, every equation must come from them.
    """
    _Verifier(nest, buffers, sizes, sources).run()


class _Verifier:
    def __init__(
        self, nest: Nest, buffers: Mapping[str, Buffer], sizes: set[str] | None, sources: Iterable[Source]
    ) -> None:
        self.nest, self.buffers, self.sizes = nest, buffers, sizes
        self.sources = {s.node for s in sources}
        self.places = {s.node: s.place for s in sources if s.place}
        self.axes = {axis.name: axis for axis in nest.axes}
        self.dtypes: dict[str, str] = {}
        self.varies: dict[str, frozenset[str]] = {}
        self.checked: set[Expr] = set()
        self.at = -1
        self.empty = any(axis.extent == 0 for axis in nest.axes)

    def run(self) -> None:
        if len(self.axes) != len(self.nest.axes):
            self.fail("two axes have the same name")
        for axis in self.nest.axes:
            for atom in axis.extent.atoms() if axis.extent.terms else ():
                if isinstance(atom, Axis | Loaded):
                    self.fail(f"the extent of axis {axis.name} depends on {atom.name}")
            self.sizes_exist(axis.extent)
        for at, eqn in enumerate(self.nest.body):
            self.at = at
            self.equation(eqn)
        self.at = -1
        self.races()

    def fail(self, what: str) -> NoReturn:
        """Raise, with the lines around the equation and the user's line it comes from."""
        body = self.nest.body
        if self.at < 0:
            raise InvalidIR(f"nest {self.nest.name}: {what}")
        first, last = max(0, self.at - _AROUND), min(len(body), self.at + _AROUND + 1)
        lines = [f"  {'>' if k == self.at else ' '} {k:4d} {equation_text(body[k])}" for k in range(first, last)]
        where = next((self.places[name] for name in body[self.at].origin if name in self.places), "")
        raise InvalidIR("\n".join([f"nest {self.nest.name}, equation {self.at}: {what}", *lines]), where=where)

    def equation(self, eqn: Equation) -> None:
        if self.sources and not eqn.origin:
            self.fail("the equation has no origin")
        for name in eqn.origin if self.sources else ():
            if name not in self.sources:
                self.fail(f"the equation comes from {name}, which is not among the program's sources")
        for name in operands(eqn):
            if name not in self.dtypes:
                self.fail(f"value {name} is used before it is defined")
        for name in defined(eqn):
            if name in self.dtypes:
                self.fail(f"value {name} is defined twice")
            if name in self.axes or (self.sizes is not None and name in self.sizes):
                self.fail(f"value {name} has the name of an axis or a size")
        varies = self.check(eqn)
        for name in defined(eqn):
            assert not isinstance(eqn, Store | Check)
            if eqn.dtype not in DTYPES:
                self.fail(f"unknown dtype {eqn.dtype!r}")
            self.dtypes[name] = eqn.dtype
            self.varies[name] = varies

    def check(self, eqn: Equation) -> frozenset[str]:
        """The rules of one kind of equation; returns the axes its value varies over."""
        if isinstance(eqn, Compute):
            self.compute(eqn)
        elif isinstance(eqn, Load):
            if eqn.dtype != self.buffer(eqn).dtype:
                self.fail(f"{eqn.buffer} holds {self.buffers[eqn.buffer].dtype}, not {eqn.dtype}")
            self.access(eqn)
        elif isinstance(eqn, Store):
            self.store(eqn)
        elif isinstance(eqn, Constant):
            self.constant(eqn)
        elif isinstance(eqn, Index):
            self.index(eqn.expr)
        elif isinstance(eqn, Random):
            self.random(eqn)
        elif isinstance(eqn, Reduce):
            self.reduce(eqn)
            return self.inputs(eqn) - set(eqn.axes)
        elif isinstance(eqn, Scan):
            self.scan(eqn)
            return self.inputs(eqn) | {eqn.axis}
        elif self.dtypes[eqn.cond] != "bool":
            self.fail(f"the condition {eqn.cond} is {self.dtypes[eqn.cond]}, not bool")
        elif eqn.error not in ERRORS:
            self.fail(f"no check raises {eqn.error}")
        return self.inputs(eqn)

    def inputs(self, eqn: Equation) -> frozenset[str]:
        """Axes that the operands and indices of an equation vary over."""
        found = frozenset[str]().union(*(self.varies[name] for name in operands(eqn)))
        if isinstance(eqn, Load | Store):
            return found.union(*(e.axes() for e in eqn.index if e.terms))
        if isinstance(eqn, Index | Random):
            return found | (eqn.expr if isinstance(eqn, Index) else eqn.index).axes()
        return found

    # ---- kinds of equations -----------------------------------------------------------------------------------

    def random(self, eqn: Random) -> None:
        self.index(eqn.index)
        if isinstance(eqn.stream, Expr):
            self.stream(eqn.stream)
        if self.dtypes[eqn.seed] != "int64" or self.varies[eqn.seed]:
            self.fail(f"seed {eqn.seed} is not one int64")
        if eqn.dtype not in DTYPES or not DTYPES[eqn.dtype].is_float:
            self.fail("random numbers are floating point")

    def scan(self, eqn: Scan) -> None:
        if eqn.op not in SCANS:
            self.fail(f"no scan is called {eqn.op}")
        self.axis(eqn.axis)
        if eqn.dtype != self.dtypes[eqn.value]:
            self.fail(f"the scan of {self.dtypes[eqn.value]} values gives {eqn.dtype}")

    def compute(self, eqn: Compute) -> None:
        op = OPS.get(eqn.op)
        if op is None:
            self.fail(f"no operation is called {eqn.op}")
        if len(eqn.ins) != op.arity:
            self.fail(f"{eqn.op} takes {op.arity} operands, not {len(eqn.ins)}")
        kinds = [self.dtypes[name] for name in eqn.ins]
        if op.result == "where":
            if kinds[0] != "bool":
                self.fail(f"the condition {eqn.ins[0]} is {kinds[0]}, not bool")
            kinds = kinds[1:]
        if len(set(kinds)) != 1:
            self.fail(f"operands of {eqn.op} have the dtypes {', '.join(kinds)}")
        wanted = result_dtype(op, kinds[0], eqn.dtype)
        if eqn.dtype != wanted:
            self.fail(f"{eqn.op} on {kinds[0]} gives {wanted}, not {eqn.dtype}")

    def constant(self, eqn: Constant) -> None:
        kind = DTYPES[eqn.dtype].kind if eqn.dtype in DTYPES else ""
        if kind in ("int", "uint") and not isinstance(eqn.value, int):
            self.fail(f"{eqn.value} is no {eqn.dtype}")
        if kind == "bool" and eqn.value not in (0, 1):
            self.fail(f"{eqn.value} is no bool")

    def stream(self, expr: Expr) -> None:
        self.index(expr)
        if any(not isinstance(atom, Size) for atom in expr.atoms()):
            self.fail(f"the random stream {expr} is not one number")

    def reduce(self, eqn: Reduce) -> None:
        op = REDUCTIONS.get(eqn.op)
        if op is None:
            self.fail(f"no reduction is called {eqn.op}")
        if len(eqn.outs) != op.results:
            self.fail(f"{eqn.op} gives {op.results} results, not {len(eqn.outs)}")
        if not eqn.axes or len(set(eqn.axes)) != len(eqn.axes):
            self.fail("a reduction names each of its axes once, and at least one")
        for name in eqn.axes:
            self.axis(name)
        kind = self.dtypes[eqn.value]
        if eqn.op in _LOGICAL and kind != "bool":
            self.fail(f"{eqn.op} of {kind} values")
        wanted = kind if op.result == "same" else op.result
        if eqn.dtype != wanted:
            self.fail(f"{eqn.op} of {kind} values gives {wanted}, not {eqn.dtype}")

    def store(self, eqn: Store) -> None:
        buffer = self.buffer(eqn)
        if eqn.mode not in ("set", "add"):
            self.fail(f"unknown mode {eqn.mode!r}")
        if self.dtypes[eqn.value] != buffer.dtype:
            self.fail(f"a {self.dtypes[eqn.value]} value is stored in {eqn.buffer}, which holds {buffer.dtype}")
        self.access(eqn)
        covered = frozenset[str]().union(*(e.axes() for e in eqn.index if e.terms))
        for e in eqn.index:
            for atom in e.atoms() if e.terms else ():
                if isinstance(atom, Loaded):
                    covered |= self.varies[atom.name]
        mask = self.varies[eqn.mask] if eqn.mask is not None else frozenset()
        lost = {a for a in (self.varies[eqn.value] | mask) - covered if self.axes[a].extent != 1}
        if lost and eqn.mode == "set":
            self.fail(f"the value varies over {', '.join(sorted(lost))}, the index does not: who writes last would win")

    # ---- indices ----------------------------------------------------------------------------------------------

    def buffer(self, eqn: Load | Store) -> Buffer:
        found = self.buffers.get(eqn.buffer)
        if found is None:
            self.fail(f"unknown buffer {eqn.buffer}")
        return found

    def axis(self, name: str) -> None:
        if name not in self.axes:
            self.fail(f"the nest has no axis {name}")

    def access(self, eqn: Load | Store) -> None:
        buffer = self.buffer(eqn)
        if len(eqn.index) != len(buffer.shape):
            self.fail(f"{eqn.buffer} has {len(buffer.shape)} dimensions, the index {len(eqn.index)}")
        if eqn.mask is not None and self.dtypes[eqn.mask] != "bool":
            self.fail(f"the mask {eqn.mask} is {self.dtypes[eqn.mask]}, not bool")
        for expr, extent in zip(eqn.index, buffer.shape, strict=True):
            self.index(expr)
            if eqn.mask is None and not self.empty:
                self.inside(eqn.buffer, expr, extent)

    def inside(self, buffer: str, expr: Expr, extent: Expr) -> None:
        """Fail where the index provably leaves ``[0, extent)`` at some point."""
        low, high = expr.bounds()
        attained = all(len(mono) == 1 and isinstance(mono[0], Axis) for mono, _ in expr.terms)
        if low is not None and low < 0 and (attained or (high is not None and (-high - 1).nonnegative())):
            self.fail(f"index {expr} of {buffer} reaches {low}")
        if high is not None and attained and (high - extent).nonnegative():
            self.fail(f"index {expr} of {buffer} reaches {high}, past its extent {extent}")
        if low is not None and extent.is_int and low >= extent.const:
            self.fail(f"index {expr} of {buffer} is at least {low}, past its extent {extent}")

    def index(self, expr: Expr) -> None:
        """The atoms of an index expression exist."""
        if not expr.terms or expr in self.checked:
            return
        for atom in expr.atoms():
            if isinstance(atom, Axis):
                self.axis(atom.name)
                if self.axes[atom.name] != atom:
                    self.fail(f"axis {atom.name} has extent {self.axes[atom.name].extent} and here {atom.extent}")
            elif isinstance(atom, Loaded):
                kind = self.dtypes[atom.name]
                if not DTYPES[kind].is_integer:
                    self.fail(f"the index {atom.name} is {kind}, not an integer")
                self.sizes_exist(atom.bound)
            elif isinstance(atom, Div | Mod) and atom.den.is_int and atom.den.const <= 0:
                self.fail(f"division by {atom.den}")
        self.sizes_exist(expr)
        self.checked.add(expr)

    def sizes_exist(self, expr: Expr) -> None:
        if self.sizes is None or not expr.terms:
            return
        for atom in expr.atoms():
            if isinstance(atom, Size) and atom.name not in self.sizes:
                self.fail(f"no input gives the size {atom.name}")

    # ---- races ------------------------------------------------------------------------------------------------

    def races(self) -> None:
        """A buffer that is stored may be loaded only where the same point stores it.

        Otherwise the result depends on which point comes first. A load whose index does not meet the store's,
        like the other rows of a cache, is still refused: nothing proves it in general.
        """
        stores: dict[str, list[Store]] = {}
        for eqn in self.nest.body:
            if isinstance(eqn, Store):
                stores.setdefault(eqn.buffer, []).append(eqn)
        for at, eqn in enumerate(self.nest.body):
            self.at = at
            if not isinstance(eqn, Load):
                continue
            for store in stores.get(eqn.buffer, ()):
                if store.index != eqn.index:
                    self.fail(f"{eqn.buffer} is loaded here and stored in the same nest at another index")
                if store.mode == "add" and any(isinstance(a, Loaded) for e in eqn.index for a in e.atoms()):
                    self.fail(f"{eqn.buffer} is loaded here and accumulated into in the same nest")
