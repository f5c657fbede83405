"""Checks one program: eager, compiled, in double precision, and over several draws where rounding has to be judged."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lamina.base.accuracy import RATIO, SPECIAL, distance
from lamina.errors import UnknownGradient
from lamina.testing.compare import DRAWS, HOPELESS
from lamina.testing.fuzz.differ import KINDS, Difference, differences, undecided, unstable
from lamina.testing.fuzz.observe import Raised, Seen, Trace, observe
from lamina.testing.fuzz.perturbed import ORDERS, PLACES, Copied, Elsewhere, OfEqual, RandomRounding, SumsApart
from lamina.testing.fuzz.target import LAMINA, captured_by_torch, compile_function, is_lamina
from lamina.testing.fuzz.values import WRITTEN_OVER, Backwards
from lamina.testing.sample import Sample

__all__ = ["Verdict", "check", "check_capture", "report"]

MOST_DRAWS = 4 * DRAWS

_REFUSAL = UnknownGradient.__name__

ROUNDINGS = 4
"""So many runs of eager with other roundings in each draw tell how far rounding alone takes it."""

TURNS = 16
"""So many runs tell which elements rounding makes infinite or NaN."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one program.

    ``decided`` is False if a step in it turned by rounding in eager itself, so that its values say nothing.
    ``drawn`` is how many draws were taken, ``eager_raised`` whether eager itself raised something.
    """

    differences: tuple[Difference, ...] = ()
    decided: bool = True
    drawn: int = 1
    eager_raised: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    @property
    def kind(self) -> str:
        """Kind of the first difference, "" if there is none."""
        return self.differences[0].kind if self.differences else ""


def check(source: str, target: str, progress: Callable[[], None] = lambda: None) -> Verdict:
    """Run a program's text eagerly, compiled with the compile function called ``target``, and in double precision.

    What only rounding can explain is judged over several draws of the inputs, as ``compare_draws`` does: the mean error
    is at most twice eager's. Everything else counts at once. Forgets all that torch.compile holds. ``progress`` is
    called before each draw but the first. A gradient of one of several equal elements is not decided where torch leaves
    open which one a selection takes.
    """
    verdict = _judged(source, target, progress)
    return replace(verdict, differences=(), decided=False) if _selects_otherwise(source, verdict, target) else verdict


def _selects_otherwise(source: str, verdict: Verdict, target: str) -> bool:
    """Whether all that differs in the values is eager's where its selections take equal elements as they stand."""
    names = {d.where for d in verdict.differences}
    if verdict.ok or any(d.kind != "value" for d in verdict.differences) or "numerics" in source:
        return False
    usual, stable = ({d.where for d in _one(source, target, 0, within)[0]} for within in (None, OfEqual()))
    return names <= usual and names.isdisjoint(stable)


def _judged(source: str, target: str, progress: Callable[[], None]) -> Verdict:
    found, eager, ours, exact = _one(source, target, 0)
    found = _before_refusal(found, ours)
    raised = any(isinstance(v, Raised) for v in eager.leaves.values())
    hard = _certain(source, found, ours, 0)
    soft = [d for d in found if d.kind == "rounding"]
    uncertain = exact is not None and (undecided(eager, exact) or _turns_by_rounding(source, hard, eager, ours))
    if uncertain:
        hard = [d for d in hard if d.kind not in ("value", "zero sign")]
        return Verdict(tuple(hard), decided=False, eager_raised=raised)
    if hard:
        hard += [Difference("value", d.where, d.text) for d in soft if d.large]
        return Verdict(tuple(sorted(hard, key=lambda d: KINDS.index(d.kind))), eager_raised=raised)
    if not soft:
        return Verdict(eager_raised=raised)
    unknown = [d for d in soft if exact is None or _shown(exact, d.where) is None]
    if unknown:  # half of the digits differ
        return Verdict(tuple(Difference("value", d.where, d.text) for d in unknown), eager_raised=raised)
    worse, drawn = _drawn(source, target, {d.where for d in soft}, progress)
    decided = True
    if worse and all(d.kind == "value" for d in worse):
        worse, decided = _beyond_rounding(source, target, worse, progress)
    return Verdict(tuple(worse), decided=decided, drawn=drawn, eager_raised=raised)


