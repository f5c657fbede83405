"""One call of a program, compiled, held against eager in all that it leaves behind; names the kernel at fault."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lamina.base.accuracy import Error, error
from lamina.base.region_check import RegionCheck
from lamina.base.tables import Table, plain_console
from lamina.compile import compile
from lamina.errors import LaminaWarning
from lamina.testing.fuzz.differ import Difference
from lamina.testing.fuzz.observe import Seen, Trace
from lamina.testing.runs import Runs, differing, link_of, options_given, uncompiled
from lamina.testing.torch_private import compiled_anew

__all__ = ["Verification", "VerifiedValue", "verify"]

_WIDTH = 140
"""Characters of a line of a report that no terminal shows."""


@dataclass(frozen=True, slots=True)
class VerifiedValue:
    """One thing that the program leaves behind: errors relative to the largest element, and what differs."""

    name: str
    kind: str
    eager: Error | None
    compiled: Error | None
    different: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What ``verify`` found. True, as a condition, if nothing differs; printed, a table.

    ``values`` are outputs, arguments, parameters and buffers afterwards, gradients and global state. ``regions`` are
    the compiled regions, each held against its own graph; the first that differs says which kernel does. ``notes``
    say what was compared otherwise than asked, and why. ``rewrite`` is the first rewrite of the graph with which values
    differ, where no region does.
    """

    name: str
    values: tuple[VerifiedValue, ...]
    regions: tuple[RegionCheck, ...]
    notes: tuple[str, ...] = ()
    rewrite: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.different and all(region.ok for region in self.regions)

    def __bool__(self) -> bool:
        return self.ok

    @property
    def different(self) -> tuple[str, ...]:
        """What differs from eager, in words."""
        return tuple(f"{v.name}: {v.different}" for v in self.values if v.different)

    @property
    def first(self) -> RegionCheck | None:
        """The first region that differs from its own graph."""
        return next((region for region in self.regions if not region.ok), None)

    def __str__(self) -> str:
        """The tables as text."""
        out = plain_console(file=io.StringIO(), width=_WIDTH)
        out.print(self.table())
        if self.regions:
            out.print(self.region_table())
        for line in (*self.notes, self.summary()):
            out.print(line, soft_wrap=True)
        text: str = out.file.getvalue()  # type: ignore[attr-defined]
        return "\n".join(line.rstrip() for line in text.splitlines())

    def summary(self) -> str:
        """One line: all is well, or what differs first and which kernel is the cause."""
        if self.ok:
            return f"{self.name}: {len(self.values)} values are as in eager"
        found = self.different
        head = f"{self.name}: {len(found)} of {len(self.values)} values differ from eager"
        if self.first is None:
            cause = f"with the rewrite {self.rewrite}" if self.rewrite else "before kernels are made"
            return f"{head}; every region gives what its graph gives: the difference arises {cause}"
        return f"{head}; first in {self.first}"

    def table(self) -> Table:
        """What the program leaves behind, a row for each value."""
        table = Table(title=f"{self.name}: compiled against eager and double precision", title_justify="left")
        for column in ("value", "kind", "eager's error", "compiled error", "result"):
            table.add_column(column, overflow="fold")
        for v in self.values:
            table.add_row(v.name, v.kind, _text(v.eager), _text(v.compiled), v.different or "ok")
        return table

    def region_table(self) -> Table:
        """The compiled regions, a row for each, with the first kernel that differs."""
        table = Table(title="regions against their graphs", title_justify="left")
        for column in ("region", "values", "ATen's error", "error", "first kernel that differs", "line", "source"):
            table.add_column(column, overflow="fold")
        for r in self.regions:
            step = r.step
            kernel = "ok" if r.ok else f"{step.kernel} ({step.stage}): {step.value}" if step else r.different
            place, file = (step.place, step.file) if step else ("", "")
            table.add_row(r.region, str(r.values), f"{r.eager_error:.2g}", f"{r.error:.2g}", kernel, place, file)
        return table


def _text(found: Error | None) -> str:
    return "" if found is None else f"{found.largest:.2g}"


