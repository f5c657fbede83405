"""Running combinations along an axis: inside a tile by Triton's scan, across a loop's tiles by a carried value."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.codegen.triton.expressions import in_float
from lamina.codegen.triton.nest_analysis import NestAnalysis
from lamina.codegen.triton.reductions import Reducer
from lamina.codegen.triton.text import Text
from lamina.codegen.triton.types import HALVES, kind, lifted, lowest, neutral, typed
from lamina.ir.loops import Scan

__all__ = ["Scanner"]


class Scanner:
    """Texts of a nest's scans."""

    def __init__(self, facts: NestAnalysis, reduce: Reducer) -> None:
        self.facts, self.reduce = facts, reduce

    def of_loop(self, k: int) -> list[Scan]:
        """Scans that run along the loop over block ``k``."""
        return [e for e in self.facts.body if isinstance(e, Scan) and self.facts.block_of[e.axis] == k]

    def begin(self, text: Text, scans: Sequence[Scan]) -> None:
        """Define what is carried from tile to tile."""
        for eqn in scans:
            span = self.facts.span(eqn.value) - {self.facts.block_of[eqn.axis]}
            held = lifted(eqn.dtype)
            text.add(f"{eqn.out}_carry = tl.full({self.facts.shape(span)}, {neutral(eqn.op, held)}, {typed(held)})")

    def write(self, text: Text, eqn: Scan, value: str) -> None:
        """One tile's part of a scan."""
        facts, out = self.facts, eqn.out
        k = facts.block_of[eqn.axis]
        held = lifted(eqn.dtype)
        looped = facts.blocks[k].role == "loop"
        given = in_float(value, eqn.dtype)
        if k not in facts.dim:
            text.add(f"{out}_carry = {self._join(eqn.op, f'{out}_carry', given, held)}")
            text.add(f"{out} = {self._rounded(f'{out}_carry', eqn)}")
            return
        span = facts.span(eqn.value)
        if eqn.op == "sort":
            last = lowest(held) if eqn.reverse else neutral(eqn.op, held)
            given = self.reduce.spread(given, span, frozenset((k,)), facts.inside(frozenset((k,))), last)
            text.add(f"{out} = {self._sorted(given, facts.dim[k], eqn.reverse)}")
            return
        given = self.reduce.spread(given, span, frozenset((k,)), facts.inside(frozenset((k,))), neutral(eqn.op, held))
        wide = f"{out}_wide"
        ahead = looped and eqn.op == "prod"  # a tile's product that overflows would make NaN of a zero before it
        if ahead:
            first = facts.blocks[k].size - 1 if eqn.reverse else 0
            begins = f"tl.arange(0, {facts.blocks[k].size}){facts.slots(k)} == {first}"
            given = f"tl.where({begins}, {self._join(eqn.op, f'{out}_carry', given, held)}, {given})"
        text.add(f"{wide} = {self._tile(eqn, given, facts.dim[k], held)}")
        if looped and not ahead:
            text.add(f"{wide} = {self._join(eqn.op, f'{out}_carry', wide, held)}")
        if looped:
            edge = 0 if eqn.reverse else facts.blocks[k].size - 1
            last = f"tl.arange(0, {facts.blocks[k].size}){facts.slots(k)} == {edge}"
            zero = "0.0" if kind(held) == "float" else "0"
            picked = f"tl.where({last}, {wide}, {zero})"
            text.add(f"{out}_carry = {self.reduce.fold('sum', picked, span | {k}, frozenset((k,)), held)}")
        text.add(f"{out} = {self._rounded(wide, eqn)}")

    def _tile(self, eqn: Scan, value: str, dim: int, held: str) -> str:
        reverse = ", reverse=True" if eqn.reverse else ""
        if eqn.op in ("sum", "prod"):
            made = f"tl.cum{eqn.op}({value}, axis={dim}{reverse})"
            return made if held in ("float32", "float64", "int64") else f"{made}.to({typed(held)})"
        return f"tl.associative_scan({value}, {dim}, scan_{eqn.op}{reverse})"

    def _sorted(self, value: str, dim: int, descending: bool) -> str:
        """A tile in order along one of its dimensions: Triton sorts along the last one."""
        last = len(self.facts.dim) - 1
        order = ", descending=True" if descending else ""
        if dim == last:
            return f"tl.sort({value}{order})"
        turned = str([last if d == dim else dim if d == last else d for d in range(last + 1)])
        return f"tl.permute(tl.sort(tl.permute({value}, {turned}){order}), {turned})"

    def _join(self, op: str, a: str, b: str, held: str) -> str:
        if op in ("sum", "prod"):
            return f"{a} {'+' if op == 'sum' else '*'} {b}"
        return f"scan_{op}({a}, {b})"

    def _rounded(self, text: str, eqn: Scan) -> str:
        return f"{text}.to({typed(eqn.dtype)})" if eqn.dtype in HALVES else text