def _before_refusal(found: list[Difference], ours: Trace) -> list[Difference]:
    """What differs before the compiled program refuses, as its documentation says, a gradient that it does not know."""
    refused = [path for path, leaf in ours.leaves.items() if isinstance(leaf, Raised) and leaf.kind == _REFUSAL]
    if not refused:
        return found
    first = min(map(_number, refused))
    return [d for d in found if _number(d.where) < first]


def _number(path: str) -> int:
    """The number of the ``yield`` that showed what is at ``path``; the end comes after all."""
    number = path.partition("[")[0]
    return int(number) if number.isdigit() else sys.maxsize


def report(path: str | Path, target: str = LAMINA) -> Verdict:
    """Check the program in a file, print what differs, and return the verdict."""
    verdict = check(Path(path).read_text(encoding="utf-8"), target)
    print("\n".join(map(str, verdict.differences)) or f"nothing differs from eager with {target!r}")
    return verdict


def check_capture(source: str, target: str, progress: Callable[[], None] = lambda: None) -> bool:
    """Whether torch.compile's capture alone (backend "eager") shows a difference as well; see ``check``.

    It answers for no program that the compile function called ``target`` captures itself.
    """
    return captured_by_torch(target) and not check(source, "eager", progress).ok


def _one(
    source: str, target: str, draw: int, within: AbstractContextManager[Any] | None = None
) -> tuple[list[Difference], Trace, Trace, Trace | None]:
    """What differs in one draw, and the three runs; eager's are ``within`` a context, if one is given."""
    eager = observe(source, compile_function("none"), draw=draw, within=within)
    torch.compiler.reset()
    ours = observe(source, compile_function(target), draw=draw)
    exact = _exact(source, eager, draw, within=within)
    same_numbers = target == "none" or ((is_lamina(target) or target == "eager") and "numerics" in source)
    found = _found(eager, ours, exact, same_numbers)
    if _keeps_more(eager, ours):
        both = Backwards(refused=eager.failed & ours.failed)
        kept = observe(source, compile_function("none"), draw=draw, kept=True, within=within, backwards=both)
        wide = _exact(source, kept, draw, kept=True, within=within)
        other = _found(kept, ours, wide, same_numbers)
        if all(d.kind == "rounding" for d in other):
            return other, kept, ours, wide
    return found, eager, ours, exact


def _found(eager: Trace, ours: Trace, exact: Trace | None, same_numbers: bool) -> list[Difference]:
    found = differences(eager, ours, exact, random=same_numbers)
    if eager.draws_numbers and not same_numbers:
        found = [d for d in found if d.kind not in ("value", "zero sign", "rounding")]
    return found


def _keeps_more(eager: Trace, ours: Trace) -> bool:
    """Whether eager once has no gradient since a value for it was written over, and the compiled program has one.

    What is saved for a gradient is not eager's contract: it changes with the formulas. The gradient must then be that
    of an eager run in which nobody writes to what is saved.
    """
    lost = (path for path, leaf in eager.leaves.items() if isinstance(leaf, Raised) and WRITTEN_OVER in leaf.text)
    return any(path in ours.leaves and not isinstance(ours.leaves[path], Raised) for path in lost)


