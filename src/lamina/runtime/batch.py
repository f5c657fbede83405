"""A batch of kernels on its way through the compiler: compiled side by side, linked, loaded, and then published."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lamina.runtime.cache import Cache, Entry, digest
from lamina.runtime.compilation import Command, Limit, Outcome, Running, run_command, run_commands
from lamina.runtime.kernel import KernelError, KernelUnit, label, source_unit
from lamina.runtime.library import OBJECT, Functions, Library, functions_of, recall, remember
from lamina.runtime.loading import load_library
from lamina.runtime.nearest import note_built
from lamina.runtime.toolchain import Compiler, NoCompiler, compile_flags, link_flags
from lamina.runtime.workspace import DiskFull, Workspace, in_workspace

__all__ = ["Build", "compile_kernels"]

_LINK_SECONDS = 60.0
"""Seconds after which linking is given up: a round number far above what it takes, as a loaded machine may be slow."""
_SUSPECTS: set[str] = set()
"""Kernels of files that took too long, by what they are noted under: they get a file of their own."""
_ENDLESS: dict[str, KernelError] = {}
"""Kernels that took too long by themselves. They are not tried again in this process."""


@dataclass(slots=True)
class Build:
    """One call of ``build_kernels``: units by hash, and what is known of each so far."""

    units: dict[str, KernelUnit]
    compiler: Compiler | NoCompiler | None
    isa: str
    cache: Cache
    jobs: int
    limit: Limit
    tick: Callable[[int, int], None]
    running: Running
    loaded: dict[str, Functions] = field(default_factory=dict)
    errors: dict[str, KernelError] = field(default_factory=dict)
    compiled: set[str] = field(default_factory=set)

    def missing(self) -> list[str]:
        """Hashes of the kernels of which nothing is known yet."""
        return [h for h in self.units if h not in self.loaded and h not in self.errors]

    def recall(self, hashes: Iterable[str]) -> None:
        """Load those that this process or the cache has."""
        compiler = self.compiler if isinstance(self.compiler, Compiler) else None
        for identity in hashes:
            functions = recall(self.units[identity], identity, compiler, self.cache)
            if functions is not None:
                self.loaded[identity] = functions


def compile_kernels(build: Build, compiler: Compiler, hashes: list[str]) -> None:
    """Compile, load and publish kernels; each of them ends in ``build.loaded`` or in ``build.errors``."""
    build.running.check()
    build.errors.update({h: _ENDLESS[m] for h in hashes if (m := _mark(compiler, h)) in _ENDLESS})
    hashes = [h for h in hashes if h not in build.errors]
    if not hashes:
        return
    try:
        alone = in_workspace(lambda: build.cache.location, lambda space: _compile(build, compiler, hashes, space))
    except DiskFull as error:
        _fail(
            build,
            hashes,
            f"kernels cannot be compiled: {error.strerror}",
            "free space, or set TMPDIR to a folder with room",
        )
    except OSError as error:
        _fail(build, hashes, f"kernels cannot be written: {error}", "free space in the temporary folder")
    else:
        for identity in alone:  # one of them needs a symbol that torch does not have
            compile_kernels(build, compiler, [identity])


def _fail(build: Build, hashes: Iterable[str], what: str, remedy: str) -> None:
    reason = KernelError(what, remedy=remedy)
    build.errors.update(dict.fromkeys((h for h in hashes if h not in build.loaded and h not in build.errors), reason))


def _mark(compiler: Compiler, identity: str) -> str:
    return f"{identity}.{compiler.identity}"


def _compile(build: Build, compiler: Compiler, hashes: list[str], space: Workspace) -> list[str]:
    """Do so in a workspace; the kernels that have to be linked one by one."""
    good = _compile_files(build, compiler, [h for h in hashes if h not in build.errors], space)
    if not good:
        return []
    try:
        _link(build, compiler, good, space)
    except _NotLoadable as error:
        if len(good) > 1:
            return good
        build.errors[good[0]] = KernelError(f"kernel {build.units[good[0]].name!r}: {error}")
    return []


class _NotLoadable(Exception):
    """A shared object that was not linked, or cannot be loaded into this process, or lacks a kernel."""


def _compile_files(build: Build, compiler: Compiler, hashes: list[str], space: Workspace) -> list[str]:
    """Fill the workspace with sources and objects; the kernels that compiled. The others get an error of their own."""
    good: list[str] = []
    suspects: list[list[str]] = []
    files = _files(build, compiler, hashes)
    while files:
        outcomes = _run_compilers(build, compiler, files, space)
        retry: list[list[str]] = []
        for members, outcome in zip(files, outcomes, strict=True):
            if outcome.ok:
                good += members
                continue
            space.check(outcome.message)
            _source(space.path, members).unlink()
            if outcome.late or len(members) == 1:
                _give_up(build, compiler, members, outcome)
                continue
            blamed = [h for h in members if f"{label(build.units[h], h)}:" in outcome.message]
            rest = [h for h in members if h not in blamed] if blamed else []
            suspects += [[h] for h in blamed or members]
            if rest:
                retry.append(rest)
        if not retry:
            retry, suspects = suspects, []
        files = retry
    return good


def _give_up(build: Build, compiler: Compiler, members: Sequence[str], outcome: Outcome) -> None:
    """The kernels of a file that did not compile, or not in time, have that for an error."""
    for identity in members:
        what = f"kernel {build.units[identity].name!r} does not compile:\n{outcome.message.strip()}"
        remedy = "give it more time with the option build_seconds" if outcome.late else ""
        build.errors[identity] = KernelError(what, remedy=remedy)
        if outcome.late and outcome.started:
            _SUSPECTS.add(_mark(compiler, identity))
            if len(members) == 1:
                _ENDLESS[_mark(compiler, identity)] = build.errors[identity]


def _files(build: Build, compiler: Compiler, hashes: Sequence[str]) -> list[list[str]]:
    """Share kernels out over translation units, so that compilers running side by side end together."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for identity in hashes:
        unit = build.units[identity]
        # A macro of one kernel must not reach the next.
        macros = re.search(r"^\s*#\s*(?!pragma\b|line\b)", unit.source, re.MULTILINE)
        alone = identity if macros or _mark(compiler, identity) in _SUSPECTS else ""
        groups.setdefault((unit.prelude, unit.flags, alone), []).append(identity)
    # Starting a compiler costs as much as 2,000 characters of kernels take.
    wanted = min(build.jobs, max(1, sum(len(build.units[h].source) for h in hashes) // 8192))
    files: list[list[str]] = []
    for members in groups.values():
        count = max(1, min(len(members), round(wanted * len(members) / len(hashes))))
        bins: list[tuple[int, list[str]]] = [(0, []) for _ in range(count)]
        for identity in sorted(members, key=lambda h: (-len(build.units[h].source), h)):
            least = min(range(count), key=lambda i: bins[i][0])
            bins[least][1].append(identity)
            bins[least] = bins[least][0] + len(build.units[identity].source), bins[least][1]
        files += [sorted(b, key=hashes.index) for _, b in bins]
    return sorted(files, key=lambda f: -sum(len(build.units[h].source) for h in f))


def _source(folder: Path, members: Sequence[str]) -> Path:
    return folder / f"{digest(*members)[:16]}.cpp"


def _run_compilers(build: Build, compiler: Compiler, files: Sequence[list[str]], space: Workspace) -> list[Outcome]:
    commands: list[Command] = []
    for members in files:
        path = _source(space.path, members)
        path.write_text(source_unit((h, build.units[h]) for h in members), encoding="utf-8")
        flags = (*compile_flags(build.isa), *build.units[members[0]].flags)
        words = (compiler.path, *flags, "-c", path.name, "-o", f"{path.stem}.o")
        commands.append(Command(words, space, build.limit))
    return run_commands(commands, build.jobs, lambda finished: build.tick(finished, len(files)), build.running)


def _link(build: Build, compiler: Compiler, hashes: list[str], space: Workspace) -> None:
    """Link the objects and load them; only what has all of its kernels is put in the cache, with a note for each."""
    (space.path / "stub.so").write_bytes(compiler.stub)
    objects = sorted(path.name for path in space.path.glob("*.o"))
    words = (compiler.path, *objects, *link_flags("stub.so"), "-o", OBJECT)
    # Of its own, so that kernels that were compiled in time are used.
    outcome = run_command(Command(words, space, Limit(_LINK_SECONDS, build.limit.clock)), build.running)
    if outcome.late:
        _fail(build, hashes, f"linking failed: {outcome.message}", "try it again on a machine that is less busy")
        return
    if not outcome.ok:
        space.check(outcome.message)
        raise _NotLoadable(f"linking failed:\n{outcome.message.strip()}")
    try:
        handle = load_library(space.path / OBJECT)
        found = {h: functions_of(build.units[h], h, handle) for h in hashes}
    except OSError as error:
        raise _NotLoadable(f"it cannot be loaded: {error}") from None
    build.loaded.update(found)
    build.compiled.update(found)
    entry = _published(build, compiler, hashes, space.path)
    remember(found, Library(entry.key, frozenset(hashes), handle), build.units, compiler, build.cache)
    with suppress(Exception):  # read only to tell why a kernel is missing
        note_built([build.units[h] for h in hashes], compiler, build.isa, build.cache, entry.key)


def _published(build: Build, compiler: Compiler, hashes: list[str], folder: Path) -> Entry:
    """The entry with the object and its sources. A prelude, the same 65 KB for most kernels, is an entry of its own."""
    includes = {
        prelude: _include(build.cache, prelude) for prelude in {build.units[h].prelude for h in hashes} if prelude
    }

    def fill(entry: Path) -> Mapping[str, Any]:
        (entry / OBJECT).write_bytes((folder / OBJECT).read_bytes())
        for path in sorted(folder.glob("*.cpp")):
            text = path.read_text(encoding="utf-8")
            for prelude, include in includes.items():
                text = text.replace(prelude, include, 1)
            (entry / path.name).write_text(text, encoding="utf-8")
        return {
            "kind": "kernels",
            "compiler": compiler.identity,
            "isa": build.isa,
            "flags": list(compile_flags(build.isa)),
            "kernels": {h: build.units[h].name for h in hashes},
        }

    return build.cache.put(digest("object", compiler.identity, *sorted(hashes)), fill)


def _include(cache: Cache, prelude: str) -> str:
    """A line that stands for ``prelude`` in the sources of an entry, after putting the prelude in the cache."""
    key = digest("prelude", prelude)

    def fill(entry: Path) -> Mapping[str, Any]:
        (entry / "prelude.h").write_text(prelude, encoding="utf-8")
        return {"kind": "prelude"}

    if not isinstance(cache.get(key), Entry):
        cache.put(key, fill)
    return f'#include "{os.path.join("..", "..", key[:2], key, "prelude.h")}"\n'
