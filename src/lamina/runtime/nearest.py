"""Why a kernel is not in the cache: the part of its key that differs from the kernel that is nearest to it.

For each name of a kernel, without the digits that tell kernels of one name apart, a note says what the last one built
was made of. A kernel that is missing is compared with it before it is built.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lamina.runtime.cache import Cache, Entry, digest
from lamina.runtime.kernel import ABI, KernelUnit, internal_source, meaning, prelude_meaning
from lamina.runtime.toolchain import Compiler, compile_flags

__all__ = ["MissedKernel", "missed_kernels", "note_built"]

_MOST = 8
"""Missing kernels of one build that are compared: a new model misses all of its kernels for one reason."""
_DIGITS = re.compile(r"_[0-9a-f]{8,}(?![0-9A-Za-z])")
_LONGEST = 160
"""Characters of a value that is told."""


@dataclass(frozen=True, slots=True)
class MissedKernel:
    """A kernel that was not in the cache: the ``part`` of its key that differs from the nearest one, and both values.

    ``part`` is "" where no kernel of its name was built before, and "entry" where one with the very key was, whose
    entry is gone.
    """

    kernel: str
    part: str = ""
    old: str = ""
    new: str = ""


def missed_kernels(units: Iterable[KernelUnit], compiler: Compiler, isa: str, cache: Cache) -> tuple[MissedKernel, ...]:
    """Each of the first of ``units``, none of which the cache has, compared with the nearest that it had."""
    return tuple(_missed(unit, compiler, isa, cache) for unit, _ in zip(units, range(_MOST), strict=False))


def note_built(units: Iterable[KernelUnit], compiler: Compiler, isa: str, cache: Cache, key: str) -> None:
    """Note what kernels were made of that were just published in the entry ``key``."""
    for name, unit in {_name(unit): unit for unit in units}.items():
        cache.write_note(_note(name), {"object": key, "parts": _parts(unit, compiler, isa)})


def _missed(unit: KernelUnit, compiler: Compiler, isa: str, cache: Cache) -> MissedKernel:
    note = cache.note(_note(_name(unit)))
    before = None if note is None else note.get("parts")
    if not isinstance(before, Mapping):
        return MissedKernel(unit.name)
    now = _parts(unit, compiler, isa)
    part = next((part for part in now if before.get(part) != now[part]), "entry")
    if part == "entry":
        return MissedKernel(unit.name, part, "built before", "not in the cache")
    old, new = str(before.get(part, "")), now[part]
    if part == "source" and note is not None:
        with suppress(Exception):  # the text is told where the entry is still there and whole
            old, new = _first_difference(_old_text(cache, str(note.get("object")), old), _text(unit))
    if part == "flags":
        before_only, now_only = (set(a.split()) - set(b.split()) for a, b in ((old, new), (new, old)))
        old, new = " ".join(sorted(before_only)) or "without", " ".join(sorted(now_only)) or "without"
    return MissedKernel(unit.name, part, old[:_LONGEST], new[:_LONGEST])


def _parts(unit: KernelUnit, compiler: Compiler, isa: str) -> dict[str, str]:
    """What decides whether a built kernel is found again, what is most often alike first."""
    return {
        "version of the runtime": ABI,
        "machine": platform.machine(),
        "compiler": compiler.identity,
        "flags": " ".join((*compile_flags(isa), *unit.flags)),
        "prelude": digest(prelude_meaning(unit.prelude))[:16],
        "parameters": " ".join(f"{f.parameters}{'!' * f.checked}" for f in unit.functions),
        "source": digest(_text(unit))[:16],
    }


def _name(unit: KernelUnit) -> str:
    return _DIGITS.sub("", unit.name)


def _note(name: str) -> str:
    return digest("nearest", name)[:32]


def _text(unit: KernelUnit) -> str:
    """The source as it is compared: without comments and the digits of names."""
    return _DIGITS.sub("", meaning(internal_source(unit), unit.functions))


def _old_text(cache: Cache, key: str, wanted: str) -> str:
    """The source whose text has the digest ``wanted`` in the entry ``key``. Raises ``LookupError`` without it."""
    entry: Any = cache.get(key)
    if isinstance(entry, Entry):
        for file in (name for name in entry.files if name.endswith(".cpp")):
            for part in entry.read(file).decode().split('\n#line 1 "entry"')[:-1]:
                source = part.rpartition('#line 1 "')[2].partition("\n")[2]
                names = re.findall(r"#define (\w+) ", part.rpartition('#line 1 "')[0].rpartition("namespace")[2])
                for index, name in enumerate(names):
                    source = re.sub(rf"\b{name}\b", f"@{index}", source)
                text = _DIGITS.sub("", meaning(source))
                if digest(text)[:16] == wanted:
                    return text
    raise LookupError(key)


def _first_difference(old: str, new: str) -> tuple[str, str]:
    """The first line that differs, of both texts."""
    before, now = old.splitlines(), new.splitlines()
    pairs = zip((*before, *[""] * len(now)), (*now, *[""] * len(before)), strict=False)
    return next((a.strip(), b.strip()) for a, b in pairs if a != b)