def _exact(
    source: str, eager: Trace, draw: int, kept: bool = False, within: AbstractContextManager[Any] | None = None
) -> Trace | None:
    """The run in double precision, of which only what eager shows as well; None if that is nothing.

    A cast that eager makes, and saves, is none in double precision: what is saved is then the tensor that the program
    writes to; and gradients of several dtypes that eager refuses are of one. Such a run is one with copies saved, in
    which those backwards fail that failed in eager.
    """
    ways = (True,) if kept else (False, True)
    for copies in ways:
        how = Backwards(refused=eager.failed if copies else frozenset())
        try:
            exact = observe(
                source, compile_function("none"), draw=draw, wide=True, kept=copies, within=within, backwards=how
            )
        except Exception:
            return None
        if _alike(eager.leaves, exact.leaves):
            return exact
        common = _in_common(eager.leaves, exact.leaves)
        if common and copies is ways[-1]:
            return Trace(leaves={path: exact.leaves[path] for path in common}, draws_numbers=exact.draws_numbers)
    return None


def _in_common(eager: dict[str, Any], exact: dict[str, Any]) -> list[str]:
    """What both show alike. Past the first that is not, only what tells how far eager is off.

    Eager refuses what it takes in double precision, as matrices of two dtypes; and a cast that is none there gives the
    tensor itself, which may have a history where the cast has none.
    """
    shown: list[str] = []
    apart = False
    for path, theirs in eager.items():
        if path not in exact or not _alike({path: theirs}, {path: exact[path]}):
            apart = True
        elif not (apart and unstable(theirs, exact[path])):
            shown.append(path)
    return shown


def _alike(eager: dict[str, Any], exact: dict[str, Any]) -> bool:
    if eager.keys() != exact.keys():
        return False
    for path, theirs in eager.items():
        if type(theirs) is not type(exact[path]):
            return False
        if isinstance(theirs, Seen) and theirs.value.shape != exact[path].value.shape:
            return False
    return True


def _drawn(source: str, target: str, names: set[str], progress: Callable[[], None]) -> tuple[list[Difference], int]:
    """Differences in rounding over several draws, and how many were taken."""
    samples: dict[str, Sample] = {}
    draw = 0
    for draw in range(1, MOST_DRAWS + 1):
        progress()
        found, eager, ours, exact = _one(source, target, draw)
        hard = _certain(source, found, ours, draw)
        if exact is None or undecided(eager, exact):
            continue
        if hard:
            return hard, draw
        _add(samples, names, (eager, ours, exact))
        worst = max((s.excess for s in samples.values()), default=0.0)
        if draw % DRAWS == 0 and not RATIO < worst < HOPELESS:
            break
    return [Difference("value", name, s.complaint) for name, s in samples.items() if s.complaint], draw


def _beyond_rounding(
    source: str, target: str, found: list[Difference], progress: Callable[[], None]
) -> tuple[list[Difference], bool]:
    """Of differences in rounding those that eager with other roundings does not have, and whether that is decided.

    It is not where other roundings turn a comparison or a floor in eager that one of them depends on.
    """
    samples: dict[str, Sample] = {}
    decided = True
    for draw in range(1, DRAWS + 1):
        progress()
        _, _, ours, exact = _one(source, target, draw)
        others = [] if exact is None else [_rounded_otherwise(source, draw, n, exact) for n in range(ROUNDINGS)]
        runs = [other for other in others if other is not None]
        if exact is None or len(runs) < ROUNDINGS:
            continue
        for name in (d.where for d in found):
            worst = max(runs, key=lambda run: _off(run, exact, name))
            decided = decided and not unstable(_shown(worst, name), _shown(exact, name))
            _add(samples, {name}, (worst, ours, exact))
    fine = {name for name, sample in samples.items() if not sample.complaint}
    left = [d for d in found if d.where not in fine]
    return left, decided or bool(left)


def _turns_by_rounding(source: str, found: list[Difference], eager: Trace, ours: Trace) -> bool:
    """Whether other roundings turn in eager itself all that is infinite, or NaN, in one of the two only.

    What is divided by zero is zero, positive or negative by rounding alone.
    """
    names = [d.where for d in found if d.kind == "value" and SPECIAL in d.text]
    if not names:
        return False
    runs = [observe(source, compile_function("none"), within=RandomRounding(number)) for number in range(TURNS)]
    for name in names:
        theirs, mine = _at(eager, name), _at(ours, name)
        if theirs is None or mine is None or theirs.shape != mine.shape:
            return False
        others = [other for run in runs if (other := _at(run, name)) is not None and other.shape == mine.shape]
        turned = [_kinds(other) != _kinds(theirs) for other in others]
        steady = (_kinds(mine) != _kinds(theirs)) & ~functools.reduce(
            torch.logical_or, turned, torch.zeros_like(mine).bool()
        )
        if bool(steady.any()):
            return False
    return True