def verify(fn: Callable[..., Any], *args: Any, options: Mapping[str, Any] | None = None, **kwargs: Any) -> Verification:
    """Run ``fn(*args, **kwargs)`` eagerly, compiled, and in double precision, and compare what they leave behind.

    Each runs on copies of the arguments, with equal random seeds, and from the same state: that of the modules,
    optimizers and tensors that ``fn`` is, closes over or names as globals, which is afterwards as it was. Compared are
    outputs, arguments, parameters and buffers afterwards (values, NaN, infinities, dtype, device, shape, strides, which
    share memory), where gradients are recorded the gradients of all of them against random cotangents, and global
    state. Values may be twice as far from those in double precision as eager's are. Every compiled region is besides
    held against its own graph run by ATen, kernel by kernel where they differ.

    ``options`` are those of ``lamina.compile``; an argument of ``fn`` by that name is bound with ``functools.partial``.
    Of a compiled function the original is taken. A program that draws random numbers, which kernels draw otherwise,
    is compared with ``numerics="eager"``; its regions are as the options say. Raises ``BadArgument`` for what cannot be
    called or compiled, and ``UnknownOption`` for an option that there is not.
    """
    fn = uncompiled(fn)
    name = str(getattr(fn, "__qualname__", type(fn).__name__))
    runs = Runs(fn, args, kwargs, options_given(options))
    notes: list[str] = []
    eager = runs.run(fn)
    chosen = dict(runs.options)
    if eager.draws_numbers and chosen.get("numerics", "fast") != "eager":
        chosen["numerics"] = "eager"
        notes.append('it draws random numbers: values are those of numerics="eager", which draws as eager does')
    with compiled_anew(), warnings.catch_warnings():
        warnings.simplefilter("ignore", LaminaWarning)
        plain = _fresh(fn, {**chosen, "verify": False})
        ours = runs.run(plain)
        checking = _fresh(fn, {**runs.options, "verify": "first", "strict": False})
        runs.run(checking)
    exact = runs.exact(fn)
    if exact is None:
        notes.append("it does not run in double precision: half of the digits must agree with eager's")
    regions = [s.value for s in _record(checking).stages if isinstance(s.value, RegionCheck)]
    if not regions:
        notes.append("nothing of it was compiled to a region of its own")
    found = differing(eager, ours, exact)
    rewrite = ""
    if found and all(region.ok for region in regions):

        def differs(fuel: int) -> tuple[bool, Counter[str]]:
            with compiled_anew(), warnings.catch_warnings():
                warnings.simplefilter("ignore", LaminaWarning)
                part = _fresh(fn, {**chosen, "verify": False, "fuel": fuel})
                trace = runs.run(part)
            return bool(differing(eager, trace, exact)), _rewrites(part)

        rewrite = _first_rewrite(differs, _rewrites(plain).total())
    return Verification(name, tuple(_values(eager, ours, exact, found)), tuple(regions), tuple(notes), rewrite)


def _rewrites(compiled: Any) -> Counter[str]:
    """The rules that were applied, each with the place that it was applied at."""
    taken = [d for d in _record(compiled).decisions("rewrite") if d.taken]
    return Counter(repr(d.subject[0]) + "".join(f" at {place}" for place in d.subject[1:2]) for d in taken)


def _first_rewrite(differs: Callable[[int], tuple[bool, Counter[str]]], most: int) -> str:
    """The first rewrite with which values differ, found by halving; "" if they differ without any, or with none."""
    good, none = 0, Counter[str]()
    if not most or differs(0)[0]:
        return ""
    bad, found = most, None
    while found is None or bad - good > 1:
        middle = bad if found is None else (good + bad) // 2
        wrong, rewrites = differs(middle)
        if wrong:
            bad, found = middle, rewrites
        elif found is None:
            return ""
        else:
            good, none = middle, rewrites
    return next(iter(found - none), "")


def _record(compiled: Any) -> Any:
    """The record of a compiled function or module; a module may have an attribute of that name."""
    link = link_of(compiled)
    return compiled.record if link is None else link.attributes["record"]


def _fresh(fn: Callable[..., Any], options: dict[str, Any]) -> Any:
    return compile(fn, options={**options, "progress": False, "compare_eager": "off"})


def _values(eager: Trace, ours: Trace, exact: Trace | None, found: list[Difference]) -> Iterator[VerifiedValue]:
    """A row for each value that eager shows, in order, and one for each other difference."""
    left = {id(d): d for d in found}
    for path, value in eager.leaves.items():
        mine, reference = ours.leaves.get(path), exact.leaves.get(path) if exact else None
        later = eager.late.get(path)
        about = [d for d in found if d.where in (path, f"{path} at the end")]
        for d in about:
            left.pop(id(d), None)
        now = [d for d in about if d.where == path]
        text = "; ".join(_said(d, path) for d in now or about)
        if isinstance(value, Seen):
            if path in ours.late and later is not None:
                value, mine = later, ours.late[path]
                reference = exact.late.get(path) if exact else None
            yield VerifiedValue(path, _kind(value), _error(value, reference), _error(mine, reference), text)
        elif text:
            yield VerifiedValue(path, type(value).__name__, None, None, text)
    for d in left.values():
        yield VerifiedValue(d.where, d.kind, None, None, d.text)


def _said(found: Difference, path: str) -> str:
    after = " afterwards" if found.where != path else ""
    return f"{found.kind}{after}: {found.text}"


def _kind(seen: Seen) -> str:
    return f"{str(seen.value.dtype).removeprefix('torch.')}{list(seen.value.shape)}"


def _error(seen: Any, exact: Any) -> Error | None:
    if not (isinstance(seen, Seen) and isinstance(exact, Seen)) or seen.value.shape != exact.value.shape:
        return None
    if not (seen.value.is_floating_point() or seen.value.is_complex()):
        return None
    return error(seen.value, exact.value)
