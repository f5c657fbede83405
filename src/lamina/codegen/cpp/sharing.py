"""Kernels of one region whose texts differ only in numbers, as one text with those numbers as parameters.

A network repeats a loop nest at several widths and resolutions. Scheduling and code generation see constants, so what
they prove holds; only afterwards are the numbers that differ turned into parameters, where a constant brings no speed:
bounds of outer loops and of long vector loops, tiles and their ends, strides and offsets of addresses and of places in
streams of random numbers, memory of threads, divisors, numbers of single precision that a value is multiplied by, added
to or compared with, and what decides on threads. Others (short loops, vector remainders, strides of the vector axis)
stay constants, and kernels that differ in such a one stay apart. A kernel that no other resembles keeps all its
constants. Results are the same but for what a compiler that may contract ``a * b + c`` chooses to contract.

Three kinds of numbers take more than a parameter's name. A number of single precision is given as its bits, which are
exactly those that the literal has; 0, 1 and -1, with which a compiler computes nothing, stay constants. A local array
is as long as the longest that shares the text. A vector divided by a power of two is multiplied by its reciprocal, as a
compiler that sees the constant would do: the two are equal, and a division takes ten times as long; so divisors that
are powers of two and others stay apart.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Shared", "shared_kernels", "shown_numbers"]

_LONG = 64
"""A vector loop over so many points gains nothing when the compiler knows their number."""
_SHORT = 8
"""Other loops are unrolled by the compiler up to so many rounds, where it knows their number."""
_PARAMETERS = 24
"""Sizes that a shared text has as parameters at most: more are spilled at each call."""

_COMMENT = re.compile(r"[ \t]*//[^\n]*")
_ADDRESS = re.compile(
    r"\b(?:(?:load_|store_|picked_|spread_|__builtin_prefetch)\w*|(?:stepped_|turns_)\w+<\d+>|\w+_run\.at|philox)\("
)
_STEP = re.compile(
    r"\bpicked_\w+\(.*, (\d+), lane_count\(n\)\)|\bspread_\w+\(.*, (\d+), \w+, lane_count\(n\)\)"
    r"|\bphilox\(index_lanes\([^,]*, (\d+)\)"
)
"""How far lanes lie apart that are loaded, stored or drawn one by one."""
_LITERAL = re.compile(r"(?<![\w.])\d+(?![\w.])")
_NUMBER = re.compile(r"(?<![\w.])\d")
_FACTOR = re.compile(r"(\bi\w*|\)|\(int64\)\w+)\*$")
"""What a stride stands after: numbers of 64 bits, not vectors of fewer, which no parameter fits."""
_OF_ROWS = re.compile(r"\w+ \+ [^,]*\) \* $")
"""What a stride of a kernel's own memory stands after, from the call for the address on."""
_STRIP = re.compile(r"\bstrip\w*<\d+>\(0, (\d+), ")
_VECTOR = re.compile(r"\bstrip\w*<\d+>\([^,]+, [^\[]+, \[&\]\(int64 (\w+)")
"""The axis of a vector loop."""
_LOOP = re.compile(r"\bfor \(int64 (\w+) = 0; \1 < (\d+); ")
_THREADS = re.compile(r"\b(?:thread_count\(\d+(?=, )|share\([^a-z]*(?=, threads, ))")
_WHOLE = re.compile(r"(?<!\w)\d+")
_FLAT = re.compile(r"^\s*(?:int64 \w+ = rest % |for \(int64 point = begin; ).*$")
"""The split of a flat index, and the step to the next one."""
_ROWS = re.compile(r"\bfor \(; (\w+)(?: \+ \d+ <=| <) (\d+); ")
"""Loops over rows that come some at a time: more than ``_SHORT``, as others have no such loop."""
_TILES = (
    re.compile(r"\bint64 \w+_begin = \w+_tile \* (\d+);"),
    re.compile(r"\b\w+_end = least\(\w+ [+*] (\d+), (\d+)\);"),
    re.compile(r"\bfill\(\w+, (\d+), "),
    re.compile(r"\b(?:drain|settle)\(\w+, \w+, \w+, (\d+)\);"),
    re.compile(r"\badd_parts\(\w+, threads, (\d+)\);"),
)
_MEMORY = (
    re.compile(r"\bconst int64 shared = 0 \+ rounded\(\(threads \* (\d+)\) \* \d\), own = 0;"),
    re.compile(r"\bconst int64 shared = 0, own = (\d+);"),
    re.compile(r" \+ thread \* (\d+);"),
    re.compile(r"\[t \* (\d+) \+ k\]"),
)
"""Memory of threads."""
_ARRAY = re.compile(r"\balignas\(64\) \w+ \w+\[(\d+)\];")
_MOST_KEPT = 2048
"""Elements of the arrays of a shared text at most, unless each of its kernels has so many itself."""
_QUOTIENT = re.compile(r"/ splat_f32\((\d+)\.0f\)(?=;)")
_COUNT = re.compile(r"^\s*const f32 \w+ = (?:\w+ / (\d+\.0f);|(\d+\.0f) [-+] 1\.0f;|\(f32\)\(int64\)\((\d+)\);)")
_EXACT = 2**24
"""Whole numbers below are the same as ``float``."""
_SINGLE = re.compile(
    r"^\s*const \w+ \w+ = (?:\w+ (?:[-+*/]|[<>]=?) (?:splat_f32\()?(-?[\d.]+(?:e[-+]\d+)?f)\)?"
    r"|(?:splat_f32\()?(-?[\d.]+(?:e[-+]\d+)?f)\)? (?:[-+*]|[<>]=?) \w+);"
)
"""A value and a number of single precision."""
_SINGLE_OF = "bits_of<f32>((int32){})"
_DEFINED = re.compile(r"(?:static|extern)\b[^;()]*")


