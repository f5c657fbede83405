"""Parts of a model tuned one by one: candidates for each, and the mix of those that make the whole faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from lamina.errors import BadArgument
from lamina.tuner.choice import ALIKE
from lamina.tuner.values import Candidate, Part, Row, mix_of, parts_in

__all__ = ["candidates_for_parts", "mixed", "parts_named", "refined"]

_REFINED = ("mode", "options")
"""Settings of a compiler that are tried for a part where the compiler without them has made the whole faster."""


def parts_named(wanted: bool | Sequence[str], found: Sequence[Part], known: Iterable[str]) -> tuple[Part, ...]:
    """The parts to tune: those ``found`` by their share of the time, or the modules of these names.

    Raises ``BadArgument`` for a name that is no module of the model.
    """
    if isinstance(wanted, bool):
        return tuple(found) if wanted else ()
    names = [name for name in known if name]
    missing = [name for name in wanted if name not in names]
    if missing:
        more = f"and {len(names) - 8} more" if len(names) > 8 else ""
        some = f"name some of {', '.join(names[:8])} {more}".rstrip() if names else "leave it out: it holds none"
        raise BadArgument(f"the model holds no module {missing[0]!r}", remedy=some)
    shares = {part.modules: part.share for part in found}
    return tuple(Part((name,), shares.get((name,), 0.0)) for name in dict.fromkeys(wanted))


def candidates_for_parts(parts: Sequence[Part], whole: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """A candidate for each part by each compiler that ``whole`` names, the parts with the largest share first: without
    a mode and options, where ``whole`` has such a one.
    """
    given = [c for c in whole if c.kind != "mix"]
    plain = {_compiler(c) for c in given if not _is_refined(c)}
    simple = [c for c in given if not _is_refined(c) or _compiler(c) not in plain]
    return tuple(mix_of({part: candidate}) for part in parts for candidate in simple)


def refined(rows: Sequence[Row], whole: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Candidates for the parts that ``rows`` show to help, in the modes and with the options that ``whole`` has of the
    compiler that helps most.
    """
    tried = {row.candidate.name for row in rows}
    found = []
    for row in _helping(rows).values():
        ((part, best),) = _parts(row.candidate).items()
        others = [c for c in whole if c.kind != "mix" and _is_refined(c) and _compiler(c) == _compiler(best)]
        found += [mix_of({part: candidate}) for candidate in others]
    return tuple(candidate for candidate in found if candidate.name not in tried)


def _is_refined(candidate: Candidate) -> bool:
    return any(name in candidate.settings for name in _REFINED)


def _compiler(candidate: Candidate) -> str:
    """The kind of a candidate and its settings but the mode and options."""
    rest = {name: value for name, value in candidate.settings.items() if name not in _REFINED}
    return f"{candidate.kind} {sorted(rest.items())!r}"


def mixed(rows: Sequence[Row], measured: Callable[[Candidate], Row]) -> list[Row]:
    """Rows of mixes: parts are added one by one, the one that helps most first, each mix measured as a whole.

    ``rows``: those of candidates for single parts. A part that does not make the mix faster is left out again, and the
    row of that mix says so.
    """
    order = sorted(_helping(rows).values(), key=_speed, reverse=True)
    found: list[Row] = []
    if not order:
        return found
    best, *others = order
    for row in others:
        both = dict(_parts(best.candidate)) | dict(_parts(row.candidate))
        tried = measured(mix_of(both))
        if tried.verdict == "faster" and _speed(tried) > _speed(best) * (1.0 + ALIKE):
            best = tried
        elif tried.figures is not None:
            told = ", ".join(str(part) for part in _parts(row.candidate))
            tried = replace(tried, reason=f"{told} rolled back: {_speed(tried):.2f}x, {_speed(best):.2f}x without it")
        found.append(tried)
    return found


def _helping(rows: Sequence[Row]) -> dict[tuple[str, ...], Row]:
    """For each part the row that makes the whole fastest, the first of those that are alike."""
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        if row.verdict != "faster" or row.figures is None:
            continue
        (modules, _), *_ = parts_in(row.candidate)
        before = found.get(modules)
        if before is None or _speed(row) > _speed(before) * (1.0 + ALIKE):
            found[modules] = row
    return found


def _parts(candidate: Candidate) -> dict[Part, Candidate]:
    return {Part(modules, 0.0): inner for modules, inner in parts_in(candidate)}


def _speed(row: Row) -> float:
    return 1.0 if row.figures is None else row.figures.speedup.middle
