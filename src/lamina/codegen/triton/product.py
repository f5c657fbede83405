"""A matrix product as a Triton function: tiles of both operands through the tensor cores, and what surrounds them.

Programs own tiles of the result. Each goes along the summed axis, loads or computes a tile of both operands, and adds
their product to an accumulator in float32 registers; the epilogue then works on that tile as any pointwise kernel does.
Programs whose tiles lie near one another run at the same time, so that they find their operands in the second-level
cache. A persistent grid has as many programs as run at once, and each takes one tile after the other.

Sums over all rows are written tile by tile; a second launch adds them up, always in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lamina.codegen.triton.descriptors import Descriptor, described
from lamina.codegen.triton.equations import EquationWriter
from lamina.codegen.triton.nest_analysis import NestAnalysis, size_text
from lamina.codegen.triton.source import UnsupportedKernel
from lamina.codegen.triton.text import Text
from lamina.codegen.triton.types import typed
from lamina.ir.index import Expr, as_expr, ceildiv, prod
from lamina.ir.loops import Equation, Load, Nest, Reduce, Store, defined, operands
from lamina.ir.plan import Block, GpuSchedule
from lamina.ir.product import Product, as_product

__all__ = ["WrittenProduct", "write_product", "write_sums"]

_GROUP = 8
"""Rows of tiles that programs go through together before they move on along the columns."""

_SUMMED_ROWS, _SUMMED_COLUMNS = 64, 32
"""Tiles and columns whose sums a program adds up at a time."""

_DESCRIPTOR_BYTES = 128
"""Bytes of one tensor-map descriptor of CUDA (``CUtensorMap``), which must be aligned to 64."""
_COPIES = 2
"""Specialised warps may keep a descriptor of their own."""


@dataclass(frozen=True, slots=True)
class WrittenProduct:
    """The number of programs, the bytes of scratch memory that each needs for descriptors, and the buffers whose
    addresses must be multiples of 16 because of them; the bytes of each workspace ``w0, w1, ...`` of sums over rows,
    and the number of programs that add them up.
    """

    programs: Expr
    scratch: int = 0
    aligned: tuple[str, ...] = ()
    workspace: tuple[Expr, ...] = ()
    adding: Expr | None = None


def write_product(nest: Nest, schedule: GpuSchedule, dtypes: dict[str, str], text: Text, alone: bool) -> WrittenProduct:
    """Write the statements of a nest whose schedule has the kind "product".

    ``alone``: the number of the program is not given as ``pid``. Only then is the grid persistent.

    Raises ``UnsupportedKernel`` where the nest is no product or its axes are not in the blocks as it needs them.
    """
    product = as_product(nest)
    if product is None:
        raise UnsupportedKernel("tensor cores evaluate products of two operands of half precision")
    if alone:
        text.add("pid = tl.program_id(0)")
    elif product.sums:
        raise UnsupportedKernel("sums over rows of a product that shares its launch")
    else:
        schedule = replace(schedule, persistent=0, descriptors=False, flat=False, specialized=False)
    return _Writer(nest, schedule, dtypes, text, product).run()


def write_sums(nest: Nest, schedule: GpuSchedule, dtypes: dict[str, str], text: Text) -> None:
    """Write the statements that add up a product's sums over rows, once it has written them tile by tile."""
    product = as_product(nest)
    assert product is not None
    by_axes = {block.axes: block for block in schedule.blocks}
    rows = prod(a.extent for a in nest.axes if a.name in product.rows)
    tiles = ceildiv(rows, by_axes[product.rows].size)
    columns = Block(product.columns, _SUMMED_COLUMNS, "grid")
    axes = tuple(a for a in nest.axes if a.name in product.columns)
    where = sum((as_expr(a) for a in axes), as_expr(0))
    stubs = tuple(Load(name, "b0", (where,), "float32") for e in product.sums for name in e.outs)
    facts = NestAnalysis(
        Nest(nest.name, axes, (*stubs, *product.after)),
        GpuSchedule("pointwise", (columns,), approximate=schedule.approximate),
        dtypes,
    )
    line, width = facts.lines[0], size_text(facts.extents[0])
    text.add("pid = tl.program_id(0)")
    start = "pid.to(tl.int64)" if facts.wide[0] else "pid"
    text.extend(facts.line_text(0, f"{start} * {columns.size}"))
    text.add(f"across = {line}[None, :]")
    for number, stub in enumerate(stubs):
        text.add(f"{stub.out}_tiles = tl.zeros(({_SUMMED_ROWS}, {columns.size}), tl.float32)")
        text.open(f"for tile_at in tl.range(0, {size_text(tiles)}, {_SUMMED_ROWS}):")
        text.add(f"tile = tile_at + tl.arange(0, {_SUMMED_ROWS})[:, None]")
        inside = f"(tile < {size_text(tiles)}) & (across < {width})"
        text.add(f"{stub.out}_tiles += tl.load(w{number} + tile * ({width}) + across, mask={inside}, other=0.0)")
        text.close()
        text.add(f"{stub.out} = tl.sum({stub.out}_tiles, axis=0)")
    writer = EquationWriter(facts, text)
    for position in range(len(stubs), len(facts.body)):
        writer.write(position)