@dataclass(frozen=True, slots=True)
class Shared:
    """A kernel as a text that others have too: ``function`` is its name there, ``sizes`` its own first arguments."""

    source: str
    function: str
    sizes: tuple[int, ...] = ()


def shared_kernels(sources: Mapping[str, str]) -> dict[str, Shared]:
    """Each kernel, by name, with the text that it shares with those it resembles, or its own.

    ``sources`` are texts by the name of the kernel, which begins the names of all functions of its text.
    """
    forms: dict[tuple[str, ...], list[tuple[str, list[str]]]] = {}
    for name, source in sources.items():
        pieces = _pieces(source)
        fixed = tuple(re.sub(rf"\b{name}(?=\b|_)", "@", _COMMENT.sub("", text)) for text in pieces[::2])
        kinds = tuple(map(_kind, pieces[1::2]))
        forms.setdefault((*fixed, *kinds), []).append((name, pieces))
    found = {name: Shared(source, name) for name, source in sources.items()}
    for members in forms.values():
        columns = [_Column.of(values) for values in zip(*(pieces[1::2] for _, pieces in members), strict=True)]
        varied = list(dict.fromkeys(c.sizes for c in columns if c.is_parameter))
        name, pieces = members[0]
        arrays = [c.sizes for c in columns if c.kind == "["]
        most = max(_MOST_KEPT, min(map(sum, zip(*arrays, strict=True)), default=0))
        kept = sum(map(max, arrays))
        if not 0 < len(varied) <= _PARAMETERS or kept > most or re.search(r"\bn\d", sources[name]):
            continue
        text = _with_parameters(_general(pieces, columns, varied), name, len(varied))
        for place, (other, _) in enumerate(members):
            found[other] = Shared(text, name, tuple(sizes[place] for sizes in varied))
    return found


def _kind(piece: str) -> str:
    """What stands at a number's place: ``[`` an array's length, ``/2`` a vector's divisor that is a power of two, ``f``
    a number of single precision that is not whole.
    """
    if _is_single(piece):
        return "f"
    if not piece.startswith("/"):
        return "[" if piece.startswith("[") else ".0f" if piece.endswith(".0f") else ""
    return "/2" if _size(piece).bit_count() == 1 else "/"


def _size(piece: str) -> int:
    if _is_single(piece):
        bits: int = struct.unpack("<i", struct.pack("<f", float(piece[:-1])))[0]
        return bits
    match = _WHOLE.search(piece)
    assert match is not None
    return int(match[0])


def _is_single(piece: str) -> bool:
    return piece.endswith("f") and not piece.startswith("/") and not re.fullmatch(r"\d+\.0f", piece)


@dataclass(frozen=True, slots=True)
class _Column:
    """The numbers that kernels of one form have at one place, by kernel."""

    kind: str
    sizes: tuple[int, ...]

    @staticmethod
    def of(pieces: tuple[str, ...]) -> _Column:
        return _Column(_kind(pieces[0]), tuple(map(_size, pieces)))

    @property
    def is_parameter(self) -> bool:
        return self.kind != "[" and len(set(self.sizes)) > 1

    def text(self, parameter: str) -> str:
        """What stands at the place where ``parameter`` has the number."""
        as_float = f"(f32){parameter}"
        whole = {"/2": f"* splat_f32(1.0f / {as_float})", "/": f"/ splat_f32({as_float})", ".0f": as_float}
        whole["f"] = _SINGLE_OF.format(parameter)
        return whole.get(self.kind, parameter)


def _general(pieces: list[str], columns: list[_Column], varied: list[tuple[int, ...]]) -> str:
    """The text of ``pieces`` with parameters for the numbers that vary."""
    made = list(pieces)
    for position, column in enumerate(columns):
        if column.is_parameter:
            made[2 * position + 1] = column.text(f"n{varied.index(column.sizes)}")
        elif column.kind == "[":
            made[2 * position + 1] = f"[{max(column.sizes)}]"
    return "".join(made)


