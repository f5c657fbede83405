"""Running sums and their kin in generated code."""

from __future__ import annotations

from lamina.base.dtypes import DTYPES
from lamina.codegen.cpp.accumulate import accumulator
from lamina.codegen.cpp.arrays import Array, Arrays
from lamina.codegen.cpp.expressions import cast, element, scalar_type, vector_type
from lamina.codegen.cpp.needs import Needs
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.operands import Operands
from lamina.codegen.cpp.text import LoopBody, Scope
from lamina.ir.loops import Scan

__all__ = ["Scans"]


class Scans:
    """Writes scans: the running value, and one step of it."""

    def __init__(self, facts: NestAnalysis, operands: Operands, arrays: Arrays, needs: Needs) -> None:
        self.facts, self.operands, self.arrays, self.needs = facts, operands, arrays, needs
        self._running: dict[str, Array] = {}

    def along(self, axis: str, loop_body: LoopBody) -> list[Scan]:
        """The scans along ``axis`` that a loop over it in ``loop_body`` computes."""
        found = []
        for position in sorted(self.needs.of(loop_body.known, loop_body.goals)):
            eqn = self.facts.body[position]
            if isinstance(eqn, Scan) and eqn.axis == axis and eqn.out not in self.arrays:
                found.append(eqn)
        return found

    def run_backward(self, axis: str, loop_body: LoopBody) -> bool:
        """Whether the loop over ``axis`` runs from its end."""
        scans = self.along(axis, loop_body)
        if len({e.reverse for e in scans}) > 1:
            raise NotImplementedError(f"running forward and backward along {axis} in one loop")
        return bool(scans) and scans[0].reverse

    def begin(self, scope: Scope, opened: frozenset[str], eqn: Scan) -> None:
        """Declare the running value of a scan: one, or one for each point of the axes inside it."""
        inner = tuple(a for a in self.facts.order if a in self.facts.axes[eqn.out] - opened and a != eqn.axis)
        dtype = _dtype(eqn)
        start = _start(eqn.op, dtype)
        if not inner:
            lane = "int32" if self.facts.vector == eqn.axis and vector_type(dtype) == "vi32" else scalar_type(dtype)
            scope.text.add(f"{lane} {eqn.out}_s = {start};")
            return
        array = self.arrays.allocate(scope, f"{eqn.out}_s", inner, scalar_type(dtype))
        scope.text.add(f"fill({array.pointer}, {array.count()}, ({scalar_type(dtype)}){start});")
        self._running[eqn.out] = array

    def advance(self, eqn: Scan) -> list[str]:
        """One step of a scan."""
        dtype, out, vector = _dtype(eqn), eqn.out, self.operands.is_vector(eqn.out)
        value = cast(self.operands.value(eqn.value, vector), self.facts.dtype[eqn.value], dtype, vector)
        if vector and eqn.axis == self.facts.vector:
            return self._advance_lanes(eqn, value, dtype)
        array = self._running.get(out)
        tail = ", n" if vector else ""
        old = f"load_{element(dtype)}({array.at()}{tail})" if array else f"{out}_s"
        text = _step(eqn.op, dtype, old, value, vector)
        kind = vector_type(dtype) if vector else scalar_type(dtype)
        lines = [f"const {kind} {out}_n = {text};  // running {eqn.op} along {eqn.axis}"]
        lines.append(f"store_{element(dtype)}({array.at()}, {out}_n{tail});" if array else f"{out}_s = {out}_n;")
        result = vector_type(eqn.dtype) if vector else scalar_type(eqn.dtype)
        lines.append(f"const {result} {out} = {cast(f'{out}_n', dtype, eqn.dtype, vector)};")
        return lines

    def _advance_lanes(self, eqn: Scan, value: str, dtype: str) -> list[str]:
        """A scan along the vector axis: within the lanes, and from one vector to the next."""
        out, kind, back = eqn.out, vector_type(dtype), "true" if eqn.reverse else "false"
        lane = "int32" if kind in ("vi32", "vflag") else scalar_type(dtype)
        if dtype == "float64" and eqn.op in ("sum", "prod", "logaddexp"):
            # What is left of a sum relative to a greater element has the digits of a float, not those of a double.
            one_by_one = "_lanes" if eqn.op == "logaddexp" and eqn.dtype == "float64" else ""
            text = f"running_{eqn.op}{one_by_one}<{back}>({value}, {out}_s, n)"
        elif dtype == "bool" or (eqn.op not in ("max", "min") and DTYPES[dtype].is_float):
            join = _step(eqn.op, dtype, "p", "q", False)
            step = f"[]({scalar_type(dtype)} p, {scalar_type(dtype)} q) STEP {{ return {join}; }}"
            text = f"running_lanes<{back}, {kind}, {lane}>({value}, {out}_s, n, {step})"
        else:
            join = _step(eqn.op, dtype, "p", "q", True)
            start = _start(eqn.op, dtype)
            step = f"[]({kind} p, {kind} q) STEP {{ return {join}; }}"
            text = f"running<{back}, {kind}, {lane}>({value}, {out}_s, n, {start}, {step})"
        result = vector_type(eqn.dtype)
        return [
            f"const {vector_type(dtype)} {out}_n = {text};  // running {eqn.op} along {eqn.axis}",
            f"const {result} {out} = {cast(f'{out}_n', dtype, eqn.dtype, True)};",
        ]


def _dtype(eqn: Scan) -> str:
    """Running sums and products of floats are kept in double, as eager keeps them."""
    floating = eqn.dtype in ("float16", "bfloat16", "float32")
    return "float64" if floating and eqn.op in ("sum", "prod", "logaddexp") else eqn.dtype


def _start(op: str, dtype: str) -> str:
    """What changes nothing that comes after it."""
    return "-__builtin_inf()" if op == "logaddexp" else accumulator(op, dtype).start_scalar()


def _step(op: str, dtype: str, before: str, value: str, vector: bool) -> str:
    """What came before combined with a value; of equal ones, as of zeros, the later counts, as in eager."""
    if op == "logaddexp":
        return f"logaddexp({before}, {value})"
    ends = (value, before) if op in ("max", "min") else (before, value)
    return accumulator(op, dtype).join(*ends, vector)
