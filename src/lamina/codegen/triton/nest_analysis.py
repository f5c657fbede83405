"""What the emitter asks of a nest and its GPU schedule: tile dimensions, index texts, masks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from lamina.codegen.triton.peeled_tail import GROUP
from lamina.codegen.triton.source import UnsupportedKernel
from lamina.codegen.triton.turns import Turns, accesses_in_turns
from lamina.ir.index import Atom, Axis, Div, Expr, Loaded, Mod, Size, as_expr, ceildiv, prod
from lamina.ir.loops import (
    Check,
    Equation,
    Index,
    Load,
    Nest,
    Random,
    Reduce,
    Scan,
    Store,
    axes_of_values,
    operands,
)
from lamina.ir.plan import Block, GpuSchedule
from lamina.ir.predicated import predicated_branches
from lamina.ir.use_def import UseDef

__all__ = ["NestAnalysis", "Span", "size_text"]

Span: TypeAlias = frozenset[int]
"""Numbers of blocks that something varies over."""

_INT32 = 1 << 31
"""Indices from this on are computed in 64 bits: in 32 they would wrap and address other memory."""


def size_text(expr: Expr) -> str:
    """An expression of sizes as Python text."""
    return expr.text(_size_atom)


def _size_atom(atom: Atom) -> str:
    if isinstance(atom, Div | Mod):
        sign = "//" if isinstance(atom, Div) else "%"
        return f"(({size_text(atom.num)}) {sign} ({size_text(atom.den)}))"
    return atom.name


_PART = 512
"""Points that the parts of a shared loop are multiples of."""


class NestAnalysis:
    """A nest's blocks as dimensions of a tile. Names: block ``k``'s collapsed index is ``lines[k]``.

    ``fresh`` are buffers that other programs of the same launch have written: not read through the first-level cache.
    ``part``: of a nest of one block that is written as whole groups and a rest (``ends``), "groups" or "rest".
    """

    def __init__(
        self,
        nest: Nest,
        schedule: GpuSchedule,
        dtypes: dict[str, str],
        fresh: frozenset[str] = frozenset(),
        part: str = "",
    ) -> None:
        self.nest, self.schedule, self.buffers, self.fresh, self.part = nest, schedule, dtypes, fresh, part
        self.body = nest.body
        self.blocks = schedule.blocks
        self.axes = {a.name: a for a in nest.axes}
        self.values = axes_of_values(nest)
        self.block_of = {axis: k for k, block in enumerate(self.blocks) for axis in block.axes}
        self.lines = ["_".join(block.axes) for block in self.blocks]
        self.extents = [prod(self.axes[a].extent for a in block.axes) for block in self.blocks]
        tiled = [k for k, block in enumerate(self.blocks) if block.size > 1]
        self.dim = {k: d for d, k in enumerate(tiled)}
        self.rank = len(tiled)
        self.loops = tuple(k for k, block in enumerate(self.blocks) if block.role == "loop")
        self.cluster = next((k for k, block in enumerate(self.blocks) if block.role == "cluster"), None)
        self.use_def = UseDef(self.body)
        self.dtype = self.use_def.dtypes
        self.checks = [p for p, eqn in enumerate(self.body) if isinstance(eqn, Check)]
        self.inside_tile = False  # whether all points of the loop's tile that is being written exist
        self.shared_loop = self.loops[0] if schedule.cluster and self.loops else None
        self.turns = _turns(self)
        self.wide = [self._is_wide(k) for k in range(len(self.blocks))]
        self.quads = {q[0] for e in nest.body if isinstance(e, Random) and (q := self.quad(e.index)) is not None}

    def _is_wide(self, k: int) -> bool:
        """Whether the block's index may need 64 bits."""
        extent, step = self.extents[k], max((turns.step for turns in self.turns.values()), default=1)
        return not extent.is_int or (extent.const + self.blocks[k].size) * step >= _INT32

    # ---- spans ----------------------------------------------------------------------------------------------------

    def span_of_axes(self, axes: Iterable[str]) -> Span:
        """The blocks that hold these axes."""
        return frozenset(self.block_of[a] for a in axes)

    def span(self, value: str) -> Span:
        """The blocks a value varies over."""
        return self.span_of_axes(self.values[value])

    def expr_span(self, expr: Expr) -> Span:
        """The blocks an index expression varies over, through loaded values too."""
        found = set(self.span_of_axes(expr.axes()))
        for atom in expr.atoms():
            if isinstance(atom, Loaded):
                found |= self.span(atom.name)
        return frozenset(found)

    def eqn_span(self, eqn: Equation) -> Span:
        """The blocks at whose points an equation is evaluated."""
        found: set[int] = set()
        for name in operands(eqn):
            found |= self.span(name)
        for expr in indices(eqn):
            found |= self.expr_span(expr)
        if isinstance(eqn, Scan):
            found.add(self.block_of[eqn.axis])
        return frozenset(found)

    def dims(self, span: Span) -> Span:
        """Those blocks of a span that are dimensions of the tile."""
        return frozenset(k for k in span if k in self.dim)

    def shape(self, span: Span) -> str:
        """The tile's shape with size 1 where ``span`` has no block; () for a scalar."""
        if not self.dims(span):
            return "()"
        sizes = [str(self.blocks[k].size) if k in span else "1" for k in self.dim]
        return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"

    def slots(self, k: int) -> str:
        """Subscript that puts block ``k``'s points along its dimension of the tile."""
        if self.rank == 1:
            return ""
        return f"[{', '.join(':' if d == self.dim[k] else 'None' for d in range(self.rank))}]"

    # ---- masks ----------------------------------------------------------------------------------------------------

    def ragged(self, k: int) -> bool:
        """Whether the last tile of a block may hold points beyond the extent."""
        block, extent = self.blocks[k], self.extents[k]
        if k not in self.dim:
            return False
        if block.role == "whole":
            return extent != block.size
        if self.inside_tile and block.role == "loop":
            return False
        if k == self.shared_loop:
            return extent != self.share(k) * self.schedule.cluster or self.share(k) % block.size != 0
        if block.role in ("loop", "cluster") and self.schedule.peel and len(block.axes) == 1:
            return True
        end = self.end(k)
        return self.part == "rest" or not end.is_int or end.const % block.size != 0

    def end(self, k: int) -> Expr:
        """Where the tiles along a block end: at its extent, or at the last whole group before it."""
        return self.extents[k] // GROUP * GROUP if self.part == "groups" else self.extents[k]

    def inside(self, span: Span) -> list[str]:
        """Names of the conditions that a tile's points over ``span`` exist."""
        return [f"{self.lines[k]}_in" for k in sorted(self.dims(span)) if self.ragged(k)]

    def pieces(self, k: int) -> Expr:
        """Number of tiles along a block; a cluster's rows may begin up to an access after their first tile."""
        before = self.schedule.peel - 1 if self.blocks[k].role == "cluster" and self.schedule.peel else 0
        extent = self.end(k) if self.end(k).is_int else self.extents[k]  # one program at least, for the rest
        return ceildiv(extent + before, self.blocks[k].size)

    def share(self, k: int) -> int:
        """Points of a loop that each program of a cluster goes over: equal parts that begin where wide accesses may."""
        extent = self.extents[k]
        if not extent.is_int:
            raise UnsupportedKernel("a cluster that shares a loop of unknown length")
        return -(-extent.const // (self.schedule.cluster * _PART)) * _PART

    def members(self, k: int) -> int:
        """Number of programs of a cluster."""
        if k == self.shared_loop:
            apart = [b for j, b in enumerate(self.blocks) if j != k]
            if any(b.role != "grid" or b.size > 1 for b in apart) or k not in self.dim or self.schedule.peel:
                raise UnsupportedKernel("a cluster that shares a loop beside other tiles")
            return self.schedule.cluster
        count = self.pieces(k)
        if not count.is_int or not 1 < count.const <= 8 or any(b.size > 1 for b in self.blocks if b.role != "cluster"):
            raise UnsupportedKernel(f"a cluster of {size_text(count)} programs")
        return count.const

    def row_origin(self, k: int) -> Expr | None:
        """The first element of a row along block ``k``, if rows begin anywhere and some operand is contiguous there."""
        if not self.schedule.peel or len(self.blocks[k].axes) != 1:
            return None
        axis = self.axes[self.blocks[k].axes[0]]
        for eqn in self.body:
            if isinstance(eqn, Load | Store) and eqn.index[0].coefficient(axis) == 1:
                rest = eqn.index[0] - as_expr(axis)
                if rest.axes() and not self.dims(self.expr_span(rest)):
                    return rest
        return None

    def cluster_origin(self) -> Expr | None:
        """The first element of a cluster's row, likewise."""
        return None if self.cluster is None else self.row_origin(self.cluster)

    # ---- equations ------------------------------------------------------------------------------------------------

    def guards(self, eqn: Load | Store) -> list[Check]:
        """Checks that must hold before a loaded index may be used."""
        if not any(isinstance(a, Loaded) for e in eqn.index for a in e.atoms()):
            return []
        span, before = self.eqn_span(eqn), self.body[: self.body.index(eqn)]
        return [e for e in before if isinstance(e, Check) and self.eqn_span(e) <= span]

    # ---- index texts ----------------------------------------------------------------------------------------------

    def line_text(self, k: int, start: str) -> list[str]:
        """Definitions of a block's index, its axes and its mask, the tile beginning at ``start`` ("" for 0)."""
        block: Block = self.blocks[k]
        line = self.lines[k]
        if k in self.dim:
            points = f"tl.arange(0, {block.size}){self.slots(k)}"
            lines = [f"{line} = {start} + {points}" if start else f"{line} = {points}"]
        else:
            lines = [f"{line} = {start}"] if start != line else []
        if k in self.quads:
            quads = f"tl.arange(0, {block.size // 4}){self.slots(k)}"
            lines.append(f"{line}_quads = ({start}) // 4 + {quads}" if start else f"{line}_quads = {quads}")
        end = self.end(k)
        if self.ragged(k):
            lines.append(f"{line}_in = {line} < {f'{line}_end' if k == self.shared_loop else size_text(end)}")
        for step in sorted({turns.step for turns in self.turns.values()}) if self.dim.get(k) == self.rank - 1 else ():
            points = f"tl.arange(0, {block.size * step}){self.slots(k)}"
            lines.append(f"{line}_by{step} = ({start}) * {step} + {points}" if start else f"{line}_by{step} = {points}")
            if self.ragged(k):
                lines.append(f"{line}_by{step}_in = {line}_by{step} < {size_text(end * step)}")
        if len(block.axes) > 1:
            lines += self._axis_lines(block, line)
        return lines

    def _axis_lines(self, block: Block, line: str) -> list[str]:
        lines = []
        step = as_expr(1)
        for position, axis in reversed(list(enumerate(block.axes))):
            text = line if step == 1 else f"{line} // {_atomic(size_text(step))}"
            extent = self.axes[axis].extent
            if position:
                text = (
                    f"{text} % {_atomic(size_text(extent))}"
                    if step == 1
                    else f"({text}) % {_atomic(size_text(extent))}"
                )
            lines.append(f"{axis} = {text}")
            step = step * extent
        return lines[::-1]

    def joined(self, expr: Expr) -> Expr:
        """The expression with a block's axes replaced by its collapsed index where they step as one."""
        for k, block in enumerate(self.blocks):
            if len(block.axes) < 2 or not expr.axes() & set(block.axes):
                continue
            coefs = [expr.coefficient(self.axes[a]) for a in block.axes]
            last = coefs[-1]
            if last is None or last == 0:
                continue
            step, same = last, True
            for axis, coef in reversed(list(zip(block.axes, coefs, strict=True))):
                same = same and coef is not None and coef == step
                step = step * self.axes[axis].extent
            if same:
                rest = expr
                for axis, coef in zip(block.axes, coefs, strict=True):
                    assert coef is not None
                    rest = rest - coef * as_expr(self.axes[axis])
                expr = rest + last * as_expr(Axis(self.lines[k], self.extents[k]))
        return expr

    def parts(self, expr: Expr) -> tuple[str, str]:
        """An index expression as text: the part that is one number, and the part that varies over the tile."""
        expr = self.joined(expr)
        scalars: list[Expr] = []
        vectors: list[Expr] = []
        for mono, coef in expr.terms:
            term = Expr(((mono, coef),), 0)
            (vectors if any(self._varies(a) for a in mono) else scalars).append(term)
        scalar = sum(scalars, as_expr(0))
        vector = sum(vectors, as_expr(0))
        if vectors and not scalars:
            vector = vector + expr.const
        else:
            scalar = scalar + expr.const
        return self.text(scalar) if scalar != 0 else "", self.text(vector) if vectors else ""

    def quad(self, index: Expr) -> tuple[int, Expr] | None:
        """The tile's last dimension and the rest of ``index // 4``, if four neighbours there are one random block."""
        if self.rank == 0 or self.schedule.peel:
            return None
        k = max(self.dim, key=lambda block: self.dim[block])
        line = Axis(self.lines[k], self.extents[k])
        expr = self.joined(index)
        if self.blocks[k].size % 4 or expr.coefficient(line) != 1:
            return None
        rest = expr - as_expr(line)
        if rest.const % 4 or any(coef % 4 for _, coef in rest.terms):
            return None
        return k, rest

    def _varies(self, atom: Atom) -> bool:
        if isinstance(atom, Div | Mod):
            return any(self._varies(a) for a in (*atom.num.atoms(), *atom.den.atoms()) if a != atom)
        if isinstance(atom, Axis):
            k = self._block(atom.name)
            return k in self.dim
        if isinstance(atom, Loaded):
            return bool(self.dims(self.span(atom.name)))
        return False

    def _block(self, name: str) -> int:
        return self.block_of[name] if name in self.block_of else self.lines.index(name)

    def text(self, expr: Expr) -> str:
        """An index expression as Python text, in 64 bits where it could exceed 32."""
        low, high = expr.bounds()
        narrow = low is not None and high is not None and high.is_int and low > -_INT32 and high.const < _INT32
        return expr.text(lambda atom: self._atom(atom, narrow))

    def _atom(self, atom: Atom, narrow: bool) -> str:
        if isinstance(atom, Size):
            return atom.name
        if isinstance(atom, Axis):
            wide = self.wide[self._block(atom.name)]
            return atom.name if narrow or wide else f"{atom.name}.to(tl.int64)"
        if isinstance(atom, Loaded):
            held = self.dtype[atom.name]
            return atom.name if held == "int64" else f"{atom.name}.to(tl.int64)"
        num, den = self.text(atom.num), self.text(atom.den)
        name, sign = ("int_floor_div", "//") if isinstance(atom, Div) else ("int_mod", "%")
        inner = f"(({num}) {sign} ({den}))" if atom.num.nonnegative() else f"{name}({num}, {den})"
        return inner if narrow else f"{inner}.to(tl.int64)"

    def check(self) -> None:
        """Refuse what the schedule cannot do."""
        for eqn in self.body:
            if isinstance(eqn, Reduce):
                shared = [k for k in self.span_of_axes(eqn.axes) if self.blocks[k].role == "grid"]
                if any(self.extents[k] != 1 for k in shared):
                    raise UnsupportedKernel(f"{eqn.op} over axes that programs share")
            if isinstance(eqn, Scan) and self.blocks[self.block_of[eqn.axis]].role == "grid":
                raise UnsupportedKernel("a scan along an axis that programs share")
            if isinstance(eqn, Scan) and eqn.op == "sort" and self.blocks[self.block_of[eqn.axis]].role != "whole":
                raise UnsupportedKernel("a row that is sorted in parts")
        if sum(block.size > 1 for block in self.blocks) > 5:
            raise UnsupportedKernel("a tile of more than five dimensions")


def _turns(facts: NestAnalysis) -> dict[int, Turns]:
    """By its position each access that takes turns with others along the tile's last dimension."""
    if facts.schedule.kind != "pointwise" or facts.rank == 0 or facts.fresh or [*predicated_branches(facts.nest)]:
        return {}
    k = max(facts.dim, key=lambda block: facts.dim[block])
    if facts.blocks[k].role != "grid":
        return {}
    return accesses_in_turns(facts.body, facts.buffers, facts.joined, Axis(facts.lines[k], facts.extents[k]))


def indices(eqn: Equation) -> tuple[Expr, ...]:
    """The index expressions of an equation."""
    if isinstance(eqn, Load | Store):
        return eqn.index
    if isinstance(eqn, Index):
        return (eqn.expr,)
    if isinstance(eqn, Random):
        return (eqn.index,)
    return ()


def _atomic(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"