def _pieces(source: str) -> list[str]:
    """The text cut at the numbers that may become parameters: text, number, text, number, ..., text."""
    pieces, done = list[str](), 0
    start, within = 0, list[tuple[int, str]]()
    for line in source.splitlines(keepends=True):
        code = line.partition("//")[0]
        indent = len(code) - len(code.lstrip())
        while within and indent <= within[-1][0]:
            within.pop()
        vectors = frozenset(axis for _, axis in within)
        within += [(indent, axis) for axis in _VECTOR.findall(code)]
        for begin, end in _sorted_places(code, vectors) if _NUMBER.search(code) else ():
            pieces += [source[done : start + begin], source[start + begin : start + end]]
            done = start + end
        start += len(line)
    return [*pieces, source[done:]]


@functools.lru_cache(maxsize=8192)
def _sorted_places(line: str, vectors: frozenset[str]) -> tuple[tuple[int, int], ...]:
    """Where a line has such numbers, from left to right; many kernels of a network have a line in common."""
    return tuple(sorted(set(_places(line, vectors))))


def _places(line: str, vectors: frozenset[str]) -> Iterator[tuple[int, int]]:
    """Where a line has a number that may become a parameter of type ``int64``."""
    yield from (match.span(1) for match in _STRIP.finditer(line) if int(match[1]) >= _LONG)
    yield from (match.span(2) for match in _LOOP.finditer(line) if int(match[2]) > _SHORT)
    for counts in (_THREADS, _FLAT):
        for match in counts.finditer(line):
            yield from (number.span() for number in _LITERAL.finditer(line, *match.span()))
    yield from (match.span(2) for match in _ROWS.finditer(line) if int(match[2]) > _SHORT)
    for tiles in _TILES:
        yield from (match.span(group) for match in tiles.finditer(line) for group in range(1, tiles.groups + 1))
    yield from ((match.start(1) - 1, match.end(1) + 1) for match in _ARRAY.finditer(line))
    yield from (match.span() for match in _QUOTIENT.finditer(line) if int(match[1]) < _EXACT)
    for match in _COUNT.finditer(line):
        place = match.lastindex or 0
        if _size(match[place]) < _EXACT:
            yield match.span(place)
    for match in _SINGLE.finditer(line):
        place = match.lastindex or 0
        if _is_held(match[place], "/" in match[0]):
            yield match.span(place)
    for memory in _MEMORY:
        yield from (match.span(1) for match in memory.finditer(line))
    yield from _places_of_addresses(line, vectors)


def _is_held(literal: str, divides: bool) -> bool:
    """Whether a number of single precision, given as a parameter, is the same and costs nothing: not where a compiler
    multiplies by its reciprocal instead.
    """
    number = abs(float(literal[:-1]))
    if number in (0, 1) or (divides and math.frexp(number)[0] == 0.5):
        return False
    return _is_single(literal) or (number < _EXACT and not divides)


def _places_of_addresses(line: str, vectors: frozenset[str]) -> Iterator[tuple[int, int]]:
    """Strides and offsets of what is loaded, stored, or drawn from a stream."""
    address = _ADDRESS.search(line)
    if not address:
        return
    steps = {match.span(match.lastindex or 0) for match in _STEP.finditer(line)}
    yield from steps
    for match in _LITERAL.finditer(line):
        before = line[: match.start()]
        factor = _FACTOR.search(before)
        offset = before.endswith(" + ") and not line.startswith("*", match.end())
        long = int(match[0]) > (1 if vectors else _SHORT)
        if offset or (factor and long and (steps or factor[1] not in vectors)) or _of_rows(before):
            yield match.span()


def _of_rows(before: str) -> bool:
    """Whether what stands ``before`` a number is the place of a row in a kernel's own memory."""
    calls = list(_ADDRESS.finditer(before))
    return bool(calls) and _OF_ROWS.fullmatch(before, calls[-1].end()) is not None


def shown_numbers(source: str, sizes: Sequence[int]) -> list[str]:
    """The numbers that a shared text has as parameters, as a reader would write them."""
    shown = []
    for place, size in enumerate(sizes):
        single = _SINGLE_OF.format(f"n{place}") in source
        shown.append(f"{struct.unpack('<f', struct.pack('<i', size))[0]:.7g}" if single else str(size))
    return shown


def _with_parameters(source: str, name: str, count: int) -> str:
    """The text with ``n0, n1, ...`` as first parameters of all functions of the kernel, and passed on at each call."""

    def given(match: re.Match[str]) -> str:
        line = source[source.rfind("\n", 0, match.start()) + 1 : match.start()]
        kind = "int64 " if _DEFINED.fullmatch(line) else ""
        rest = "" if source.startswith(")", match.end()) else ", "
        return match[0] + ", ".join(f"{kind}n{k}" for k in range(count)) + rest

    return re.sub(rf"\b{name}\w*\(", given, source)