class _PartAnalysis(NestAnalysis):
    """Facts about a part, the last block, of tiles that are ``width`` wide: all of a part may be beyond the extent."""

    def __init__(self, nest: Nest, schedule: GpuSchedule, dtypes: dict[str, str], width: int) -> None:
        super().__init__(nest, schedule, dtypes)
        self.width = width

    def ragged(self, k: int) -> bool:
        extent = self.extents[k]
        if k == len(self.blocks) - 1 and k in self.dim:
            return not extent.is_int or extent.const % self.width != 0
        return super().ragged(k)


class _Writer:
    """The function under construction. Each part of the nest has facts and a writer of its own."""

    def __init__(self, nest: Nest, schedule: GpuSchedule, dtypes: dict[str, str], text: Text, product: Product) -> None:
        self.nest, self.schedule, self.dtypes, self.text, self.product = nest, schedule, dtypes, text, product
        by_axes = {block.axes: block for block in schedule.blocks}
        try:
            self.rows, self.columns, self.inner = (by_axes[a] for a in (product.rows, product.columns, product.inner))
        except KeyError as missing:
            raise UnsupportedKernel(f"no block of the axes {missing}") from None
        self.batch = [by_axes[(a,)] for a in product.batch]
        total = product.total.outs[0]
        where = sum((as_expr(a) for a in nest.axes if a.name not in product.inner), as_expr(0))
        stub = Load(total, "b0", (where,), "float32")  # says over which axes the sum varies; never written
        self.left = self.part((self.rows, self.inner), product.prologues[0])
        self.right = self.part((self.inner, self.columns), product.prologues[1])
        self.result = self.part((self.rows, self.columns), (stub, *product.epilogue))
        if self.columns.size % schedule.epilogue_subtiles or schedule.epilogue_subtiles & (
            schedule.epilogue_subtiles - 1
        ):
            raise UnsupportedKernel(f"{self.columns.size} columns in {schedule.epilogue_subtiles} parts")
        narrow = replace(self.columns, size=self.columns.size // schedule.epilogue_subtiles)
        self.finish = self.part((self.rows, narrow), (stub, *product.epilogue), self.columns.size)
        self.later = _only_after(product)
        self.descriptors: dict[str, Descriptor] = {}

    def part(self, tile: tuple[Block, Block], body: Sequence[Equation], width: int = 0) -> NestAnalysis:
        """Facts about some equations over two blocks and the batch; ``width``: the last one is part of a wider one."""
        blocks = (*self.batch, *tile)
        names = {a for block in blocks for a in block.axes}
        axes = tuple(a for a in self.nest.axes if a.name in names)
        schedule = GpuSchedule(
            self.schedule.kind, blocks, warps=self.schedule.warps, approximate=self.schedule.approximate
        )
        return _PartAnalysis(Nest(self.nest.name, axes, tuple(body)), schedule, self.dtypes, width or tile[1].size)

    def run(self) -> WrittenProduct:
        text, facts = self.text, self.result
        batch = len(self.batch)
        tiles = [facts.pieces(k) for k in range(batch + 2)]
        total = prod(tiles)
        self.describe()
        persistent = self.schedule.persistent
        if persistent and total.is_int:
            persistent = min(persistent, total.const)
            flags = ", flatten=True" if self.schedule.flat else ""
            flags += ", warp_specialize=True" if self.schedule.specialized else ""
            if self.schedule.flat:
                text.add(f"finished = pid - {persistent}")
            text.open(f"for turn in tl.range(pid, {total.const}, {persistent}{flags}):")
            self.programs(tiles, "turn")
        else:
            persistent = 0
            self.programs(tiles, "pid")
        self.multiply()
        if persistent and self.schedule.flat:
            # Nothing but this number connects the epilogue with the loads of the tile that follows.
            text.add(f"finished += {persistent}")
            self.programs(tiles, "finished")
        self.epilogue()
        if persistent:
            text.close()
        each = _DESCRIPTOR_BYTES * (_COPIES if self.schedule.specialized else 1)
        aligned = tuple(dict.fromkeys(d.buffer for d in self.descriptors.values()))
        programs = as_expr(persistent) if persistent else total
        return WrittenProduct(programs, each * len(self.descriptors), aligned, *self.summing(tiles[batch]))

    def summing(self, tiles: Expr) -> tuple[tuple[Expr, ...], Expr | None]:
        """The bytes of the workspaces, and the programs that add up what is there."""
        columns = self.result.extents[-1]
        count = len(self.product.sums)
        return (tiles * columns * 4,) * count, ceildiv(columns, _SUMMED_COLUMNS) if count else None

    def multiply(self) -> None:
        """The accumulator and the loop along the summed axis."""
        text, batch = self.text, len(self.batch)
        for k, label in ((batch, "left"), (batch + 1, "right")):
            if label not in self.descriptors:
                self.lines(self.result, k)
        text.add(f"total = tl.zeros(({self.rows.size}, {self.columns.size}), tl.float32)")
        stages = f", num_stages={self.schedule.stages}" if self.schedule.stages > 1 else ""
        text.open(f"for inner_at in tl.range(0, {size_text(self.left.extents[-1])}, {self.inner.size}{stages}):")
        left = self.operand(self.left, batch + 1, self.product.left, "left")
        right = self.operand(self.right, batch, self.product.right, "right")
        text.add(f"total = tl.dot({left}, {right}, total)")
        text.close()

    def epilogue(self) -> None:
        """What is computed on the tile, one part after the other."""
        text, facts, schedule = self.text, self.finish, self.schedule
        total, rows, columns = self.product.total.outs[0], len(self.batch), len(self.batch) + 1
        width = facts.blocks[columns].size
        if schedule.flat or "left" in self.descriptors:
            self.lines(facts, rows)
        for number, name in enumerate(self.split("total", self.columns.size, schedule.epilogue_subtiles)):
            text.add(f"{total} = {name}")
            if schedule.flat or schedule.epilogue_subtiles > 1 or "right" in self.descriptors:
                self.lines(facts, columns, number * width)
            after = f" + {number * width}" if number else ""
            at = {
                rows: f"{facts.lines[rows]}_pid * {self.rows.size}",
                columns: f"{facts.lines[columns]}_pid * {self.columns.size}{after}",
            }
            writer = EquationWriter(facts, text)
            for position in range(1, len(facts.body)):
                eqn = facts.body[position]
                if isinstance(eqn, Reduce):
                    self.sum_rows(facts, writer, eqn)
                    continue
                if eqn in self.later:
                    continue
                into = self.descriptors.get(f"store {eqn.buffer}") if isinstance(eqn, Store) else None
                if into is not None and isinstance(eqn, Store):
                    held = f"{writer.operands.value(eqn.value)}.to({typed(self.dtypes[eqn.buffer])})"
                    text.add(f"{into.name}.store({into.place(at)}, {held})")
                else:
                    writer.write(position)

    def sum_rows(self, facts: NestAnalysis, writer: EquationWriter, eqn: Reduce) -> None:
        """Write the sum over a tile's rows to the workspace."""
        rows, columns = (facts.lines[-2], facts.lines[-1])
        summed = writer.operands.value(eqn.value)
        value = f"tl.broadcast_to({summed}, ({facts.blocks[-2].size}, {facts.blocks[-1].size}))"
        if facts.ragged(len(facts.blocks) - 2):
            value = f"tl.where({rows}_in, {value}, 0.0)"
        inside = f", mask={columns}_in" if facts.ragged(len(facts.blocks) - 1) else ""
        place = f"w{self.product.sums.index(eqn)} + {rows}_pid * ({size_text(facts.extents[-1])}) + {columns}"
        self.text.add(f"tl.store({place}, tl.sum({value}, axis=0, keep_dims=True){inside})")

    def split(self, name: str, width: int, parts: int) -> list[str]:
        """Write the halving of a tile's columns until there are ``parts``; their names from left to right."""
        if parts == 1:
            return [name]
        half = width // 2
        self.text.add(
            f"{name}_0, {name}_1 = tl.split(tl.permute(tl.reshape({name}, ({self.rows.size}, 2, {half})), (0, 2, 1)))"
        )
        return [n for k in (0, 1) for n in self.split(f"{name}_{k}", half, parts // 2)]

    def describe(self) -> None:
        """Write the descriptors of what the copy engine moves."""
        if not self.schedule.descriptors or self.batch:
            return
        for facts, name, label in ((self.left, self.product.left, "left"), (self.right, self.product.right, "right")):
            (eqn,) = facts.body if len(facts.body) == 1 else (None,)
            if isinstance(eqn, Load) and eqn.out == name and eqn.mask is None and eqn.dtype == self.product.dtype:
                self.add(label, described(facts, eqn.buffer, eqn.index[0], f"{label}_tiles"))
        stores = [e for e in self.finish.body if isinstance(e, Store) and e.mask is None and e.mode == "set"]
        stores = [e for e in stores if e not in self.later]
        loaded = {e.buffer for e in self.nest.body if isinstance(e, Load)}
        for number, eqn in enumerate(stores):
            # The copy engine's writes are not ordered with ordinary reads of the same memory.
            if eqn.buffer not in loaded and sum(s.buffer == eqn.buffer for s in stores) == 1:
                found = described(self.finish, eqn.buffer, eqn.index[0], f"result{number or ''}_tiles")
                self.add(f"store {eqn.buffer}", found if found and not found.transposed else None)

    def add(self, key: str, descriptor: Descriptor | None) -> None:
        if descriptor is not None:
            self.descriptors[key] = descriptor
            self.text.add(descriptor.text)

    def programs(self, tiles: Sequence[Expr], number: str) -> None:
        """Which tile a program owns, from its number."""
        text, facts = self.text, self.result
        batch = len(self.batch)
        across, down = (size_text(tiles[k]) for k in (batch + 1, batch))
        rest = f"({number} // ({across}) // ({down}))"
        for k in reversed(range(batch)):
            count = size_text(tiles[k])
            text.add(f"{facts.lines[k]}_pid = {rest} % ({count})" if k else f"{facts.lines[k]}_pid = {rest}")
            rest = f"({rest} // ({count}))"
        text.add(f"tile = {number} % (({across}) * ({down}))" if batch else f"tile = {number}")
        rows, columns = facts.lines[batch], facts.lines[batch + 1]
        if tiles[batch] == 1:
            text.add(f"{rows}_pid = tl.full((), 0, tl.int32)")
            text.add(f"{columns}_pid = tile")
        else:
            text.add(f"first = tile // ({_GROUP} * ({across})) * {_GROUP}")
            text.add(f"height = tl.minimum({down} - first, {_GROUP})")
            text.add(f"own = tile % ({_GROUP} * ({across}))")
            text.add(f"{rows}_pid = first + own % height")
            text.add(f"{columns}_pid = own // height")
        for k in range(batch):
            text.extend(facts.line_text(k, self.start(facts, k)))

    def lines(self, facts: NestAnalysis, k: int, after: int = 0) -> None:
        """Write the indices of a tile's rows or columns, ``after`` the first of the tile."""
        size = (self.rows, self.columns)[k - len(self.batch)].size
        begin = f"{self.start(facts, k)} * {size}{f' + {after}' if after else ''}"
        self.text.extend(facts.line_text(k, begin))

    def start(self, facts: NestAnalysis, k: int) -> str:
        return f"{facts.lines[k]}_pid.to(tl.int64)" if facts.wide[k] else f"{facts.lines[k]}_pid"

    def operand(self, facts: NestAnalysis, inner: int, name: str, label: str) -> str:
        """Write what makes a tile of an operand; gives its name. Beyond the end of the summed axis it holds zeros."""
        text, writer = self.text, EquationWriter(facts, self.text)
        if label in self.descriptors:
            found = self.descriptors[label]
            other = inner - 1 if label == "left" else inner + 1
            at = {inner: "inner_at", other: f"{facts.lines[other]}_pid * {facts.blocks[other].size}"}
            text.add(f"{name} = {found.name}.load({found.place(at)}){'.T' if found.transposed else ''}")
            return name
        text.extend(facts.line_text(inner, "inner_at"))
        ragged = facts.ragged(inner)
        padded = False
        for position, eqn in enumerate(facts.body):
            if ragged and isinstance(eqn, Load) and eqn.out == name and eqn.mask is None:
                text.add(f"{eqn.out} = {writer.memory.load(eqn)[:-1]}, other=0.0)")
                padded = True
            else:
                writer.write(position)
        made = name
        if facts.dtype[name] != self.product.dtype:
            made = f"{label}_operand"
            text.add(f"{made} = {name}.to({typed(self.product.dtype)})")
        if ragged and not padded:
            text.add(f"{label}_padded = tl.where({facts.lines[inner]}_in, {made}, 0.0)")
            made = f"{label}_padded"
        shape = f"({facts.blocks[-2].size}, {facts.blocks[-1].size})"
        if facts.dims(facts.span(name)) != facts.dims(frozenset(range(len(facts.blocks)))):
            raise UnsupportedKernel(f"an operand that does not vary over its tile of {shape}")
        return made


def _only_after(product: Product) -> tuple[Equation, ...]:
    """What of an epilogue nothing but its sums' readers need."""
    known = {name for e in product.sums for name in e.outs}
    found: list[Equation] = []
    for eqn in product.epilogue:
        if eqn not in product.sums and known & set(operands(eqn)):
            found.append(eqn)
            known |= set(defined(eqn))
    return tuple(found)
