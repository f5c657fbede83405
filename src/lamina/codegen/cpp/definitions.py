"""One C++ statement for each equation that defines a value, for one point or for a vector of consecutive points."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.base.dtypes import DTYPES
from lamina.codegen.cpp.addresses import Addresses
from lamina.codegen.cpp.expressions import cast, compute, index_text, scalar_type, vector_type
from lamina.codegen.cpp.index_vectors import index_vector
from lamina.codegen.cpp.loads import Loads
from lamina.codegen.cpp.low_precision import COARSE, kept_in_16_bits
from lamina.codegen.cpp.nest_analysis import NestAnalysis, fits_32
from lamina.codegen.cpp.operands import Operands
from lamina.codegen.cpp.text import Text
from lamina.ir.index import Loaded
from lamina.ir.loops import Compute, Index, Load, Random, Reduce

__all__ = ["Definitions", "random_runs"]


class Definitions:
    """Texts of a nest's definitions. ``dtypes`` gives the element type of every buffer."""

    def __init__(
        self, facts: NestAnalysis, dtypes: Mapping[str, str], operands: Operands, addresses: Addresses, loads: Loads
    ) -> None:
        self.facts, self.operands, self.addresses, self.loads = facts, operands, addresses, loads
        self.short = kept_in_16_bits(facts.body, dtypes)

    def define(self, position: int) -> str:
        """``const T v = ...;`` for a Load, Compute, Index or Random."""
        eqn = self.facts.body[position]
        assert isinstance(eqn, Load | Compute | Index | Random)
        vector = self.operands.is_vector(eqn.out)
        kind = vector_type(eqn.dtype) if vector else scalar_type(eqn.dtype)
        if isinstance(eqn, Load):
            text, note = self.loads.load(eqn, vector), f"load {eqn.buffer}"
        elif isinstance(eqn, Compute):
            text, note = self._compute(eqn, vector), f"{eqn.op}{' to ' + eqn.dtype if eqn.op == 'cast' else ''}"
        elif isinstance(eqn, Index):
            text, note = self._index(eqn, vector), "index"
        else:
            text, note = self._random(eqn, vector), "random"
        return f"const {kind} {eqn.out} = {text};  // {note}"

    def _compute(self, eqn: Compute, vector: bool) -> str:
        if eqn.op == "where" and eqn.ins[0] in self.operands.decided:
            return self.operands.value(eqn.ins[1 if self.operands.decided[eqn.ins[0]] else 2], vector)
        ins = [self.operands.value(v, vector) for v in eqn.ins]
        kinds = [self.facts.dtype[v] for v in eqn.ins]
        if eqn.op == "cast" and self.facts.only_stored(eqn.out):
            return cast(ins[0], kinds[0], "float32", vector)
        if vector and eqn.op in COARSE and eqn.dtype != "float64" and eqn.out in self.short:
            return compute(f"coarse_{eqn.op}", ins, kinds, eqn.dtype, vector)
        op = "opposite" if eqn.op == "neg" and self._is_float_sum(eqn.ins[0]) else eqn.op
        return compute(op, ins, kinds, eqn.dtype, vector)

    def _is_float_sum(self, name: str) -> bool:
        """Whether a value is a sum or a difference, which a product may be a term of."""
        position = self.facts.use_def.positions.get(name)
        if position is None or not DTYPES[self.facts.dtype[name]].is_float:
            return False
        made = self.facts.body[position]
        return isinstance(made, Reduce) or (isinstance(made, Compute) and made.op in ("add", "sub"))

    def _index(self, eqn: Index, vector: bool) -> str:
        if not vector:
            return cast(f"(int64)({index_text(eqn.expr, {})})", "int64", eqn.dtype, False)
        factor = self.addresses.stride(eqn.expr)
        base = index_text(eqn.expr, {})
        if factor is None:
            loaded = any(isinstance(a, Loaded) for a in eqn.expr.atoms())
            whole = None if loaded or self.facts.vector is None else index_vector(eqn.expr, self.facts.vector)
            if whole is not None:
                return cast(whole, "int32", eqn.dtype, True)
            declare, index = self.addresses.lanes(eqn.expr)
            text = f"lanes_int64(lane_count(n), [&](int64 k) STEP {{ {declare}return {index}; }})"
            return cast(text, "int64", eqn.dtype, True)
        if fits_32(eqn.expr):
            return cast(f"index_lanes32((int32)({base}), (int32)({index_text(factor, {})}))", "int32", eqn.dtype, True)
        return cast(f"index_lanes({base}, {index_text(factor, {})})", "int64", eqn.dtype, True)

    def _random(self, eqn: Random, vector: bool) -> str:
        seed = f"(int64){self.operands.value(eqn.seed, False)}"
        given = eqn.stream
        stream = f"{given & 0xFFFFFFFF}u" if isinstance(given, int) else f"(uint32)({index_text(given, {})})"
        if not vector:
            return f"philox((int64)({index_text(eqn.index, {})}), {seed}, {stream})"
        factor = self.addresses.stride(eqn.index)
        if self._consecutive(eqn):
            text = f"{eqn.out}_run.at({index_text(eqn.index, {})}, {seed}, {stream})"
            return cast(text, "float32", eqn.dtype, True)
        if factor is not None:
            lanes = f"index_lanes({index_text(eqn.index, {})}, {index_text(factor, {})})"
        else:
            declare, index = self.addresses.lanes(eqn.index)
            lanes = f"lanes_int64(lane_count(n), [&](int64 k) STEP {{ {declare}return {index}; }})"
        return cast(f"philox({lanes}, {seed}, {stream})", "float32", eqn.dtype, True)

    def _consecutive(self, eqn: Random) -> bool:
        """Whether the lanes of a vector draw consecutive numbers of one stream."""
        varies = self.operands.is_vector
        return varies(eqn.out) and not varies(eqn.seed) and self.addresses.stride(eqn.index) == 1


def random_runs(facts: NestAnalysis, text: Text) -> list[str]:
    """Declarations of what vector loops in ``text`` keep of random numbers drawn for consecutive indices.

    One for each Random and function: several loops may draw the same numbers, and rows go on where the last ended.
    """
    drawn = [e.out for e in facts.body if isinstance(e, Random)]
    return [f"PhiloxRun {out}_run;" for out in drawn if any(f"{out}_run.at(" in line for line in text.lines)]
