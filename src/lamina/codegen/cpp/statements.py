"""One C++ statement for each equation, for a single point or for a vector of consecutive points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lamina.base.dtypes import DTYPES
from lamina.codegen.cpp.coarse import COARSE, kept_in_16_bits
from lamina.codegen.cpp.expressions import (
    SHORT,
    cast,
    compute,
    element,
    index_text,
    literal,
    scalar_type,
    splat,
    vector_type,
)
from lamina.codegen.cpp.facts import Facts, fits_32
from lamina.codegen.cpp.index_vectors import grows_slowly, index_vector
from lamina.codegen.cpp.repeats import Repeated, repeated
from lamina.ir.index import Axis, Expr, Loaded
from lamina.ir.loops import Compute, Index, Load, Random, Store
from lamina.ir.plan import furthest, most_turns

__all__ = ["STREAMED", "Array", "Statements"]

STREAMED = ("float32", "int32")
"""Element types whose vectors can be written past the caches."""


@dataclass(frozen=True, slots=True)
class Array:
    """A value kept in memory of the kernel: for each point of ``axes`` (loop order), counted from ``begins``.

    ``kind`` is the element type in memory, ``begins`` the axes' first values where only a block of them is held.
    """

    pointer: str
    axes: tuple[str, ...]
    extents: tuple[str, ...]
    kind: str
    begins: tuple[tuple[str, str], ...] = ()

    def at(self) -> str:
        """Address of the current point."""
        text = ""
        begins = dict(self.begins)
        for axis, extent in zip(self.axes, self.extents, strict=True):
            place = f"{axis} - {begins[axis]}" if axis in begins else axis
            text = place if not text else f"({text}) * {extent} + {place}"
        return f"{self.pointer} + {text}" if text else self.pointer

    def count(self) -> str:
        return " * ".join(self.extents) or "1"


class Statements:
    """Text of single equations of a nest. ``dtypes`` gives the element type of every buffer."""

    def __init__(self, facts: Facts, dtypes: Mapping[str, str]) -> None:
        self.facts, self.dtypes = facts, dtypes
        self.decided: dict[str, bool] = {}
        self.short = kept_in_16_bits(facts.body, dtypes)

    # ---- operands -----------------------------------------------------------------------------------------------

    def is_vector(self, name: str) -> bool:
        return self.facts.vector is not None and self.facts.vector in self.facts.axes[name]

    def value(self, name: str, vector: bool) -> str:
        """A value as an operand: in vector code everything is a vector."""
        if name in self.decided:
            text = literal(self.decided[name], "bool")
            return splat("bool", text) if vector else text
        constant = self.facts.constant(name)
        text = literal(constant.value, constant.dtype) if constant is not None else name
        return splat(self.facts.dtype[name], text) if vector and not self.is_vector(name) else text

    def reads(self, position: int) -> tuple[str, ...]:
        """Values an equation needs, given the conditions that are decided."""
        eqn = self.facts.body[position]
        if isinstance(eqn, Compute) and eqn.op == "where" and eqn.ins[0] in self.decided:
            return (eqn.ins[1 if self.decided[eqn.ins[0]] else 2],)
        if isinstance(eqn, Load) and eqn.mask in self.decided and not self.decided[eqn.mask]:
            return ()
        return self.facts.needs[position]

    # ---- equations ----------------------------------------------------------------------------------------------

    def define(self, position: int) -> str:
        """``const T v = ...;`` for a Load, Compute, Index or Random."""
        eqn = self.facts.body[position]
        assert isinstance(eqn, Load | Compute | Index | Random)
        vector = self.is_vector(eqn.out)
        kind = vector_type(eqn.dtype) if vector else scalar_type(eqn.dtype)
        if isinstance(eqn, Load):
            text, note = self.load(eqn, vector), f"load {eqn.buffer}"
        elif isinstance(eqn, Compute):
            text, note = self.compute(eqn, vector), f"{eqn.op}{' to ' + eqn.dtype if eqn.op == 'cast' else ''}"
        elif isinstance(eqn, Index):
            text, note = self.index(eqn, vector), "index"
        else:
            text, note = self.random(eqn, vector), "random"
        return f"const {kind} {eqn.out} = {text};  // {note}"

    def compute(self, eqn: Compute, vector: bool) -> str:
        if eqn.op == "where" and eqn.ins[0] in self.decided:
            return self.value(eqn.ins[1 if self.decided[eqn.ins[0]] else 2], vector)
        ins = [self.value(v, vector) for v in eqn.ins]
        kinds = [self.facts.dtype[v] for v in eqn.ins]
        if eqn.op == "cast" and self.facts.only_stored(eqn.out):
            return cast(ins[0], kinds[0], "float32", vector)
        coarse = vector and eqn.op in COARSE and eqn.dtype != "float64" and eqn.out in self.short
        return compute(f"coarse_{eqn.op}" if coarse else eqn.op, ins, kinds, eqn.dtype, vector)

    def stride(self, expr: Expr) -> Expr | None:
        """Factor of the vector axis in an index, ``None`` where the lanes follow no straight line."""
        axis = self.facts.vector
        assert axis is not None
        if any(isinstance(a, Loaded) and self.is_vector(a.name) for a in expr.atoms()):
            return None
        return expr.coefficient(Axis(axis, self.facts.extent[axis]))

    def step(self, expr: Expr, most: int) -> int:
        """The factor of the vector axis in an index if that is 2 to ``most``, else 0."""
        factor = self.stride(expr)
        return factor.const if factor is not None and factor.is_int and 2 <= factor.const <= most else 0

    def turns(self, stores: Sequence[Store]) -> dict[int, tuple[int, ...]]:
        """Stores whose elements take turns in memory, as the parts of a stack do: place of the last to all in turn."""
        rows: dict[tuple[str, Expr], dict[int, int]] = {}
        count = Counter(eqn.buffer for eqn in stores)
        most = most_turns(self.facts.schedule.width)
        for place, eqn in enumerate(stores):
            expr = eqn.index[0]
            if eqn.mode == "set" and eqn.mask is None and self.step(expr, most):
                row = rows.setdefault((eqn.buffer, expr - expr.const), {})
                if expr.const in row:
                    return {}
                row[expr.const] = place
        found = {}
        for (buffer, base), row in rows.items():
            step, begin = self.step(base, most), min(row)
            if count[buffer] == step and sorted(row) == list(range(begin, begin + step)):
                places = tuple(row[begin + k] for k in range(step))
                found[max(places)] = places
        return found

    def store_turns(self, stores: Sequence[Store]) -> str:
        """One statement for stores that take turns in memory, in their order there."""
        first = stores[0]
        kind, made = SHORT[self.dtypes[first.buffer]], vector_type(self.dtypes[first.buffer])
        values = ", ".join(self.value(eqn.value, True) for eqn in stores)
        where = self.at(first.buffer, first.index[0])
        return f"{{ const {made} turn[] = {{{values}}}; turns_{kind}<{len(stores)}>({where}, turn, n); }}"

    def lanes(self, expr: Expr) -> tuple[str, str]:
        """An index for lane ``k``: what to declare first, and the index itself."""
        axis = self.facts.vector
        assert axis is not None
        names = {axis: "j"}
        for atom in expr.atoms():
            if isinstance(atom, Loaded) and self.is_vector(atom.name):
                names[atom.name] = f"lane({atom.name}, k)"
        return f"const int64 j = {axis} + k; ", index_text(expr, {**self.constants(expr), **names})

    def constants(self, expr: Expr) -> dict[str, str]:
        """How values in an index that are constants, of which no variable is made, are written."""
        loaded = [atom.name for atom in expr.atoms() if isinstance(atom, Loaded)]
        return {name: self.value(name, False) for name in loaded if self.facts.constant(name) is not None}

    def at(self, buffer: str, expr: Expr, names: Mapping[str, str] | None = None) -> str:
        text = index_text(expr, {**self.constants(expr), **(names or {})})
        return buffer if text == "0" else f"{buffer} + {text}"

    def load(self, eqn: Load, vector: bool) -> str:
        if eqn.mask in self.decided:
            if not self.decided[eqn.mask]:
                fill = literal(eqn.fill, eqn.dtype)
                return splat(eqn.dtype, fill) if vector else fill
            eqn = replace(eqn, mask=None)
        kind = SHORT[self.dtypes[eqn.buffer]]
        expr = eqn.index[0]
        if not vector:
            text = f"load_{kind}({self.at(eqn.buffer, expr)})"
            if eqn.mask is None:
                return text
            return f"({self.value(eqn.mask, False)} ? {text} : {literal(eqn.fill, eqn.dtype)})"
        if self.stride(expr) == 1:
            where = self.at(eqn.buffer, expr)
            if eqn.mask is None:
                return f"load_{kind}({where}, n)"
            fill = splat(eqn.dtype, literal(eqn.fill, eqn.dtype))
            if not self.is_vector(eqn.mask):
                return f"({self.value(eqn.mask, False)} ? load_{kind}({where}, n) : {fill})"
            return f"masked_{kind}({where}, {self.value(eqn.mask, True)}, {fill}, n)"
        if self.stride(expr) == 0:
            return self.repeated(eqn)
        if eqn.mask is None and self.stride(expr) == -1:
            return f"backward_{kind}({self.at(eqn.buffer, expr)}, n)"
        step = self.step(expr, furthest(self.facts.schedule.width)) if eqn.mask is None else 0
        if step:
            return f"stepped_{kind}<{step}>({self.at(eqn.buffer, expr)}, n)"
        found = self.cycle(expr)
        if found is None:
            return self.load_each(eqn, *self.lanes(expr))
        place, axis = found.base(index_text(found.places.rest, self.constants(expr))), self.facts.vector or ""
        where = ""
        if eqn.mask is not None:
            where = f"{self.value(eqn.mask, True)}, {splat(eqn.dtype, literal(eqn.fill, eqn.dtype))}"
        whole = found.load(self.dtypes[eqn.buffer], f"{eqn.buffer} + {place}", where)
        if whole is None:
            return found.written(self.load_each(eqn, "", f"{place} + at[k]"))
        return self.steady(eqn, axis, whole) if not where and grows_slowly(expr, axis) else whole

    def cycle(self, expr: Expr) -> Repeated | None:
        """What to know of an index that goes on along the vector axis in the same way after every few points."""
        axis = self.facts.vector
        if axis is None or any(isinstance(a, Loaded) and self.is_vector(a.name) for a in expr.atoms()):
            return None
        return repeated(expr, Axis(axis, self.facts.extent[axis]), self.facts.schedule.width)

    def load_each(self, eqn: Load, declare: str, index: str) -> str:
        """Lanes loaded one by one; ``declare`` stands before ``index``, that of lane ``k``."""
        expr, kind = eqn.index[0], SHORT[self.dtypes[eqn.buffer]]
        text = f"load_{kind}({eqn.buffer} + {index})"
        lane_kind = {"vi32": "int32"}.get(vector_type(eqn.dtype) or "", element(eqn.dtype))
        lane_kind = "flag" if eqn.dtype == "bool" else lane_kind
        axis = self.facts.vector or ""
        if eqn.mask is not None and self.is_vector(eqn.mask):
            fill = splat(eqn.dtype, literal(eqn.fill, eqn.dtype))
            each = f"chosen_{lane_kind}({eqn.mask}, {fill}, n, [&](int64 k) STEP {{ {declare}return {text}; }})"
            return self.steady(eqn, axis, each) if grows_slowly(expr, axis) else each
        if eqn.mask is not None:
            text = f"{self.value(eqn.mask, False)} ? {text} : {literal(eqn.fill, eqn.dtype)}"
        each = f"lanes_{lane_kind}(lane_count(n), [&](int64 k) STEP {{ {declare}return {text}; }})"
        return self.steady(eqn, axis, each) if eqn.mask is None and grows_slowly(expr, axis) else each

    def steady(self, eqn: Load, axis: str, each: str) -> str:
        """A load at places that never decrease: one element where the first lane's and the last one's are the same."""
        last = index_text(eqn.index[0], {**self.constants(eqn.index[0]), axis: f"({axis} + lane_count(n) - 1)"})
        first = index_text(eqn.index[0], self.constants(eqn.index[0]))
        return f"({first} == {last} ? {self.repeated(eqn)} : {each})"

    def repeated(self, eqn: Load) -> str:
        """One element in all lanes: a load that varies along the vector axis by its mask only."""
        one = f"load_{SHORT[self.dtypes[eqn.buffer]]}({self.at(eqn.buffer, eqn.index[0])})"
        every = splat(eqn.dtype, one)
        if eqn.mask is None:
            return every
        fill = splat(eqn.dtype, literal(eqn.fill, eqn.dtype))
        if not self.is_vector(eqn.mask):
            return f"({self.value(eqn.mask, False)} ? {every} : {fill})"
        return f"(any_lane({eqn.mask} & lanes(n)) ? select({eqn.mask}, {every}, {fill}) : {fill})"

    def store(self, eqn: Store, vector: bool) -> str:
        if eqn.mask in self.decided:
            if not self.decided[eqn.mask]:
                return ";  // nothing is stored here"
            eqn = replace(eqn, mask=None)
        kind = SHORT[self.dtypes[eqn.buffer]]
        expr = eqn.index[0]
        if not vector:
            where = self.at(eqn.buffer, expr)
            value = self.value(eqn.value, False)
            text = f"store_{kind}({where}, {self.added(eqn, f'load_{kind}({where})', value, False)});"
            return f"if ({self.value(eqn.mask, False)}) {text}" if eqn.mask is not None else text
        if eqn.mask is not None and not self.is_vector(eqn.mask):
            return f"if ({self.value(eqn.mask, False)}) {{ {self.store(replace(eqn, mask=None), True)} }}"
        value = self.value(eqn.value, True)
        if self.stride(expr) == 1:
            where = self.at(eqn.buffer, expr)
            if eqn.mask is None:
                how = "stream" if self.streams(eqn) else "store"
                return f"{how}_{kind}({where}, {self.added(eqn, f'load_{kind}({where}, n)', value, True)}, n);"
            if eqn.mode == "set":
                return f"store_masked_{kind}({where}, {value}, {self.value(eqn.mask, True)}, n);"
        factor = self.stride(expr)
        if factor is not None and eqn.mode == "set" and eqn.mask is None and self.is_vector(eqn.value):
            return f"spread_{kind}({self.at(eqn.buffer, expr)}, {index_text(factor, {})}, {value}, lane_count(n));"
        return self.store_each(eqn)

    def store_each(self, eqn: Store) -> str:
        """Lanes stored one by one, out of memory into which what they hold is put first: lanes are slow to get at."""
        kind = SHORT[self.dtypes[eqn.buffer]]
        declare, index = self.lanes(eqn.index[0])
        apart = {a.name for a in eqn.index[0].atoms() if isinstance(a, Loaded) and self.is_vector(a.name)}
        one = self.value(eqn.value, False)
        if self.is_vector(eqn.value):
            apart.add(eqn.value)
            one = f"lane({eqn.value}, k)"
        if self.facts.dtype[eqn.value] == "bool":
            one = f"(bool){one}"
        where = f"{eqn.buffer} + {index}"
        text = f"store_{kind}({where}, {self.added(eqn, f'load_{kind}({where})', one, False)});"
        first = ""
        if eqn.mask is not None:
            first = f"const int32 chosen = mask_bits({eqn.mask}); "
            text = f"if (chosen >> k & 1) {text}"
        for name in sorted(apart):
            first += f"const auto {name}_each = each_of({name}); "
            text = text.replace(f"lane({name}, k)", f"{name}_each.x[k]")
        return f"{{ {first}for (int64 k = 0; k < lane_count(n); ++k) {{ {declare}{text} }} }}"

    def streams(self, eqn: Store) -> bool:
        """Whether vectors of the store go past the caches: of four bytes an element, and never read by the nest."""
        if not self.facts.schedule.streamed or eqn.mode != "set" or self.dtypes[eqn.buffer] not in STREAMED:
            return False
        return not any(isinstance(e, Load) and e.buffer == eqn.buffer for e in self.facts.body)

    def added(self, eqn: Store, old: str, value: str, vector: bool) -> str:
        if eqn.mode == "set":
            return value
        dtype = self.dtypes[eqn.buffer]
        if dtype == "bool":
            return f"{old} | {value}"
        if DTYPES[dtype].is_float or vector:
            return f"{old} + {value}"
        return f"wrap_add<{SHORT[dtype]}>({old}, {value})"

    def index(self, eqn: Index, vector: bool) -> str:
        if not vector:
            return cast(f"(int64)({index_text(eqn.expr, {})})", "int64", eqn.dtype, False)
        factor = self.stride(eqn.expr)
        base = index_text(eqn.expr, {})
        if factor is None:
            loaded = any(isinstance(a, Loaded) for a in eqn.expr.atoms())
            whole = None if loaded or self.facts.vector is None else index_vector(eqn.expr, self.facts.vector)
            if whole is not None:
                return cast(whole, "int32", eqn.dtype, True)
            declare, index = self.lanes(eqn.expr)
            text = f"lanes_int64(lane_count(n), [&](int64 k) STEP {{ {declare}return {index}; }})"
            return cast(text, "int64", eqn.dtype, True)
        if fits_32(eqn.expr):
            return cast(f"index_lanes32((int32)({base}), (int32)({index_text(factor, {})}))", "int32", eqn.dtype, True)
        return cast(f"index_lanes({base}, {index_text(factor, {})})", "int64", eqn.dtype, True)

    def random(self, eqn: Random, vector: bool) -> str:
        seed = f"(int64){self.value(eqn.seed, False)}"
        given = eqn.stream
        stream = f"{given & 0xFFFFFFFF}u" if isinstance(given, int) else f"(uint32)({index_text(given, {})})"
        if not vector:
            return f"philox((int64)({index_text(eqn.index, {})}), {seed}, {stream})"
        factor = self.stride(eqn.index)
        if self.consecutive(eqn):
            text = f"{eqn.out}_run.at({index_text(eqn.index, {})}, {seed}, {stream})"
            return cast(text, "float32", eqn.dtype, True)
        if factor is not None:
            lanes = f"index_lanes({index_text(eqn.index, {})}, {index_text(factor, {})})"
        else:
            declare, index = self.lanes(eqn.index)
            lanes = f"lanes_int64(lane_count(n), [&](int64 k) STEP {{ {declare}return {index}; }})"
        return cast(f"philox({lanes}, {seed}, {stream})", "float32", eqn.dtype, True)

    def consecutive(self, eqn: Random) -> bool:
        """Whether the lanes of a vector draw consecutive numbers of one stream."""
        return self.is_vector(eqn.out) and not self.is_vector(eqn.seed) and self.stride(eqn.index) == 1

    def array_load(self, name: str, array: Array) -> str:
        """A value read back from the kernel's own memory."""
        dtype = self.facts.dtype[name]
        if self.is_vector(name):
            return f"const {vector_type(dtype)} {name} = load_{array.kind}({array.at()}, n);  // kept"
        return f"const {scalar_type(dtype)} {name} = load_{array.kind}({array.at()});  // kept"

    def array_store(self, name: str, array: Array) -> str:
        kind = element(self.facts.dtype[name])
        if self.is_vector(name):
            return f"store_{kind}({array.at()}, {self.value(name, True)}, n);  // keep {name}"
        return f"store_{kind}({array.at()}, {self.value(name, False)});  // keep {name}"
