"""A matrix product as a Triton function: tiles of both operands through the tensor cores, and what surrounds them.

Programs own tiles of the result. Each goes along the summed axis, loads or computes a tile of both operands, and adds
their product to an accumulator in float32 registers; the epilogue then works on that tile as any pointwise kernel does.
Programs whose tiles lie near one another run at the same time, so that they find their operands in the second-level
cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from lamina.codegen.triton.facts import Facts, size_text
from lamina.codegen.triton.nest import NestWriter
from lamina.codegen.triton.source import UnsupportedKernel
from lamina.codegen.triton.text import Text
from lamina.codegen.triton.types import typed
from lamina.ir.index import Expr, as_expr, prod
from lamina.ir.loops import Equation, Load, Nest
from lamina.ir.plan import Block, GpuSchedule
from lamina.ir.product import Product, as_product

__all__ = ["write_product"]

_GROUP = 8
"""Rows of tiles that programs go through together before they move on along the columns."""


def write_product(nest: Nest, schedule: GpuSchedule, dtypes: dict[str, str], text: Text, alone: bool) -> Expr:
    """Write the statements of a nest whose schedule has the kind "product"; gives the number of programs.

    ``alone``: the number of the program is not given as ``pid``.

    Raises ``UnsupportedKernel`` where the nest is no product or its axes are not in the blocks as it needs them.
    """
    product = as_product(nest)
    if product is None:
        raise UnsupportedKernel("tensor cores evaluate products of two operands of half precision")
    if alone:
        text.add("pid = tl.program_id(0)")
    return _Writer(nest, schedule, dtypes, text, product).run()


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

    def part(self, tile: tuple[Block, Block], body: Sequence[Equation]) -> Facts:
        """Facts about some equations over two blocks and the batch."""
        blocks = (*self.batch, *tile)
        names = {a for block in blocks for a in block.axes}
        axes = tuple(a for a in self.nest.axes if a.name in names)
        schedule = GpuSchedule(self.schedule.kind, blocks, self.schedule.warps, approximate=self.schedule.approximate)
        return Facts(Nest(self.nest.name, axes, tuple(body)), schedule, self.dtypes)

    def run(self) -> Expr:
        text, facts = self.text, self.result
        batch = len(self.batch)
        tiles = [facts.pieces(k) for k in range(batch + 2)]
        self.programs(tiles)
        for k in range(batch):
            text.extend(facts.line_text(k, self.start(facts, k)))
        for k in (batch, batch + 1):
            text.extend(facts.line_text(k, f"{self.start(facts, k)} * {facts.blocks[k].size}"))
        text.add(f"total = tl.zeros(({self.rows.size}, {self.columns.size}), tl.float32)")
        stages = f", num_stages={self.schedule.stages}" if self.schedule.stages > 1 else ""
        text.open(f"for inner_at in tl.range(0, {size_text(self.left.extents[-1])}, {self.inner.size}{stages}):")
        left = self.operand(self.left, batch + 1, self.product.left, "left")
        right = self.operand(self.right, batch, self.product.right, "right")
        text.add(f"total = tl.dot({left}, {right}, total)")
        text.close()
        text.add(f"{self.product.total.outs[0]} = total")
        writer = NestWriter(facts, text)
        for position in range(1, len(facts.body)):
            writer.equation(position)
        return prod(tiles)

    def programs(self, tiles: Sequence[Expr]) -> None:
        """Which tile a program owns, from its number."""
        text, facts = self.text, self.result
        batch = len(self.batch)
        across, down = (size_text(tiles[k]) for k in (batch + 1, batch))
        rest = f"(pid // ({across}) // ({down}))"
        for k in reversed(range(batch)):
            count = size_text(tiles[k])
            text.add(f"{facts.lines[k]}_pid = {rest} % ({count})" if k else f"{facts.lines[k]}_pid = {rest}")
            rest = f"({rest} // ({count}))"
        text.add(f"tile = pid % (({across}) * ({down}))" if batch else "tile = pid")
        rows, columns = facts.lines[batch], facts.lines[batch + 1]
        if tiles[batch] == 1:
            text.add(f"{rows}_pid = tl.full((), 0, tl.int32)")
            text.add(f"{columns}_pid = tile")
            return
        text.add(f"first = tile // ({_GROUP} * ({across})) * {_GROUP}")
        text.add(f"height = tl.minimum({down} - first, {_GROUP})")
        text.add(f"own = tile % ({_GROUP} * ({across}))")
        text.add(f"{rows}_pid = first + own % height")
        text.add(f"{columns}_pid = own // height")

    def start(self, facts: Facts, k: int) -> str:
        return f"{facts.lines[k]}_pid.to(tl.int64)" if facts.wide[k] else f"{facts.lines[k]}_pid"

    def operand(self, facts: Facts, inner: int, name: str, label: str) -> str:
        """Write what makes a tile of an operand; gives its name. Beyond the end of the summed axis it holds zeros."""
        text, writer = self.text, NestWriter(facts, self.text)
        text.extend(facts.line_text(inner, "inner_at"))
        ragged = facts.ragged(inner)
        padded = False
        for position, eqn in enumerate(facts.body):
            if ragged and isinstance(eqn, Load) and eqn.out == name and eqn.mask is None:
                text.add(f"{eqn.out} = {writer.load(eqn)[:-1]}, other=0.0)")
                padded = True
            else:
                writer.equation(position)
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
