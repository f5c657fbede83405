"""The user's lines in a kernel's text: a comment above each group of statements that one operation asked for.

A kernel is shared by all calls with equal nests, and knows no user. The lines are those of its first call in the plan;
they are comments alone, which no cache looks at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from lamina.base.text import one_line
from lamina.codegen.triton.source import TritonSource
from lamina.ir.loops import Nest, Source, defined
from lamina.ir.plan import KernelCall, Plan

__all__ = ["cpp_nests", "cpp_with_origins", "triton_with_origins"]

_DEFINES = re.compile(r"\b(v\d+)(?:_\w+)?(?:\[\w+\])? = ")
"""A value of a nest, or what is kept of it under a name that begins like its own, on the left of an assignment."""
_FUNCTION = re.compile(r"(?:static|extern \"C\") ")
_PART = re.compile(r"static \w+ \w+?_(\d+)_part\d+\(")
"""The function of a loop that threads share; a kernel of several nests has their numbers in it."""
_NEST = re.compile(r"  \{  // ")
"""Where a nest begins in the function of a C++ kernel."""

_Places = tuple[dict[str, str], ...]
"""For each nest of a kernel, the user's line and operation of its values by name."""


def cpp_with_origins(texts: Mapping[str, str], plan: Plan) -> dict[str, str]:
    """The C++ texts of the plan's kernels by name, with the user's lines."""
    places = _places_of(plan)
    found = {}
    for name, text in texts.items():
        own = places.get(name, ())
        marked = _marked(text.splitlines(), own, cpp_nests, "//") if own else ()
        found[name] = "\n".join([*marked, ""]) if own else text
    return found


def triton_with_origins(sources: Mapping[str, TritonSource], plan: Plan) -> dict[str, TritonSource]:
    """The Triton texts of the plan's kernels by name, with the user's lines. Of several nests they stand at the top."""
    places = _places_of(plan)
    return {name: _triton(source, places.get(name, ())) for name, source in sources.items()}


def _triton(source: TritonSource | None, places: _Places) -> Any:
    if source is None or not places:
        return source
    lines = source.text.splitlines()
    if len(places) == 1:
        marked = [*_marked(lines, places, lambda lines: [0] * len(lines), "#")]
    else:
        at = next((i for i, line in enumerate(lines) if line == "@triton.jit"), 0)
        said = [f"# nest {k}: {'; '.join(dict.fromkeys(filter(None, p.values())))}" for k, p in enumerate(places)]
        marked = [*lines[:at], *said, *lines[at:]]
    others = {kind: _triton(getattr(source, kind), places) for kind in ("then", "plain", "uneven")}
    return replace(source, text="\n".join([*marked, ""]), **others)


def _places_of(plan: Plan) -> dict[str, _Places]:
    """The lines of each kernel that is called."""
    sources = {source.node: source for source in plan.sources}
    kernels = {kernel.name: kernel for kernel in plan.kernels}
    found: dict[str, _Places] = {}
    for step in plan.steps:
        if isinstance(step, KernelCall) and step.kernel in kernels and step.kernel not in found:
            own = kernels[step.kernel].nests
            pairs = zip(own, step.nests, strict=True) if len(own) == len(step.nests) else ()
            found[step.kernel] = tuple(_of_nest(mine, called, sources) for mine, called in pairs)
    return found


def _of_nest(own: Nest, called: Nest, sources: Mapping[str, Source]) -> dict[str, str]:
    """Equations of a kernel's nest and of its call's stand in the same order, under names of their own."""
    if len(own.body) != len(called.body):
        return {}
    found: dict[str, str] = {}
    for mine, theirs in zip(own.body, called.body, strict=True):
        said = [sources[node] for node in theirs.origin if node in sources]
        text = ", ".join(dict.fromkeys(source.place or source.op for source in said))
        found |= dict.fromkeys(defined(mine), one_line(text))
    return found


def _marked(
    lines: list[str], places: _Places, nests: Callable[[list[str]], Iterable[int]], comment: str
) -> Iterator[str]:
    """The lines, with a comment wherever the next statement is another operation's than the one before."""
    last = ""
    for line, number in zip(lines, nests(lines), strict=True):
        if line and not line[0].isspace():
            last = ""
        match = _DEFINES.search(line)
        place = places[number].get(match[1], "") if match and number < len(places) else ""
        if place and place != last:
            last = place
            yield f"{line[: len(line) - len(line.lstrip())]}{comment} {place}"
        yield line


def cpp_nests(lines: list[str]) -> Iterator[int]:
    """The number of the nest that each line belongs to."""
    number, opened = 0, 0
    for line in lines:
        if _FUNCTION.match(line):
            part = _PART.match(line)
            number, opened = int(part[1]) if part else 0, 0
        elif _NEST.match(line):
            number, opened = opened, opened + 1
        yield number
