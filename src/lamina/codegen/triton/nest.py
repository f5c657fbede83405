"""One nest as the body of a Triton function: equations placed in loops, and loops where reductions need them.

A region is what happens inside a set of open loops. Its equations fall into phases: a reduction over a loop that is
not open yet ends a phase, and what uses its result belongs to the next one. Each phase opens the loops its goals need
and computes again, inside them, whatever varies over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from lamina.base.dtypes import DTYPES
from lamina.codegen.triton.alongside import loaded_alongside
from lamina.codegen.triton.early import read_early
from lamina.codegen.triton.expressions import cast_text, compute_text, constant_text
from lamina.codegen.triton.facts import Facts, Span, size_text
from lamina.codegen.triton.online import online_sums
from lamina.codegen.triton.reductions import Accumulator, Reducer
from lamina.codegen.triton.scans import Scanner
from lamina.codegen.triton.source import UnsupportedKernel
from lamina.codegen.triton.team import Team
from lamina.codegen.triton.text import Text
from lamina.codegen.triton.types import literal, typed
from lamina.codegen.triton.whole import find_wholes
from lamina.ir.index import Expr, Loaded, as_expr
from lamina.ir.loops import (
    Check,
    Compute,
    Constant,
    Index,
    Load,
    Random,
    Reduce,
    Scan,
    Store,
    defined,
    operands,
)
from lamina.ir.rare import rare_branches

__all__ = ["NestWriter"]

_UNROLL = 4
"""Iterations over single points whose loads are in flight together."""
_UNROLLED_LOADS = 8
"""Most loads of such an iteration; more are enough by themselves."""


class NestWriter:
    """Writes the statements of one nest. ``first_check`` numbers its Checks among the kernel's."""

    def __init__(self, facts: Facts, text: Text, first_check: int = 0) -> None:
        self.facts, self.text = facts, text
        self.body = facts.body
        self.reduce = Reducer(facts)
        self.scan = Scanner(facts, self.reduce)
        self.made = {name: p for p, eqn in enumerate(self.body) for name in defined(eqn)}
        self.constants = {e.out: e for e in self.body if isinstance(e, Constant)}
        self.accumulators: dict[int, Accumulator] = {}
        self.onlines = online_sums(self.body) if facts.schedule.online else {}
        self.wholes = find_wholes(facts)
        self.checks = [p for p, e in enumerate(self.body) if isinstance(e, Check)]
        self.first_check = first_check
        self.peeled: dict[int, Expr] = {}
        self.passes: dict[int, int] = {}
        self.team = None if facts.team is None else Team(facts, self.reduce, facts.team)
        self.sharing = None if facts.shared_loop is None else Team(facts, self.reduce, facts.shared_loop)
        self.joined: set[int] = set()
        self.tile = ""  # of an unrolled loop
        self.kept: set[str] = set()
        self.ahead: set[str] = set()
        self.alongside = loaded_alongside(facts)
        self.branches = self.find_branches()
        self.postponed = {p for private in self.branches.values() for p in private}
        self.inverses: set[str] = set()

    def run(self) -> None:
        """Write all of it; the indices of shared blocks are defined already."""
        for team in (self.team, self.sharing):
            if team is not None:
                self.text.extend(team.lines())
        goals = [p for p, e in enumerate(self.body) if isinstance(e, Store | Check)]
        self.region(frozenset(), frozenset(), goals)
        if self.team is not None and self.team.origin is not None:
            self.ends(self.team, goals)

    def ends(self, team: Team, goals: Sequence[int]) -> None:
        """What a team's rows that begin anywhere have beside whole aligned groups, computed again in a small tile."""
        stores = [p for p in goals if isinstance(e := self.body[p], Store) and team.meets(e.index[0])]
        known = frozenset(n for n in self.made if team.k not in self.facts.span(n))
        if stores:
            blocks = self.facts.blocks
            team.begin_ends(self.text)
            for p in self.slice(stores, known, ()):
                self.equation(p)
            self.facts.blocks = blocks

    # ---- what is needed where ---------------------------------------------------------------------------------------

    def loops_of(self, position: int, opened: Span) -> list[int]:
        """Loops that must be open, and are not, where an equation is evaluated."""
        eqn = self.body[position]
        span = self.facts.eqn_span(eqn)
        if isinstance(eqn, Reduce):
            span = span | self.facts.span_of_axes(eqn.axes)
        return [k for k in self.facts.loops if k in span and k not in opened]

    def inputs(self, position: int) -> tuple[str, ...]:
        """Values an equation reads; an online sum reads what its maximum reads."""
        eqn = self.body[position]
        if position in self.onlines and position in self.accumulators:
            return (self.onlines[position].value,)
        found = operands(eqn)
        if isinstance(eqn, Load | Store) and self.guards(eqn):
            found = (*found, *(self.body[p].cond for p in self.guards(eqn)))  # type: ignore[union-attr]
        return found

    def guards(self, eqn: Load | Store) -> list[int]:
        """Checks that must hold before a loaded index may be used."""
        at = self.body.index(eqn)
        if not any(isinstance(a, Loaded) for e in eqn.index for a in e.atoms()):
            return []
        span = self.facts.eqn_span(eqn)
        return [p for p in self.checks if p < at and self.facts.eqn_span(self.body[p]) <= span]

    def slice(self, goals: Iterable[int], known: frozenset[str], online: Iterable[int]) -> list[int]:
        """Equations that the goals need beyond what is known, in order. Sums in ``online`` stand on their maximum."""
        pending, found = list(goals), set(goals)
        paired = set(online)
        while pending:
            p = pending.pop()
            names = self.inputs(p)
            if p in paired:
                names = (self.onlines[p].maximum, self.onlines[p].value)
            for name in names:
                q = self.made[name]
                if name not in known and q not in found:
                    found.add(q)
                    pending.append(q)
        return sorted(found)

    def completes(self, position: int, opened: Span) -> bool:
        """Whether a reduction needs a loop that is not open, and so ends a phase of this region."""
        eqn = self.body[position]
        if not isinstance(eqn, Reduce) or position in self.accumulators:
            return False
        return any(k in self.facts.loops and k not in opened for k in self.facts.span_of_axes(eqn.axes))

    # ---- regions ----------------------------------------------------------------------------------------------------

    def region(self, opened: Span, known: frozenset[str], goals: list[int]) -> None:
        """Write what the goals need inside the loops of ``opened``."""
        online = [p for p in self.onlines if self.completes(p, opened)]
        need = read_early(self.facts, self.slice(goals, known, online))
        phase: dict[int, int] = {}
        result: dict[str, int] = {}
        for p in need:
            eqn = self.body[p]
            names = self.inputs(p) if p not in online else (self.onlines[p].value,)
            phase[p] = max((result.get(n, 0) for n in names), default=0)
            for name in defined(eqn):
                result[name] = phase[p] + self.completes(p, opened)
        have = set(known)
        for now in range(max(phase.values(), default=0) + 1):
            current = [p for p in need if phase[p] == now]
            inner: list[int] = []
            for p in current:
                if self.loops_of(p, opened):
                    if p in goals or self.completes(p, opened):
                        inner.append(p)
                    continue
                self.equation(p)
                have.update(defined(self.body[p]))
            self.loops(opened, frozenset(have), inner)
            have.update(n for p in inner if self.completes(p, opened) for n in defined(self.body[p]))

    def loops(self, opened: Span, known: frozenset[str], goals: list[int]) -> None:
        """Open the loops that the goals need, those of equal first loop together."""
        for k in self.facts.loops:
            mine = [p for p in goals if self.loops_of(p, opened)[0] == k]
            if not mine:
                continue
            started = [p for p in mine if self.completes(p, opened)]
            for p in started:
                self.start(p, opened, started)
            self.loop(k, opened, known, mine)
            self.finish(started)

    def start(self, position: int, opened: Span, need: Sequence[int]) -> None:
        """Define a reduction's shares; the reductions of ``need`` begin together."""
        eqn = self.body[position]
        assert isinstance(eqn, Reduce)
        facts = self.facts
        over = facts.span_of_axes(eqn.axes)
        span = facts.span(eqn.value) | over
        if any(k in facts.loops and k not in opened and k not in over for k in span):
            raise UnsupportedKernel("a reduction across a loop whose results vary over another loop")
        paired = any(o.maximum == eqn.outs[0] and p in need for p, o in self.onlines.items())
        if self.reduce.folds(eqn):
            span -= over
        acc = Accumulator(eqn, f"{eqn.outs[0]}_acc", facts.dims(span), self.onlines.get(position), paired)
        self.accumulators[position] = acc
        self.reduce.begin(self.text, acc)

    def finish(self, started: Sequence[int]) -> None:
        """Join the shares of the reductions that a loop completed."""
        for p in started:
            acc = self.accumulators.pop(p)
            if acc.online is None:
                waiting = (self.accumulators.get(q) for q in started)
                totals = [t for t in waiting if t and t.online and t.online.maximum == acc.eqn.outs[0]]
                if self.sharing is not None:
                    self.sharing.gather(self.text, acc, totals)
                self.reduce.finish(self.text, acc)
                for total in totals:
                    self.reduce.finish_online(self.text, acc, total)
                    self.inverse(total.eqn)

    def inverse(self, total: Reduce) -> None:
        """The reciprocal of a sum beside a maximum, for quotients by it: the sum is never tiny."""
        (out,) = total.outs
        if self.facts.schedule.approximate and self.facts.dtype[out] == "float32":
            self.text.add(f"{out}_inverse = 1.0 / {out}")
            self.inverses.add(out)

    def loop(self, k: int, opened: Span, known: frozenset[str], goals: list[int]) -> None:
        """One loop over a block's tiles."""
        facts, text = self.facts, self.text
        block, line = facts.blocks[k], facts.lines[k]
        scans = self.scan.of_loop(k)
        if scans:
            self.scan.begin(text, scans)
        origin = self.origin(k) if not scans else None
        if origin is not None:
            self.peeled_loop(k, opened, known, goals, origin)
            return
        backwards = any(s.reverse for s in scans)
        if backwards and not all(s.reverse for s in scans):
            raise UnsupportedKernel("scans in both directions in one loop")
        start = line if k not in facts.dim else f"{line}_at"
        stages = f", num_stages={facts.schedule.stages}" if facts.schedule.stages > 1 else ""
        if facts.schedule.held:
            self.unrolled(k, opened, known, goals)
            return
        if self.sharing is not None:
            share = facts.share(k)
            text.open(f"for {line}_of in tl.range(0, {share}, {block.size}{stages}):")
            end = (share - 1) // block.size * block.size
            place = f"{end} - {line}_of" if self.returns(k, goals) else f"{line}_of"
            text.add(f"{start} = {line}_first + {place}")
        elif self.returns(k, goals):
            last = f"({_count(facts, k)} - 1) * {block.size}"
            text.open(f"for {line}_back in tl.range(0, {size_text(facts.extents[k])}, {block.size}{stages}):")
            text.add(f"{start} = {last} - {line}_back")
        elif backwards:
            step = f"{line}_step"
            text.open(f"for {step} in tl.range(0, {_count(facts, k)}{stages}):")
            last = f"({_count(facts, k)} - 1 - {step})"
            text.add(f"{start} = {last}" if block.size == 1 else f"{start} = {last} * {block.size}")
        else:
            alone = block.size == 1 and not stages and self.loads_in(k) <= _UNROLLED_LOADS
            unroll = f", loop_unroll_factor={_UNROLL}" if alone else ""
            text.open(f"for {start} in tl.range(0, {size_text(facts.extents[k])}, {block.size}{stages}{unroll}):")
        text.extend(facts.line_text(k, start))
        self.region(opened | {k}, known, goals)
        text.close()

    def loads_in(self, k: int) -> int:
        """Loads in a loop."""
        return sum(isinstance(e, Load) and k in self.facts.eqn_span(e) for e in self.body)

    def returns(self, k: int, goals: Sequence[int]) -> bool:
        """Whether a loop runs from the end: every other pass, so that it meets in the cache what was read last.

        Not where the order counts: scans, first places, and points taken one by one, whose loads run together.
        """
        done = self.passes[k] = self.passes.get(k, -1) + 1
        if k not in self.facts.dim or done % 2 == 0:
            return False
        ordered = [e for p in goals if isinstance(e := self.body[p], Reduce) and e.op in ("argmax", "argmin")]
        return not ordered and not self.scan.of_loop(k)

    def unrolled(self, k: int, opened: Span, known: frozenset[str], goals: list[int]) -> None:
        """A loop whose tiles are written one after the other, so that what they load stays in registers."""
        facts, line = self.facts, self.facts.lines[k]
        size, extent = facts.blocks[k].size, facts.extents[k]
        reach = extent if self.sharing is None else as_expr(facts.share(k))
        even = self.sharing is None or extent == facts.share(k) * facts.schedule.team
        if not reach.is_int or facts.schedule.peel:
            raise UnsupportedKernel("a loop that is unrolled, of unknown length or with unaligned ends")

        def tile(begin: int) -> None:
            facts.inside_tile = even and begin + size <= reach.const
            start = str(begin) if self.sharing is None else f"{line}_first + {begin}"
            self.text.extend(facts.line_text(k, start))

        self.tiles(range(0, reach.const, size), tile, opened | {k}, known, goals)

    def tiles(
        self, begins: range, tile: Callable[[int], None], opened: Span, known: frozenset[str], goals: list[int]
    ) -> None:
        """Tiles of an unrolled loop, each defined by ``tile``: all loads of the first phase come before its work."""
        loads = [e for p in self.slice(goals, known, ()) if isinstance(e := self.body[p], Load) and not operands(e)]
        names = {
            f"{e.out}_tile{n}" for e in loads for n in range(len(begins)) if self.facts.dims(self.facts.eqn_span(e))
        }
        for pass_ in ("loads", "work") if names - self.kept else ("work",):
            for number, begin in enumerate(begins):
                self.tile = str(number)
                tile(begin)
                if pass_ == "work":
                    self.region(opened, known, goals)
                    continue
                for eqn in loads:
                    if f"{eqn.out}_tile{number}" in names - self.kept:
                        self.hold(eqn)
                        self.ahead.add(f"{eqn.out}_tile{number}")
        self.facts.inside_tile, self.tile = False, ""

    def hold(self, eqn: Load) -> None:
        """A load of an unrolled loop: from memory the first time, then what is held of it."""
        name = f"{eqn.out}_tile{self.tile}"
        if name not in self.kept:
            self.text.add(f"{name} = {self.load(eqn)}")
            self.kept.add(name)
            return
        if name in self.ahead:
            self.ahead.remove(name)
        elif DTYPES[self.facts.buffers[eqn.buffer]].size <= 4 and eqn.dtype != "bool":
            self.text.add(f"{name} = keep({name})")

    def peeled_loop(self, k: int, opened: Span, known: frozenset[str], goals: list[int], origin: Expr) -> None:
        """A loop over rows that begin at any element: first a tile of the unaligned ends, then the aligned middle.

        ``origin`` is a row's first element; ``peel`` elements are one aligned access.
        """
        facts, text = self.facts, self.text
        line, size, peel = facts.lines[k], facts.blocks[k].size, facts.schedule.peel
        extent = size_text(facts.extents[k])
        text.add(f"{line}_origin = {facts.text(origin)}")
        text.add(f"{line}_head = tl.minimum(({peel} - {line}_origin % {peel}) % {peel}, {extent})")
        text.add(f"{line}_body = tl.multiple_of(({extent} - {line}_head) // {peel} * {peel}, {peel})")
        text.add(f"{line}_start = tl.multiple_of({line}_origin + {line}_head, {peel})")
        text.add(f"{line}_own = tl.arange(0, {size}){facts.slots(k)}")
        tail = f"{line}_head + {line}_body + {line}_own - {peel}"
        text.add(f"{line} = tl.where({line}_own < {peel}, {line}_own, {tail})")
        ends = f"tl.where({line}_own < {peel}, {line}_own < {line}_head, {line} < {extent})"
        text.add(f"{line}_in = {ends} & ({line}_own < {2 * peel})")
        self.region(opened | {k}, known, goals)
        stages = f", num_stages={facts.schedule.stages}" if facts.schedule.stages > 1 else ""
        if self.returns(k, goals):
            text.open(f"for {line}_back in tl.range(0, {line}_body, {size}{stages}):")
            text.add(f"{line}_at = ({line}_body - 1) // {size} * {size} - {line}_back")
        else:
            text.open(f"for {line}_at in tl.range(0, {line}_body, {size}{stages}):")
        text.add(f"{line}_own = {line}_at + tl.arange(0, {size}){facts.slots(k)}")
        text.add(f"{line} = {line}_head + {line}_own")
        text.add(f"{line}_in = {line}_own < {line}_body")
        self.peeled[k] = origin
        self.region(opened | {k}, known, goals)
        del self.peeled[k]
        text.close()

    def origin(self, k: int) -> Expr | None:
        """Where a row begins in the operands that are contiguous along a loop's block."""
        facts = self.facts
        block = facts.blocks[k]
        if not facts.schedule.peel or len(block.axes) != 1 or k not in facts.dim:
            return None
        axis = facts.axes[block.axes[0]]
        for eqn in self.body:
            if isinstance(eqn, Load | Store) and eqn.index[0].coefficient(axis) == 1:
                rest = eqn.index[0] - as_expr(axis)
                if rest.axes() and not facts.dims(facts.expr_span(rest)):
                    return rest
        return None

    # ---- equations --------------------------------------------------------------------------------------------------

    def equation(self, position: int) -> None:
        """Write one equation whose loops are all open."""
        eqn, text = self.body[position], self.text
        if position in self.postponed:
            return
        if position in self.branches:
            self.branch(position)
            return
        if isinstance(eqn, Constant) or (position in self.joined and self.team is not None and not self.team.at_ends):
            return
        if position in self.wholes.tests:
            return
        if isinstance(eqn, Load) and self.tile and self.facts.dims(self.facts.eqn_span(eqn)):
            self.hold(eqn)
            text.add(f"{eqn.out} = {eqn.out}_tile{self.tile}")
        elif isinstance(eqn, Load):
            text.add(f"{eqn.out} = {self.load(eqn)}")
        elif isinstance(eqn, Compute):
            text.add(f"{eqn.out} = {self.compute(position, eqn)}")
        elif isinstance(eqn, Index):
            text.add(f"{eqn.out} = {self.index(eqn)}")
        elif isinstance(eqn, Random):
            text.add(f"{eqn.out} = {self.random(eqn)}")
        elif isinstance(eqn, Reduce):
            acc = self.accumulators.get(position)
            if self.team is not None:
                self.join(self.team, position, eqn)
            elif acc is None:
                self.reduce.tile(text, eqn, self.value(eqn.value))
            else:
                peers = {a.eqn.outs[0]: a for a in self.accumulators.values()}
                self.reduce.accumulate(text, acc, self.value(eqn.value), peers)
        elif isinstance(eqn, Scan):
            self.scan.write(text, eqn, self.value(eqn.value))
        elif isinstance(eqn, Store):
            self.store(eqn)
        else:
            self.check(position, eqn)

    def find_branches(self) -> dict[int, tuple[int, ...]]:
        """For each choice whose last operand is loaded for a few rows only, the equations that wait for that."""
        found: dict[int, tuple[int, ...]] = {}
        facts = self.facts
        for branch in rare_branches(facts.nest) if self.team is None else ():
            masked = any(isinstance(e, Load) and e.mask is not None for e in branch.private)
            if masked and facts.dims(facts.span(branch.choice.ins[1])) == facts.dims(facts.span(branch.choice.out)):
                private = {id(e) for e in branch.private}
                places = tuple(p for p, e in enumerate(self.body) if id(e) in private)
                found[self.made[branch.choice.out]] = places
        return found

    def branch(self, position: int) -> None:
        """A choice as a branch that programs take if one of their rows needs it: nothing in it is read ahead."""
        choice, text = self.body[position], self.text
        assert isinstance(choice, Compute)
        places = self.branches[position]
        same, first, _ = choice.ins
        rows = self.facts.dims(self.facts.span(same))
        text.add(f"{choice.out} = {self.value(first)}")
        text.open(f"if tl.min({same}.to(tl.int32), axis=None) == 0:" if rows else f"if ~{same}:")
        self.postponed.difference_update(places)
        for p in places:
            self.equation(p)
        self.postponed.update(places)
        text.add(f"{choice.out} = {self.compute(position, choice)}")
        text.close()

    def join(self, team: Team, position: int, eqn: Reduce) -> None:
        """A reduction of a row that programs share; the sum beside a maximum is joined with it."""
        for p, online in self.onlines.items():
            total = self.body[p]
            if online.maximum == eqn.outs[0] and isinstance(total, Reduce):
                self.joined.add(p)
                if team.write_online(self.text, eqn, total, online, self.value(eqn.value)):
                    self.joined.add(self.made[total.value])
                self.inverse(total)
                return
        team.write(self.text, eqn, self.value(eqn.value))

    def value(self, name: str) -> str:
        """A value as an operand."""
        constant = self.constants.get(name)
        return name if constant is None else constant_text(constant.value, constant.dtype)

    def plain(self, name: str) -> str | None:
        """The literal of a constant that may stand beside an infix operator."""
        constant = self.constants.get(name)
        if constant is None or constant.dtype == "bool":
            return None
        found = literal(constant.value, constant.dtype)
        return f"({found})" if found.startswith("-") else found

    def compute(self, position: int, eqn: Compute) -> str:
        if position in self.wholes.casts:
            return f"round_to_bits({self.value(eqn.ins[0])}).to({typed(eqn.dtype)})"
        if position in self.wholes.roundings:
            return self.value(eqn.ins[0])  # the cast rounds
        if position in self.wholes.clamps:
            way, inner, bound = self.wholes.clamps[position]
            return f"tl.{way}({inner}, {self.value(bound)}, propagate_nan=tl.PropagateNan.ALL)"
        if position in self.wholes.quotients and not self.facts.schedule.approximate:
            return f"small_quotient({self.value(eqn.ins[0])}, {self.value(eqn.ins[1])})"
        if eqn.op == "div" and eqn.ins[1] in self.inverses and eqn.dtype == "float32":
            return f"{self.value(eqn.ins[0])} * {eqn.ins[1]}_inverse"
        dtypes = [self.facts.dtype[n] for n in eqn.ins]
        varying = [n for n in eqn.ins if n not in self.constants]

        def plain(k: int) -> str | None:
            return self.plain(eqn.ins[k]) if varying else None

        return compute_text(eqn, dtypes, lambda k: self.value(eqn.ins[k]), plain, self.facts.schedule.approximate)

    def index(self, eqn: Index) -> str:
        number = f"({self.facts.text(self.facts.joined(eqn.expr))} + tl.full((), 0, tl.int64))"
        return cast_text(number, "int64", eqn.dtype)

    def random(self, eqn: Random) -> str:
        stream = eqn.stream if isinstance(eqn.stream, int) else size_text(eqn.stream)
        quad = self.facts.quad(eqn.index)
        if quad is None:
            place = f"{self.facts.text(self.facts.joined(eqn.index))} + tl.full((), 0, tl.int64)"
            made = f"uniform({self.value(eqn.seed)}, {stream}, {place})"
        else:
            k, rest = quad
            begin = f"({self.facts.text(rest)}) // 4 + " if rest != 0 else ""
            block = f"{begin}{self.facts.lines[k]}_quads + tl.full((), 0, tl.int64)"
            made = f"uniform_quads({self.value(eqn.seed)}, {stream}, {block})"
        return made if eqn.dtype == "float32" else cast_text(made, "float32", eqn.dtype)

    # ---- memory -----------------------------------------------------------------------------------------------------

    def pointer(self, buffer: str, index: Expr, span: Span) -> str:
        """Address of every point of ``span``."""
        facts = self.facts
        for k, origin in self.peeled.items():
            if index - origin == as_expr(facts.axes[facts.blocks[k].axes[0]]) and facts.dims(span) == {k}:
                return f"{buffer} + {facts.lines[k]}_start + {facts.lines[k]}_own"
        scalar, vector = facts.parts(index)
        text = f"{buffer} + {scalar}" if scalar else buffer
        if vector:
            text = f"{text} + ({vector})"
        if facts.dims(span) != facts.dims(facts.expr_span(index)):
            text = f"{text} + tl.zeros({facts.shape(span)}, tl.int32)"
        return text

    def mask(self, eqn: Load | Store, span: Span) -> list[str]:
        """Conditions under which memory is touched."""
        masks = self.facts.inside(span)
        masks += [self.value(self.body[p].cond) for p in self.guards(eqn)]  # type: ignore[union-attr]
        if eqn.mask is not None:
            masks.append(self.value(eqn.mask))
        return list(dict.fromkeys(masks))

    def load(self, eqn: Load) -> str:
        if self.team is not None and self.team.meets(eqn.index[0]) and eqn.mask is None:
            return self.team.load(eqn)
        span = self.facts.eqn_span(eqn)
        row = self.alongside.get(self.made[eqn.out])
        text = self.pointer(eqn.buffer, eqn.index[0], span if row is None else span | {row})
        masks = self.mask(eqn, span)
        if masks:
            text += f", mask={' & '.join(masks)}"
        if eqn.mask is not None:
            text += f", other={literal(eqn.fill, eqn.dtype)}"
        if self.facts.schedule.streamed and eqn.index[0].axes() == self.facts.axes.keys():
            text += ', eviction_policy="evict_first"'
        if eqn.buffer in self.facts.fresh:
            text += ', cache_modifier=".cg"'
        return f"tl.load({text})"

    def first(self, span: Span) -> list[str]:
        """Conditions that pick one of the programs that would all do the same."""
        facts = self.facts
        shared = [k for k, b in enumerate(facts.blocks) if b.role in ("grid", "team")]
        alone = [k for k in shared if k not in span and facts.pieces(k) != 1]
        alone += [k for k in (facts.shared_loop,) if k is not None and k not in span]
        return [f"({facts.lines[k]}_pid == 0)" for k in alone]

    def store(self, eqn: Store) -> None:
        facts, text = self.facts, self.text
        place = facts.expr_span(eqn.index[0])
        span = facts.eqn_span(eqn)
        value = self.value(eqn.value)
        dtype = facts.buffers[eqn.buffer]
        masks = self.mask(eqn, span) + self.first(span)
        pointer = self.pointer(eqn.buffer, eqn.index[0], span)
        if facts.dims(span) and not facts.dims(facts.span(eqn.value)):
            value = f"tl.broadcast_to({value}, {facts.shape(span)})"
        masked = f", mask={' & '.join(masks)}" if masks else ""
        if eqn.mode == "set" and eqn.mask is None and self.team is not None and self.team.meets(eqn.index[0]):
            self.team.store(text, eqn, value)
            return
        if eqn.mode == "set":
            text.add(f"tl.store({pointer}, {value}{masked})")
            return
        if dtype == "bool":
            masks.append(value)
            text.add(f"tl.store({pointer}, True, mask={' & '.join(masks)})")
            return
        if dtype not in ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint32", "uint64"):
            raise UnsupportedKernel(f"an atomic addition of {dtype}")
        lost = facts.dims(span - place)
        if lost and eqn.mask is None and not self.guards(eqn) and dtype not in ("float16", "bfloat16"):
            given = self.reduce.spread(value, span, lost, facts.inside(lost), "0")
            value = self.reduce.fold("sum", given, span, lost, dtype)
            masks = facts.inside(place) + self.first(span)
            pointer = self.pointer(eqn.buffer, eqn.index[0], place)
            masked = f", mask={' & '.join(masks)}" if masks else ""
        text.add(f'tl.atomic_add({pointer}, {value}{masked}, sem="relaxed")')

    def check(self, position: int, eqn: Check) -> None:
        facts = self.facts
        span = facts.eqn_span(eqn)
        masks = [f"~{self.value(eqn.cond)}", *facts.inside(span), *self.first(span)]
        pointer = "failed" + (f" + tl.zeros({facts.shape(span)}, tl.int32)" if facts.dims(span) else "")
        number = self.first_check + self.checks.index(position) + 1
        self.text.add(f"tl.store({pointer}, {number}, mask={' & '.join(masks)})")
        # Stops the GPU's work, as eager's assertion does, so that nobody goes on with a wrong result.
        self.text.add(f"tl.device_assert(~({' & '.join(masks)}), {eqn.message!r})")


def _count(facts: Facts, k: int) -> str:
    return size_text(facts.pieces(k))