def _kinds(tensor: Tensor) -> Tensor:
    """For each element a number that tells NaN, both infinities and what is finite apart."""
    return torch.where(tensor.isnan(), 2, torch.where(tensor.isinf(), tensor.sign(), 0))


def _rounded_otherwise(source: str, draw: int, number: int, exact: Trace) -> Trace | None:
    """Eager with other roundings, with copies saved if only then it shows what ``exact`` does; else None."""
    for kept in (False, True):
        rounding = RandomRounding(ROUNDINGS * draw + number)
        trace = observe(source, compile_function("none"), draw=draw, kept=kept, within=rounding)
        if _alike({path: trace.leaves.get(path) for path in exact.leaves}, exact.leaves):
            return trace
    return None


def _off(trace: Trace, exact: Trace, name: str) -> float:
    """How far what has this name is from the exact one, at its worst element."""
    one, right = _at(trace, name), _at(exact, name)
    return 0.0 if one is None or right is None else distance(one, right).largest


def _certain(source: str, found: list[Difference], ours: Trace, draw: int) -> list[Difference]:
    """The differences that no further draw is needed for."""
    return [
        d
        for d in found
        if d.kind != "rounding" and not (d.kind == "zero sign" and _is_undefined(source, d, ours, draw))
    ]


def _is_undefined(source: str, found: Difference, ours: Trace, draw: int) -> bool:
    """Whether eager's zeros have our signs where its elements lie elsewhere in its vectors, or outside of them, or
    where it differentiates the terms of a loss one after another, as gradients are then added after products, not
    before; or where it copies what methods write; or where sums are operations of their own; or where selections and
    sorts take 0.0 and -0.0 in another order; or where other roundings leave no zero or one with our sign.
    """
    run = functools.partial(observe, source, compile_function("none"), draw=draw)
    mine, eager = _at(ours, found.where), _at(run(), found.where)
    if mine is None or eager is None:
        return False
    wrong = (mine == 0) & (eager == 0) & (mine.signbit() != eager.signbit())
    ways: tuple[dict[str, Any], ...] = (
        *({"within": Elsewhere(place)} for place in PLACES),
        {"backwards": Backwards(apart=True)},
        {"within": Copied()},
        {"within": SumsApart()},
        *({"within": OfEqual(order)} for order in ORDERS),
        *({"within": RandomRounding(number)} for number in range(ROUNDINGS)),
    )
    for way in ways:
        other = _at(run(**way), found.where)
        if other is not None and other.shape == mine.shape:
            is_zero, ours_too = other == 0, other.signbit() == mine.signbit()
            rounded = isinstance(way.get("within"), RandomRounding)
            wrong = wrong & ~(ours_too | ~is_zero if rounded else ours_too & is_zero)
    return not bool(wrong.any())


def _add(samples: dict[str, Sample], names: set[str], traces: tuple[Trace, Trace, Trace]) -> None:
    for name in names:
        eager, ours, exact = (_at(trace, name) for trace in traces)
        if eager is not None and ours is not None and exact is not None:
            samples.setdefault(name, Sample()).add(eager, ours, exact)


def _at(trace: Trace, name: str) -> Tensor | None:
    shown = _shown(trace, name)
    if isinstance(shown, float):
        return torch.tensor(shown, dtype=torch.float64)
    return shown.value if isinstance(shown, Seen) else None


def _shown(trace: Trace, name: str) -> Any:
    path = name.removesuffix(" at the end")
    return trace.late.get(path) if path != name else trace.leaves.get(path)
