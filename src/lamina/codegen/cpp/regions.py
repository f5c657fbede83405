"""The loop structure of one nest.

A region is the code inside some open loops. What must run there (its goals: stores, checks, accumulations) falls into
phases, because the result of a reduction exists only after its loops; within a phase, goals that go into the same
next loop share it. Values on which several phases depend are computed in each of them, or kept in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lamina.codegen.cpp.accumulate import Accumulator, accumulator
from lamina.codegen.cpp.expressions import cast, element, index_text, scalar_type, vector_type
from lamina.codegen.cpp.facts import Facts
from lamina.codegen.cpp.statements import Array, Statements
from lamina.ir.index import prod
from lamina.ir.loops import Check, Compute, Constant, Random, Reduce, Scan, Store, defined
from lamina.ir.ops import OPS

__all__ = ["Goal", "Memory", "Region", "Text"]

_BLOCK = 4096
_ROWS = 256
_WINDOW = 64
_STACK_BYTES = 16384
_BYTES = {"f64": 8, "int64": 8, "uint64": 8, "bool": 1, "flag": 1}


class Text:
    """Lines of code with indentation."""

    def __init__(self, depth: int = 0) -> None:
        self.lines: list[str] = []
        self.depth = depth

    def add(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def open(self, line: str) -> None:
        self.add(line)
        self.depth += 1

    def close(self, line: str = "}") -> None:
        self.depth -= 1
        self.add(line)


@dataclass(frozen=True, slots=True)
class Goal:
    """Something a region must do: the Store, Check or Reduce at ``position``, or keep the value ``name``."""

    position: int
    name: str = ""


@dataclass(slots=True)
class Memory:
    """Scratch memory of one function: pieces after each other, as C++ text of their sizes in bytes."""

    base: str
    fixed: int = 0
    sized: list[str] = field(default_factory=list)

    def take(self, kind: str, count: str) -> str:
        """A pointer expression to ``count`` elements of type ``kind``."""
        where = " + ".join([str(self.fixed), *self.sized])
        size = _BYTES.get(kind, 4)
        if count.isdigit():
            self.fixed += (int(count) * size + 127) // 128 * 128
        else:
            self.sized.append(f"rounded(({count}) * {size})")
        return f"({kind}*)({self.base} + {where})"

    def total(self) -> str:
        return " + ".join([str(self.fixed), *self.sized])


@dataclass(slots=True)
class Scope:
    """Where code is being written: the text, its scratch memory, and how to leave when a check fails."""

    text: Text
    memory: Memory
    leave: str
    stack: int = 0


Arrays = dict[str, Array]


class Region:
    """Writes regions of one nest. Subclassed by the kernel writer, which opens the shared outer loop."""

    def __init__(self, facts: Facts, dtypes: Mapping[str, str], first_check: int) -> None:
        self.facts = facts
        self.write = Statements(facts, dtypes)
        self.first_check = first_check
        self.arrays: Arrays = {}
        self.targets: dict[str, str] = {}
        self.blocks: dict[str, tuple[str, str]] = {}
        self.best_values: Arrays = {}
        self.running: Arrays = {}
        self.drains: dict[str, tuple[str, Array]] = {}

    # ---- one region ---------------------------------------------------------------------------------------------

    def region(self, scope: Scope, opened: frozenset[str], have: frozenset[str], goals: list[Goal]) -> None:
        """Write what ``goals`` need inside the loops over ``opened``; ``have`` names values already in scope."""
        outer_arrays = dict(self.arrays)
        phases = self.phases(opened, have, goals)
        last = max((p for p, _ in phases.values()), default=0)
        known = set(have)
        for phase in range(last + 1):
            deeper = self.level(scope, opened, known, phases, phase)
            deeper += self.keeping(opened, frozenset(known), phases, phase)
            groups: dict[int, list[Goal]] = {}
            for goal in deeper:
                loop = self.facts.first_loop(self.goal_axes(goal), opened)
                assert loop is not None
                groups.setdefault(loop, []).append(goal)
            for loop in sorted(groups):
                known |= self.group(scope, loop, opened, frozenset(known), groups[loop])
        self.arrays = {n: a for n, a in self.arrays.items() if n in outer_arrays} if opened else self.arrays

    def goal_axes(self, goal: Goal) -> frozenset[str]:
        return self.facts.axes[goal.name] if goal.name else self.facts.axes_at(goal.position)

    def needed(self, known: frozenset[str], goals: list[Goal]) -> set[int]:
        """Equations that the goals depend on and that are not at hand yet (the goals themselves left out)."""
        facts = self.facts
        found: set[int] = set()
        stack: list[int] = []
        keeps = {g.name for g in goals if g.name}

        def want(names: tuple[str, ...], guards: tuple[int, ...]) -> None:
            for name in names:
                position = facts.producer[name]
                if name not in known and position not in found and facts.constant(name) is None:
                    found.add(position)
                    if name not in self.arrays or name in keeps:
                        stack.append(position)
            for guard in guards:
                if guard not in found:
                    found.add(guard)
                    stack.append(guard)

        for goal in goals:
            if goal.name:
                want((goal.name,), ())
            else:
                want(facts.needs[goal.position], facts.guards[goal.position])
        while stack:
            position = stack.pop()
            want(facts.needs[position], facts.guards[position])
        return found

    def phases(
        self, opened: frozenset[str], have: frozenset[str], goals: list[Goal]
    ) -> dict[int, tuple[int, Goal | None]]:
        """Phase of every equation involved, and the goal it is (reductions that end here become goals)."""
        facts = self.facts
        as_goal = {g.position: g for g in goals}
        involved = sorted(self.needed(have, goals) | set(as_goal))
        ready: dict[str, int] = {}
        result: dict[int, tuple[int, Goal | None]] = {}
        for position in involved:
            eqn = facts.body[position]
            names = facts.needs[position]
            goal = as_goal.get(position)
            phase = max((ready.get(n, 0) for n in names), default=0)
            for guard in facts.guards[position]:
                phase = max(phase, result[guard][0] if guard in result else 0)
            after = phase
            if isinstance(eqn, Reduce) and goal is None and eqn.outs[0] not in self.arrays:
                loop = facts.first_loop(facts.axes_at(position), opened)
                if loop == min(facts.loop[a] for a in eqn.axes):
                    goal, after = Goal(position), phase + 1
            elif isinstance(eqn, Check) and goal is None:
                goal = Goal(position)
            result[position] = (phase, goal)
            for name in defined(eqn):
                keeping = goal is not None and goal.name == name
                ready[name] = phase if keeping else 0 if name in self.arrays else after
        return self.after_reads(result)

    def after_reads(self, phases: dict[int, tuple[int, Goal | None]]) -> dict[int, tuple[int, Goal | None]]:
        """A store into a buffer that is also read waits until the last phase that reads it."""
        body = self.facts.body
        stored = {e.buffer for e in (body[p] for p in phases) if isinstance(e, Store)}
        read = {e.buffer for e in body if not isinstance(e, Store) and hasattr(e, "buffer")}
        if not stored & read:
            return phases
        last = max(p for p, _ in phases.values())
        return {
            position: (last, goal)
            if isinstance(eqn := body[position], Store) and eqn.buffer in read
            else (phase, goal)
            for position, (phase, goal) in phases.items()
        }

    def level(
        self,
        scope: Scope,
        opened: frozenset[str],
        known: set[str],
        phases: dict[int, tuple[int, Goal | None]],
        phase: int,
    ) -> list[Goal]:
        """Write what needs no further loop; give back the goals that do."""
        deeper: list[Goal] = []
        for position, (when, goal) in phases.items():
            if when != phase:
                continue
            if goal is not None:
                if self.goal_axes(goal) <= opened:
                    if goal.name:
                        self.compute(scope.text, position)
                        known.add(goal.name)
                    self.reach(scope, opened, goal)
                else:
                    deeper.append(goal)
                continue
            eqn = self.facts.body[position]
            name = eqn.outs[0] if isinstance(eqn, Reduce) else eqn.out  # type: ignore[union-attr]
            if name in self.arrays:
                if self.facts.axes[name] <= opened:
                    scope.text.add(self.write.array_load(name, self.arrays[name]))
                    known.add(name)
            elif self.facts.axes_at(position) <= opened and not isinstance(eqn, Constant | Reduce):
                self.compute(scope.text, position)
                known.add(name)
        return deeper

    def compute(self, text: Text, position: int) -> None:
        """Write an equation that defines one scalar."""
        eqn = self.facts.body[position]
        if isinstance(eqn, Scan):
            for line in self.advance(eqn):
                text.add(line)
        else:
            text.add(self.write.define(position))

    def keeping(
        self,
        opened: frozenset[str],
        known: frozenset[str],
        phases: dict[int, tuple[int, Goal | None]],
        phase: int,
    ) -> list[Goal]:
        """Values of the schedule's ``kept`` that this phase computes and a later one needs again."""
        later = [g for p, g in phases.values() if g is not None and p > phase]
        if not later or not self.facts.schedule.kept:
            return []
        done = {g.position for p, g in phases.values() if g is not None and p <= phase and not g.name}
        made = {name for position in done for name in defined(self.facts.body[position])}
        again = self.needed(known | made, later)
        now = self.needed(known, [g for p, g in phases.values() if g is not None and p == phase])
        result = []
        for name in self.facts.schedule.kept:
            position = self.facts.producer[name]
            if position in again and position in now and name not in self.arrays and not self.facts.axes[name] <= opened:
                result.append(Goal(position, name))
        return result

    def reach(self, scope: Scope, opened: frozenset[str], goal: Goal) -> None:
        """Write a goal whose loops are all open."""
        facts, text = self.facts, scope.text
        if goal.name:
            text.add(self.write.array_store(goal.name, self.arrays[goal.name]))
            return
        eqn = facts.body[goal.position]
        if isinstance(eqn, Reduce):
            self.accumulate(text, eqn)
        elif isinstance(eqn, Check):
            number = self.first_check + facts.check_number[goal.position]
            cond = self.write.value(eqn.cond, False)
            leave = f"{{ failed = {number}; continue; }}" if scope.leave == "continue" else f"return {number};"
            text.add(f"if (!{cond}) {leave}  // {eqn.message[:60]!r}")
        else:
            assert isinstance(eqn, Store)
            text.add(f"{self.once(opened, goal)}{self.write.store(eqn, False)}")

    def once(self, opened: frozenset[str], goal: Goal) -> str:
        """A store that does not depend on some open shared axis happens at its first point only."""
        axes = self.goal_axes(goal)
        missing = [a for a in self.facts.order if a in opened and a not in axes]
        missing += [f"{a}_tile" for a in self.facts.tiles if f"{a}_tile" in opened and a not in axes]
        return f"if ({' && '.join(f'{a} == 0' for a in missing)}) " if missing else ""

    # ---- loops --------------------------------------------------------------------------------------------------

    def group(
        self, scope: Scope, loop: int, opened: frozenset[str], known: frozenset[str], goals: list[Goal]
    ) -> set[str]:
        """Open the next loop for ``goals``; the names of the reduction results that exist after it."""
        ends = self.ending(loop, goals)
        axis = next((a for a in self.facts.order if self.facts.loop[a] == loop), "")
        for position in ends:
            self.begin_reduce(scope, opened, axis, position)
        for goal in goals:
            if goal.name and goal.name not in self.arrays:
                self.begin_keep(scope, opened, goal.name)
        for scan in self.scans(known, goals, axis):
            self.begin_scan(scope, opened, scan)
        self.loop(scope, axis, opened, known, goals)
        done = set()
        for position in ends:
            if self.end_reduce(scope.text, position):
                eqn = self.facts.body[position]
                assert isinstance(eqn, Reduce)
                done.add(eqn.outs[0])
        return done

    def ending(self, loop: int, goals: list[Goal]) -> list[int]:
        """Reductions among the goals that are complete when this loop is."""
        found = []
        for goal in goals:
            eqn = self.facts.body[goal.position]
            if isinstance(eqn, Reduce) and not goal.name and min(self.facts.loop[a] for a in eqn.axes) == loop:
                found.append(goal.position)
        return found

    def bounds(self, axis: str) -> tuple[str, str]:
        """First and last (exclusive) value of an axis in the code being written."""
        return self.blocks.get(axis, ("0", index_text(self.facts.extent[axis], {})))

    def loop(
        self,
        scope: Scope,
        axis: str,
        opened: frozenset[str],
        known: frozenset[str],
        goals: list[Goal],
    ) -> None:
        begin, end = self.bounds(axis)
        if axis == self.facts.vector:
            self.strip(scope, axis, known, goals, begin, end)
            return
        if self.window(scope, axis, opened, known, goals):
            return
        if self.row_blocks(scope, axis, begin, end, opened, known, goals):
            return
        if self.backward(axis, self.scans(known, goals, axis)):
            scope.text.open(f"for (int64 {axis} = {end} - 1; {axis} >= {begin}; --{axis}) {{")
        else:
            scope.text.open(f"for (int64 {axis} = {begin}; {axis} < {end}; ++{axis}) {{")
        inner = Scope(scope.text, scope.memory, "continue", scope.stack)
        self.region(inner, opened | {axis}, known, goals)
        self.drain_now_and_then(scope.text, axis)
        scope.text.close()

    def window(
        self, scope: Scope, axis: str, opened: frozenset[str], known: frozenset[str], goals: list[Goal]
    ) -> bool:
        """Reductions over a few points beside the vector axis, as in pooling: registers hold them from start to end."""
        facts, text = self.facts, scope.text
        loops = [a for a in facts.order if a not in opened and a != facts.vector and facts.loop[a] >= facts.loop[axis]]
        size = prod(facts.extent[a] for a in loops)
        if facts.vector is None or axis == facts.vector or not size.is_int or size.const > _WINDOW:
            return False
        reductions = []
        for goal in goals:
            eqn = facts.body[goal.position]
            if not isinstance(eqn, Reduce) or goal.name or set(eqn.axes) != set(loops):
                return False
            if self.targets[eqn.outs[0]] not in ("array", "bests") or facts.vector not in self.goal_axes(goal):
                return False
            reductions.append(eqn)
        if any(isinstance(facts.body[p], Reduce | Scan | Check) for p in self.needed(known, goals)):
            return False
        low, high = self.bounds(facts.vector)
        text.open(f"strip<1>({low}, {high}, [&](int64 {facts.vector}, auto n, int k) STEP {{")
        for eqn in reductions:
            out = eqn.outs[0]
            if self.targets[out] == "bests":
                start = accumulator(eqn.op[3:], facts.dtype[eqn.value]).start(True)
                text.add(f"{self.best(eqn, True)} {out}_s = {{{start}, vi64{{}}}};")
                self.targets[out] = "row best"
            else:
                acc = self.accumulator(eqn)
                text.add(f"{acc.vector} {out}_s = {acc.start(True)};")
                self.targets[out] = "row"
        for name in loops:
            text.open(f"for (int64 {name} = 0; {name} < {index_text(facts.extent[name], {})}; ++{name}) {{")
        for line in self.vector_body(known, goals):
            text.add(line)
        for _ in loops:
            text.close()
        for eqn in reductions:
            out = eqn.outs[0]
            place = self.arrays[out].at()
            if self.targets[out] == "row best":
                text.add(f"store_int64({place}, {out}_s.at, n);")
                self.targets[out] = "bests"
            else:
                text.add(f"store_{self.arrays[out].kind}({place}, {out}_s, n);")
                self.targets[out] = "array"
        text.close("});")
        return True

    def row_blocks(
        self,
        scope: Scope,
        axis: str,
        begin: str,
        end: str,
        opened: frozenset[str],
        known: frozenset[str],
        goals: list[Goal],
    ) -> bool:
        """Column sums of cheap values: four rows are added up in registers before memory is touched."""
        facts, text = self.facts, scope.text
        sums = self.column_sums(axis, opened, known, goals)
        if not sums:
            return False
        vector = facts.vector
        assert vector is not None
        low, high = self.bounds(vector)
        text.open(f"auto {axis}_rows = [&](int64 first, auto count) STEP {{")
        text.open(f"strip<1>({low}, {high}, [&](int64 {vector}, auto n, int k) STEP {{")
        for eqn in sums:
            acc, array = self.accumulator(eqn), self.arrays[eqn.outs[0]]
            text.add(f"{acc.vector} {eqn.outs[0]}_s = load_{array.kind}({array.at()}, n);")
            self.targets[eqn.outs[0]] = "row"
        text.open(f"for (int64 {axis} = first; {axis} < first + count; ++{axis}) {{")
        for line in self.vector_body(known, goals):
            text.add(line)
        text.close()
        for eqn in sums:
            array = self.arrays[eqn.outs[0]]
            text.add(f"store_{array.kind}({array.at()}, {eqn.outs[0]}_s, n);")
            self.targets[eqn.outs[0]] = "array"
        text.close("});")
        text.close("};")
        text.add(f"int64 {axis}_at = {begin};")
        text.open(f"for (; {axis}_at + 4 <= {end}; {axis}_at += 4) {{")
        text.add(f"{axis}_rows({axis}_at, Times<4>{{}});")
        self.drain_now_and_then(text, axis, f"{axis}_at")
        text.close()
        text.add(f"for (; {axis}_at < {end}; ++{axis}_at) {axis}_rows({axis}_at, Times<1>{{}});")
        return True

    def column_sums(
        self, axis: str, opened: frozenset[str], known: frozenset[str], goals: list[Goal]
    ) -> list[Reduce]:
        """The reductions over ``axis`` into arrays, if the loop over it does nothing else but cheap vector work."""
        facts = self.facts
        if facts.vector is None or axis == facts.vector:
            return []
        inside = opened | {axis, facts.vector}
        sums: list[Reduce] = []
        for goal in goals:
            eqn = facts.body[goal.position]
            if goal.name or not self.goal_axes(goal) <= inside or facts.vector not in self.goal_axes(goal):
                return []
            if isinstance(eqn, Reduce) and self.targets[eqn.outs[0]] == "array":
                sums.append(eqn)
            elif not isinstance(eqn, Store):
                return []
        for position in self.needed(known, goals):
            eqn = facts.body[position]
            one_row = facts.axes_at(position) <= opened | {axis}
            if isinstance(eqn, Reduce | Scan | Check) or (one_row and not isinstance(eqn, Constant)):
                return []
        return sums if self.unroll(known, goals) == 4 else []

    def drain_now_and_then(self, text: Text, axis: str, at: str = "") -> None:
        """Long column sums: add up a block of rows, then the blocks, so that errors stay small."""
        for out, (owner, total) in self.drains.items():
            if owner == axis:
                last = f"({at} & {_ROWS - 1}) == 0" if at else f"({axis} & {_ROWS - 1}) == {_ROWS - 1}"
                text.add(f"if ({last}) drain({total.pointer}, {self.arrays[out].pointer}, {total.count()});")

    def strip(
        self,
        scope: Scope,
        axis: str,
        known: frozenset[str],
        goals: list[Goal],
        begin: str,
        end: str,
    ) -> None:
        """The innermost loop, a vector of consecutive points at a time."""
        text = scope.text
        body = self.vector_body(known, goals)
        folding = [g.position for g in goals if self.folds(g)]
        unroll = self.unroll(known, goals) if folding else 1
        extent = self.facts.extent[axis]
        blocks = not self.short(axis) and any(self.targets[self.out(p)] == "total" for p in folding)
        if blocks:
            text.open(f"for (int64 {axis}_block = {begin}; {axis}_block < {end}; {axis}_block += {_BLOCK}) {{")
            begin, end = f"{axis}_block", f"least({axis}_block + {_BLOCK}, {end})"
        for position in folding:
            self.declare_lanes(text, position, unroll)
        lanes = 16 if self.facts.schedule.width == 64 else 8
        even = extent.is_int and extent.const % lanes == 0 and axis not in self.blocks and not blocks
        for eqn in self.randoms(known, goals):
            text.add(f"PhiloxRun {eqn.out}_run;")
        call = f"strip{'_even' if even else ''}<{unroll}>"
        if self.backward(axis, self.scans(known, goals, axis)):
            call = "strip_back"
        text.open(f"{call}({begin}, {end}, [&](int64 {axis}, auto n, int k) STEP {{")
        for line in body:
            text.add(line)
        text.close("});")
        for position in folding:
            self.join_lanes(text, position, unroll)
        if blocks:
            text.close()

    def vector_body(self, known: frozenset[str], goals: list[Goal]) -> list[str]:
        """Statements of the vector loop, in the order of the equations."""
        facts = self.facts
        as_goal = {g.position: g for g in goals}
        keeps = {g.position for g in goals if g.name}
        lines: list[str] = []
        for position in sorted(self.needed(known, goals) | set(as_goal)):
            eqn = facts.body[position]
            if position in keeps:
                goal = as_goal[position]
                lines += self.advance(eqn) if isinstance(eqn, Scan) else [self.write.define(position)]
                lines.append(self.write.array_store(goal.name, self.arrays[goal.name]))
            elif isinstance(eqn, Store):
                lines.append(self.write.store(eqn, True))
            elif isinstance(eqn, Check):
                number = self.first_check + facts.check_number[position]
                cond = self.write.value(eqn.cond, True)
                lines.append(f"if (any_lane(~{cond} & lanes(n))) {{ failed = {number}; return; }}")
            elif isinstance(eqn, Reduce) and position in as_goal:
                lines.append(self.vector_accumulate(eqn))
            elif not isinstance(eqn, Constant):
                name = eqn.outs[0] if isinstance(eqn, Reduce) else eqn.out
                if name in self.arrays:
                    lines.append(self.write.array_load(name, self.arrays[name]))
                elif isinstance(eqn, Scan):
                    lines += self.advance(eqn)
                else:
                    lines.append(self.write.define(position))
        return lines

    def unroll(self, known: frozenset[str], goals: list[Goal]) -> int:
        """How many accumulators: enough to hide an addition's latency behind cheap work."""
        cost = 0
        for position in self.needed(known, goals):
            eqn = self.facts.body[position]
            cost += OPS[eqn.op].cost if isinstance(eqn, Compute) else 2
        return 4 if cost <= 24 else 2 if cost <= 48 else 1

    # ---- reductions ---------------------------------------------------------------------------------------------

    def out(self, position: int) -> str:
        eqn = self.facts.body[position]
        assert isinstance(eqn, Reduce)
        return eqn.outs[0]

    def accumulator(self, eqn: Reduce) -> Accumulator:
        return accumulator(eqn.op, self.facts.dtype[eqn.value])

    def folds(self, goal: Goal) -> bool:
        """Whether a goal is a reduction over the vector axis, whose lanes are joined in the end."""
        eqn = self.facts.body[goal.position]
        return isinstance(eqn, Reduce) and not goal.name and self.facts.vector in eqn.axes

    def begin_reduce(self, scope: Scope, opened: frozenset[str], axis: str, position: int) -> None:
        """Declare what a reduction accumulates into, where its loops begin."""
        eqn = self.facts.body[position]
        assert isinstance(eqn, Reduce)
        out, acc = eqn.outs[0], self.accumulator(eqn)
        kept = tuple(a for a in self.facts.kept_axes(eqn) if a not in opened)
        if eqn.op in ("argmax", "argmin"):
            self.begin_best(scope, eqn, kept)
        elif kept:
            self.arrays_begin(scope, out, kept, acc)
            self.targets[out] = "array"
            if acc.exact and self.long(axis):
                total = self.array(scope, f"{out}_total", kept, "f32")
                scope.text.add(f"fill({total.pointer}, {total.count()}, 0.0f);")
                self.drains[out] = (axis, total)
        elif self.facts.vector in eqn.axes:
            direct = axis == self.facts.vector and self.short(axis)
            self.targets[out] = "lanes" if direct or not acc.exact else "total"
            if not direct:
                kind = f"Total<{acc.vector}>" if acc.exact else f"{acc.vector}"
                start = "{}" if acc.exact else acc.start(True)
                scope.text.add(f"{kind} {out}_t = {start};")
                self.targets[out] = "total" if acc.exact else "wide"
        else:
            self.targets[out] = "scalar"
            kind = "f64" if acc.exact else acc.scalar
            scope.text.add(f"{kind} {out}_t = {acc.start_scalar()};")

    def short(self, axis: str) -> bool:
        """Whether the axis is short enough for plain accumulation."""
        extent = self.facts.extent[axis]
        return extent.is_int and extent.const <= _BLOCK and axis not in self.blocks

    def long(self, axis: str) -> bool:
        """Whether plain sums over the axis would lose digits."""
        extent = self.facts.extent[axis]
        return not extent.is_int or extent.const > 2 * _ROWS

    def arrays_begin(self, scope: Scope, out: str, kept: tuple[str, ...], acc: Accumulator) -> None:
        array = self.array(scope, f"{out}_sum", kept, "f32" if acc.scalar == "f32" else acc.scalar)
        count = array.count()
        start = acc.start_scalar()
        scope.text.add(f"fill({array.pointer}, {count}, ({acc.scalar}){start});")
        self.arrays[out] = array

    def array(self, scope: Scope, name: str, axes: tuple[str, ...], kind: str) -> Array:
        """Memory for a value over ``axes``: on the stack where it is small, else in scratch memory."""
        extents = []
        begins = []
        for axis in axes:
            if axis in self.blocks:
                begins.append((axis, self.blocks[axis][0]))
                extents.append(str(dict(self.facts.schedule.tile)[axis]))
            else:
                extents.append(index_text(self.facts.extent[axis], {}))
        extents = [e if e.isidentifier() or e.isdigit() else f"({e})" for e in extents]
        made = Array(name, axes, tuple(extents), "flag" if kind == "bool" else kind, tuple(begins))
        if all(e.isdigit() for e in extents):
            count = 1
            for e in extents:
                count *= int(e)
            if scope.stack + count * 8 <= _STACK_BYTES:
                scope.stack += count * 8
                scope.text.add(f"alignas(64) {kind} {name}[{max(count, 1)}];")
                return made
            scope.text.add(f"{kind}* const {name} = {scope.memory.take(kind, str(count))};")
        else:
            scope.text.add(f"{kind}* const {name} = {scope.memory.take(kind, made.count())};")
        return made

    def declare_lanes(self, text: Text, position: int, unroll: int) -> None:
        eqn = self.facts.body[position]
        assert isinstance(eqn, Reduce)
        out, acc = eqn.outs[0], self.accumulator(eqn)
        if self.targets[out] == "best":
            text.add(f"{self.best(eqn, True)} {out}_a[{unroll}];")
            text.add(f"for (auto& a : {out}_a) a = {{{accumulator(eqn.op[3:], self.facts.dtype[eqn.value]).start(True)}, vi64{{}}}};")
            return
        starts = ", ".join([acc.start(True)] * unroll)
        text.add(f"{acc.vector} {out}_a[{unroll}] = {{{starts}}};")

    def join_lanes(self, text: Text, position: int, unroll: int) -> None:
        eqn = self.facts.body[position]
        assert isinstance(eqn, Reduce)
        out, acc = eqn.outs[0], self.accumulator(eqn)
        target = self.targets[out]
        if target == "best":
            for k in range(unroll):
                text.add(f"{out}_t.join({out}_a[{k}].value, {out}_a[{k}].at);")
            return
        joined = [f"{out}_a[{k}]" for k in range(unroll)]
        while len(joined) > 1:
            joined = [f"({acc.join(a, b, True)})" for a, b in zip(joined[::2], joined[1::2], strict=True)]
        if target == "lanes":
            text.add(f"const {acc.vector} {out}_t = {joined[0]};")
        elif target == "total":
            text.add(f"add_to({out}_t, {joined[0]});")
        else:
            text.add(f"{out}_t = {acc.join(f'{out}_t', joined[0], True)};")

    def vector_accumulate(self, eqn: Reduce) -> str:
        out, acc = eqn.outs[0], self.accumulator(eqn)
        value = self.write.value(eqn.value, True)
        if self.targets[out] == "best":
            return f"meet({out}_a[k], {value}, {self.place(eqn, True)}, n);  // {eqn.op}"
        if self.targets[out] == "row best":
            return f"{out}_s.meet({value}, {self.place(eqn, True)});  // {eqn.op}"
        if self.targets[out] == "bests":
            return self.meet_kept(eqn, True)
        if self.targets[out] == "row":
            return f"{out}_s = {acc.join(f'{out}_s', value, True)};  // {eqn.op}"
        if self.targets[out] == "array":
            array = self.arrays[out]
            kind = "flag" if acc.dtype == "bool" else element(acc.dtype)
            old = f"load_{kind}({array.at()}, n)"
            return f"store_{kind}({array.at()}, {acc.join(old, value, True)}, n);  // {eqn.op}"
        return f"{out}_a[k] = counted({out}_a[k], {acc.join(f'{out}_a[k]', value, True)}, n);  // {eqn.op}"

    def accumulate(self, text: Text, eqn: Reduce) -> None:
        """One step of a reduction in scalar code."""
        out, acc = eqn.outs[0], self.accumulator(eqn)
        value = self.write.value(eqn.value, False)
        if self.targets[out] == "best":
            text.add(f"{out}_t.join({value}, {self.place(eqn, False)});  // {eqn.op}")
        elif self.targets[out] == "bests":
            text.add(self.meet_kept(eqn, False))
        elif self.targets[out] == "array":
            at = self.arrays[out].at()
            text.add(f"*({at}) = {acc.join(f'*({at})', value, False)};  // {eqn.op}")
        else:
            text.add(f"{out}_t = {acc.join(f'{out}_t', value, False)};  // {eqn.op}")

    def end_reduce(self, text: Text, position: int) -> bool:
        """Make the result of a finished reduction a value; whether it is one (and not an array)."""
        eqn = self.facts.body[position]
        assert isinstance(eqn, Reduce)
        out, target = eqn.outs[0], self.targets[eqn.outs[0]]
        if out in self.drains:
            total = self.drains.pop(out)[1]
            text.add(f"drain({total.pointer}, {self.arrays[out].pointer}, {total.count()});")
            self.arrays[out] = total
        if target in ("array", "bests"):
            return False
        kind = scalar_type(eqn.dtype)
        value = f"{self.best_folded(eqn)}.at" if target == "best" else self.rounded(eqn, self.finished(eqn))
        text.add(f"const {kind} {out} = {value};  // {eqn.op} over {', '.join(eqn.axes)}")
        return True

    def finished(self, eqn: Reduce) -> str:
        """What a reduction to one value has accumulated."""
        out, acc = eqn.outs[0], self.accumulator(eqn)
        folded = {"lanes": f"{out}_t", "total": f"value_of({out}_t)", "wide": f"{out}_t"}
        target = self.targets[out]
        return acc.fold(folded[target]) if target in folded else f"{out}_t"

    def start(self, eqn: Reduce) -> str:
        """Start value of a reduction, or of the value half of argmax and argmin."""
        op = eqn.op[3:] if eqn.op in ("argmax", "argmin") else eqn.op
        return accumulator(op, self.facts.dtype[eqn.value]).start_scalar()

    def rounded(self, eqn: Reduce, value: str) -> str:
        if eqn.dtype in ("float16", "bfloat16"):
            return f"round_{'f16' if eqn.dtype == 'float16' else 'bf16'}({value})"
        return value

    # ---- the place of the largest or smallest value ----------------------------------------------------------------

    def best(self, eqn: Reduce, vector: bool) -> str:
        value = self.facts.dtype[eqn.value]
        largest = "true" if eqn.op == "argmax" else "false"
        if vector:
            return f"Best<{largest}, {vector_type(value)}, vi64>"
        return f"Best<{largest}, {scalar_type(value)}, int64>"

    def place(self, eqn: Reduce, vector: bool) -> str:
        """Position within the reduced axes, in the order the reduction names them."""
        text = ""
        for axis in eqn.axes:
            text = axis if not text else f"({text}) * ({index_text(self.facts.extent[axis], {})}) + {axis}"
        if not vector:
            return f"(int64)({text})"
        if self.facts.vector not in eqn.axes:
            return f"splat_int64({text})"
        stride = "1"
        for axis in reversed(eqn.axes):
            if axis == self.facts.vector:
                break
            stride = f"{stride} * ({index_text(self.facts.extent[axis], {})})"
        return f"index_lanes({text}, {stride})"

    def begin_best(self, scope: Scope, eqn: Reduce, kept: tuple[str, ...]) -> None:
        out = eqn.outs[0]
        start = accumulator(eqn.op[3:], self.facts.dtype[eqn.value]).start
        if kept:
            values = self.array(scope, f"{out}_value", kept, scalar_type(self.facts.dtype[eqn.value]))
            places = self.array(scope, f"{out}_place", kept, "int64")
            scope.text.open(f"for (int64 k = 0; k < {values.count()}; ++k) {{")
            scope.text.add(f"{values.pointer}[k] = {start(False)};")
            scope.text.add(f"{places.pointer}[k] = 0;")
            scope.text.close()
            self.best_values[out], self.arrays[out] = values, places
            self.targets[out] = "bests"
            return
        lanes = self.facts.vector in eqn.axes
        self.targets[out] = "best"
        zero = "vi64{}" if lanes else "0"
        scope.text.add(f"{self.best(eqn, lanes)} {out}_t = {{{start(lanes)}, {zero}}};")

    def meet_kept(self, eqn: Reduce, vector: bool) -> str:
        """One step where each kept point has its own best value and place in memory."""
        out, dtype = eqn.outs[0], self.facts.dtype[eqn.value]
        values, places, kind = self.best_values[out].at(), self.arrays[out].at(), element(dtype)
        tail = ", n" if vector else ""
        best = self.best(eqn, vector)
        value = self.write.value(eqn.value, vector)
        place = self.place(eqn, vector)
        return (
            f"{{ {best} b = {{load_{kind}({values}{tail}), load_int64({places}{tail})}}; b.meet({value}, {place}); "
            f"store_{kind}({values}, b.value{tail}); store_int64({places}, b.at{tail}); }}  // {eqn.op}"
        )

    def best_folded(self, eqn: Reduce) -> str:
        out = eqn.outs[0]
        if self.facts.vector in eqn.axes:
            value = self.facts.dtype[eqn.value]
            largest = "true" if eqn.op == "argmax" else "false"
            return f"fold_best<{largest}, {scalar_type(value)}>({out}_t)"
        return f"{out}_t"

    # ---- kept values and scans --------------------------------------------------------------------------------------

    def begin_keep(self, scope: Scope, opened: frozenset[str], name: str) -> None:
        axes = tuple(a for a in self.facts.order if a in self.facts.axes[name] and a not in opened)
        self.arrays[name] = self.array(scope, f"{name}_row", axes, element(self.facts.dtype[name]))

    def scans(self, known: frozenset[str], goals: list[Goal], axis: str) -> list[Scan]:
        found = []
        for position in sorted(self.needed(known, goals)):
            eqn = self.facts.body[position]
            if isinstance(eqn, Scan) and eqn.axis == axis and eqn.out not in self.arrays:
                found.append(eqn)
        return found

    def backward(self, axis: str, scans: list[Scan]) -> bool:
        """Whether the loop over ``axis`` runs from its end."""
        if len({e.reverse for e in scans}) > 1:
            raise NotImplementedError(f"running forward and backward along {axis} in one loop")
        return bool(scans) and scans[0].reverse

    def randoms(self, known: frozenset[str], goals: list[Goal]) -> list[Random]:
        """Random numbers drawn for consecutive indices in a vector loop."""
        found = [self.facts.body[p] for p in sorted(self.needed(known, goals))]
        return [e for e in found if isinstance(e, Random) and self.write.consecutive(e)]

    def begin_scan(self, scope: Scope, opened: frozenset[str], eqn: Scan) -> None:
        """Declare the running value of a scan: one, or one for each point of the axes inside it."""
        inner = tuple(a for a in self.facts.order if a in self.facts.axes[eqn.out] - opened and a != eqn.axis)
        dtype = self.scan_dtype(eqn)
        acc = accumulator("sum" if eqn.op == "logaddexp" else eqn.op, dtype)
        start = "-__builtin_inf()" if eqn.op == "logaddexp" else acc.start_scalar()
        if not inner:
            lane = "int32" if self.facts.vector == eqn.axis and vector_type(dtype) == "vi32" else scalar_type(dtype)
            scope.text.add(f"{lane} {eqn.out}_s = {start};")
            return
        array = self.array(scope, f"{eqn.out}_s", inner, scalar_type(dtype))
        scope.text.add(f"fill({array.pointer}, {array.count()}, ({scalar_type(dtype)}){start});")
        self.running[eqn.out] = array

    def scan_dtype(self, eqn: Scan) -> str:
        """Running sums and products of floats are kept in double, as eager keeps them."""
        floating = eqn.dtype in ("float16", "bfloat16", "float32")
        return "float64" if floating and eqn.op in ("sum", "prod") else eqn.dtype

    def advance(self, eqn: Scan) -> list[str]:
        """One step of a scan."""
        dtype, out, vector = self.scan_dtype(eqn), eqn.out, self.write.is_vector(eqn.out)
        value = cast(self.write.value(eqn.value, vector), self.facts.dtype[eqn.value], dtype, vector)
        if vector and eqn.axis == self.facts.vector:
            return self.advance_lanes(eqn, value, dtype)
        array = self.running.get(out)
        tail = ", n" if vector else ""
        old = f"load_{element(dtype)}({array.at()}{tail})" if array else f"{out}_s"
        if eqn.op == "logaddexp":
            text = f"logaddexp({old}, {value})"
        else:
            text = accumulator(eqn.op, dtype).join(old, value, vector)
        kind = vector_type(dtype) if vector else scalar_type(dtype)
        lines = [f"const {kind} {out}_n = {text};  // running {eqn.op} along {eqn.axis}"]
        lines.append(f"store_{element(dtype)}({array.at()}, {out}_n{tail});" if array else f"{out}_s = {out}_n;")
        result = vector_type(eqn.dtype) if vector else scalar_type(eqn.dtype)
        lines.append(f"const {result} {out} = {cast(f'{out}_n', dtype, eqn.dtype, vector)};")
        return lines

    def advance_lanes(self, eqn: Scan, value: str, dtype: str) -> list[str]:
        """A scan along the vector axis: within the lanes, and from one vector to the next."""
        out = eqn.out
        if eqn.op == "sum" and dtype == "float64":
            text = f"running_sum{'_back' if eqn.reverse else ''}({value}, {out}_s, n)"
        else:
            lane = {"vi32": "int32"}.get(vector_type(dtype) or "", scalar_type(dtype))
            lane = "int32" if dtype == "bool" else lane
            join = accumulator("sum" if eqn.op == "logaddexp" else eqn.op, dtype).join("p", "q", False)
            join = "logaddexp(p, q)" if eqn.op == "logaddexp" else join
            step = f"[]({scalar_type(dtype)} p, {scalar_type(dtype)} q) STEP {{ return {join}; }}"
            back = "true" if eqn.reverse else "false"
            text = f"running<{vector_type(dtype)}, {lane}>({value}, {out}_s, n, {back}, {step})"
        result = vector_type(eqn.dtype)
        return [
            f"const {vector_type(dtype)} {out}_n = {text};  // running {eqn.op} along {eqn.axis}",
            f"const {result} {out} = {cast(f'{out}_n', dtype, eqn.dtype, True)};",
        ]
