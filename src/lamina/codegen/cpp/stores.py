"""Stores: of one element, of consecutive ones, of ones at regular distances, or lane by lane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lamina.base.dtypes import DTYPES
from lamina.codegen.cpp.addresses import Addresses
from lamina.codegen.cpp.expressions import SHORT, index_text, vector_type
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.operands import Operands
from lamina.ir.index import Expr, Loaded
from lamina.ir.loops import Load, Store
from lamina.ir.plan import most_turns

__all__ = ["Stores"]

_NONTEMPORAL = ("float32", "int32")
"""Element types whose vectors can be written past the caches."""


@dataclass(frozen=True, slots=True)
class Stores:
    """Texts of a nest's stores. ``dtypes`` gives the element type of every buffer."""

    facts: NestAnalysis
    dtypes: Mapping[str, str]
    operands: Operands
    addresses: Addresses

    def store(self, eqn: Store, vector: bool) -> str:
        """The statement for a store of one element, or of the elements of a vector of points."""
        decided = self.operands.with_mask_decided(eqn)
        return ";  // nothing is stored here" if decided is None else self._store(decided, vector)

    def _store(self, eqn: Store, vector: bool) -> str:
        kind = SHORT[self.dtypes[eqn.buffer]]
        expr = eqn.index[0]
        if not vector:
            where = self.addresses.at(eqn.buffer, expr)
            value = self.operands.value(eqn.value, False)
            text = f"store_{kind}({where}, {self._added(eqn, f'load_{kind}({where})', value, False)});"
            return f"if ({self.operands.value(eqn.mask, False)}) {text}" if eqn.mask is not None else text
        if eqn.mask is not None and not self.operands.is_vector(eqn.mask):
            return f"if ({self.operands.value(eqn.mask, False)}) {{ {self._store(replace(eqn, mask=None), True)} }}"
        value = self.operands.value(eqn.value, True)
        if self.addresses.stride(expr) == 1:
            where = self.addresses.at(eqn.buffer, expr)
            if eqn.mask is None:
                how = "stream" if self._is_nontemporal(eqn) else "store"
                return f"{how}_{kind}({where}, {self._added(eqn, f'load_{kind}({where}, n)', value, True)}, n);"
            if eqn.mode == "set":
                return f"store_masked_{kind}({where}, {value}, {self.operands.value(eqn.mask, True)}, n);"
        factor = self.addresses.stride(expr)
        if factor is not None and eqn.mode == "set" and eqn.mask is None and self.operands.is_vector(eqn.value):
            where = self.addresses.at(eqn.buffer, expr)
            return f"spread_{kind}({where}, {index_text(factor, {})}, {value}, lane_count(n));"
        return self._store_each(eqn)

    def _store_each(self, eqn: Store) -> str:
        """Lanes stored one by one, out of memory into which what they hold is put first: lanes are slow to get at."""
        kind = SHORT[self.dtypes[eqn.buffer]]
        declare, index = self.addresses.lanes(eqn.index[0])
        apart = {a.name for a in eqn.index[0].atoms() if isinstance(a, Loaded) and self.operands.is_vector(a.name)}
        one = self.operands.value(eqn.value, False)
        if self.operands.is_vector(eqn.value):
            apart.add(eqn.value)
            one = f"lane({eqn.value}, k)"
        if self.facts.dtype[eqn.value] == "bool":
            one = f"(bool){one}"
        where = f"{eqn.buffer} + {index}"
        text = f"store_{kind}({where}, {self._added(eqn, f'load_{kind}({where})', one, False)});"
        first = ""
        if eqn.mask is not None:
            first = f"const int32 chosen = mask_bits({eqn.mask}); "
            text = f"if (chosen >> k & 1) {text}"
        for name in sorted(apart):
            first += f"const auto {name}_each = each_of({name}); "
            text = text.replace(f"lane({name}, k)", f"{name}_each.x[k]")
        return f"{{ {first}for (int64 k = 0; k < lane_count(n); ++k) {{ {declare}{text} }} }}"

    def _is_nontemporal(self, eqn: Store) -> bool:
        """Whether vectors of the store go past the caches: of four bytes an element, and never read by the nest."""
        if not self.facts.schedule.nontemporal or eqn.mode != "set" or self.dtypes[eqn.buffer] not in _NONTEMPORAL:
            return False
        return not any(isinstance(e, Load) and e.buffer == eqn.buffer for e in self.facts.body)

    def _added(self, eqn: Store, old: str, value: str, vector: bool) -> str:
        if eqn.mode == "set":
            return value
        dtype = self.dtypes[eqn.buffer]
        if dtype == "bool":
            return f"{old} | {value}"
        if DTYPES[dtype].is_float or vector:
            return f"{old} + {value}"
        return f"wrap_add<{SHORT[dtype]}>({old}, {value})"

    def turns(self, stores: Sequence[Store]) -> dict[int, tuple[int, ...]]:
        """Stores whose elements take turns in memory, as the parts of a stack do: place of the last to all in turn."""
        rows: dict[tuple[str, Expr], dict[int, int]] = {}
        count = Counter(eqn.buffer for eqn in stores)
        most = most_turns(self.facts.schedule.width)
        for place, eqn in enumerate(stores):
            expr = eqn.index[0]
            if eqn.mode == "set" and eqn.mask is None and self.addresses.step(expr, most):
                row = rows.setdefault((eqn.buffer, expr - expr.const), {})
                if expr.const in row:
                    return {}
                row[expr.const] = place
        found = {}
        for (buffer, base), row in rows.items():
            step, begin = self.addresses.step(base, most), min(row)
            if count[buffer] == step and sorted(row) == list(range(begin, begin + step)):
                places = tuple(row[begin + k] for k in range(step))
                found[max(places)] = places
        return found

    def store_turns(self, stores: Sequence[Store]) -> str:
        """One statement for stores that take turns in memory, in their order there."""
        first = stores[0]
        kind, made = SHORT[self.dtypes[first.buffer]], vector_type(self.dtypes[first.buffer])
        values = ", ".join(self.operands.value(eqn.value, True) for eqn in stores)
        where = self.addresses.at(first.buffer, first.index[0])
        return f"{{ const {made} turn[] = {{{values}}}; turns_{kind}<{len(stores)}>({where}, turn, n); }}"
