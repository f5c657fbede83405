"""From kernel units to loaded kernels: looked up one by one, compiled many at a time.

A kernel is looked up by the hash of its own code, so equal layers and other models share it. Those that are missing are
compiled together, because starting a compiler costs as much as half a kernel: one shared object holds them all, and a
note per kernel says in which object it is.
"""

from __future__ import annotations

import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lamina.errors import BadArgument
from lamina.runtime.cache import Cache, Miss, digest
from lamina.runtime.compilation import Command, Outcome, run_command, run_commands
from lamina.runtime.kernel import Kernel, KernelError, KernelUnit, kernel_hash, label, source_unit
from lamina.runtime.library import OBJECT, Functions, Library, recall, remember
from lamina.runtime.locks import Stripe, stripe_of
from lamina.runtime.toolchain import Compiler, compile_flags, link_flags, load_library

__all__ = ["BuildResult", "build_kernels"]

_PROGRESS_SECONDS = 2.0
_REMEDY = "install g++, or correct the option cxx where it is given; `lamina doctor` says what was tried"


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What became of the units of one call.

    ``kernels`` are the loaded functions by unit name (``unit.function`` where a unit has several), ``errors`` the
    units that have none. ``reused`` kernels came from the cache, ``compiled`` ones from the compiler; ``damages`` are
    the bad cache entries met.
    """

    kernels: Mapping[str, Kernel]
    errors: Mapping[str, KernelError]
    reused: int
    compiled: int
    seconds: float
    damages: tuple[Miss, ...]


@dataclass(slots=True)
class _Build:
    """One call of ``build_kernels``: units by hash, and what is known of each so far."""

    units: dict[str, KernelUnit]
    compiler: Compiler | None
    isa: str
    cache: Cache
    jobs: int
    timeout: float
    tick: Callable[[int, int], None]
    loaded: dict[str, Functions] = field(default_factory=dict)
    errors: dict[str, KernelError] = field(default_factory=dict)
    compiled: int = 0

    def missing(self) -> list[str]:
        return [h for h in self.units if h not in self.loaded and h not in self.errors]

    def recall(self, hashes: Iterable[str]) -> None:
        for identity in hashes:
            functions = recall(self.units[identity], identity, self.compiler, self.cache)
            if functions is not None:
                self.loaded[identity] = functions


def build_kernels(
    units: Sequence[KernelUnit],
    *,
    compiler: Compiler | None,
    isa: str,
    cache: Cache,
    jobs: int = 0,
    timeout: float = 300.0,
    on_progress: Callable[[int, int, float], None] | None = None,
) -> BuildResult:
    """Load the kernels of all units, compiling those that the cache does not hold.

    ``isa`` is one of ``toolchain.ISAS``. At most ``jobs`` compilers run at once (0: one per usable core), each for at
    most ``timeout`` seconds. ``on_progress(finished, files, seconds)`` is called about twice a second once two seconds
    have passed. Without a compiler only the cache is used. A kernel that cannot be built has a ``KernelError`` in the
    result and does not harm the others. Raises ``BadArgument`` if two different units have the same name.
    """
    started = time.monotonic()

    def tick(finished: int, files: int) -> None:
        seconds = time.monotonic() - started
        if on_progress is not None and seconds >= _PROGRESS_SECONDS:
            on_progress(finished, files, seconds)

    hashes = _hashes(units, compile_flags(isa))
    by_hash: dict[str, KernelUnit] = {}
    for unit in units:
        by_hash.setdefault(hashes[unit.name], unit)
    build = _Build(by_hash, compiler, isa, cache, jobs or _cores(), timeout, tick)
    met = len(cache.damages)
    build.recall(build.missing())
    while build.missing():
        if compiler is None:
            reason = KernelError("no C++ compiler, and the kernel is not in the cache", remedy=_REMEDY)
            build.errors.update(dict.fromkeys(build.missing(), reason))
        else:
            _build_claimed(build, compiler)
    kernels, errors = _results(units, hashes, build)
    damages = tuple(cache.damages)[met:]
    return BuildResult(
        kernels, errors, len(build.loaded) - build.compiled, build.compiled, time.monotonic() - started, damages
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _hashes(units: Iterable[KernelUnit], flags: Sequence[str]) -> dict[str, str]:
    hashes: dict[str, str] = {}
    for unit in units:
        identity = kernel_hash(unit, flags, platform.machine())
        if hashes.setdefault(unit.name, identity) != identity:
            raise BadArgument(f"two different kernels are called {unit.name!r}")
    return hashes


def _results(
    units: Iterable[KernelUnit], hashes: Mapping[str, str], build: _Build
) -> tuple[dict[str, Kernel], dict[str, KernelError]]:
    kernels: dict[str, Kernel] = {}
    errors: dict[str, KernelError] = {}
    for unit in units:
        identity = hashes[unit.name]
        if identity in build.errors:
            errors[unit.name] = build.errors[identity]
            continue
        for function, launch in zip(unit.functions, build.loaded[identity], strict=True):
            name = unit.name if len(unit.functions) == 1 else f"{unit.name}.{function.name}"
            kernels[name] = Kernel(name, function.parameters, launch)
    return kernels, errors


def _build_claimed(build: _Build, compiler: Compiler) -> None:
    """Build the missing kernels that nobody else is building; if all are being built, wait for some of them.

    Only one lock is ever waited for, and none is held meanwhile, so processes cannot block each other.
    """
    held: list[Stripe] = []
    stripes = sorted({stripe_of(h) for h in build.missing()})
    claimed: set[str] = set()
    try:
        for blocking in (False, True):
            for stripe in stripes:
                lock = build.cache.lock(stripe)
                if lock.acquire(blocking=blocking):
                    held.append(lock)
                    claimed.add(stripe)
                    if blocking:
                        break
            if held:
                break
        mine = [h for h in build.missing() if stripe_of(h) in claimed]
        build.recall(mine)  # somebody may have published them just before we got the lock
        mine = [h for h in mine if h not in build.loaded]
        if mine:
            _compile(build, compiler, mine)
    finally:
        for lock in held:
            lock.release()


def _compile(build: _Build, compiler: Compiler, hashes: list[str]) -> None:
    """Compile, publish and load kernels; each of them ends in ``build.loaded`` or in ``build.errors``."""
    try:
        with tempfile.TemporaryDirectory(prefix="lamina-build-") as folder:
            good = _compile_files(build, compiler, hashes, Path(folder))
            if not good:
                return
            try:
                _publish(build, compiler, good, Path(folder))
            except _NotLoadable as error:
                if len(good) == 1:
                    build.errors[good[0]] = KernelError(f"kernel {build.units[good[0]].name!r}: {error}")
                    return
            else:
                return
        for identity in good:  # one of them needs a symbol that torch does not have
            _compile(build, compiler, [identity])
    except OSError as error:
        reason = KernelError(f"kernels cannot be written: {error}", remedy="free space in the temporary folder")
        build.errors.update(dict.fromkeys((h for h in hashes if h not in build.loaded), reason))


class _NotLoadable(Exception):
    """A shared object that was linked but cannot be loaded into this process."""


def _compile_files(build: _Build, compiler: Compiler, hashes: list[str], folder: Path) -> list[str]:
    """Fill ``folder`` with sources and objects; the kernels that compiled. The others get an error of their own."""
    good: list[str] = []
    suspects: list[list[str]] = []
    files = _files(build, hashes)
    while files:
        outcomes = _run_compilers(build, compiler, files, folder)
        retry: list[list[str]] = []
        for members, outcome in zip(files, outcomes, strict=True):
            if outcome.ok:
                good += members
                continue
            _source(folder, members).unlink()
            if len(members) == 1:
                unit = build.units[members[0]]
                build.errors[members[0]] = KernelError(
                    f"kernel {unit.name!r} does not compile:\n{outcome.message.strip()}"
                )
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


def _files(build: _Build, hashes: Sequence[str]) -> list[list[str]]:
    """Share kernels out over translation units, so that compilers running side by side end together."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for identity in hashes:
        unit = build.units[identity]
        # A macro of one kernel must not reach the next.
        alone = identity if re.search(r"^\s*#\s*(?!pragma\b|line\b)", unit.source, re.MULTILINE) else ""
        groups.setdefault((unit.prelude, unit.flags, alone), []).append(identity)
    wanted = build.jobs * (2 if len(hashes) >= 8 * build.jobs else 1)
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


def _run_compilers(build: _Build, compiler: Compiler, files: Sequence[list[str]], folder: Path) -> list[Outcome]:
    commands: list[Command] = []
    for members in files:
        path = _source(folder, members)
        path.write_text(source_unit((h, build.units[h]) for h in members), encoding="utf-8")
        flags = (*compile_flags(build.isa), *build.units[members[0]].flags)
        words = (compiler.path, *flags, "-c", path.name, "-o", f"{path.stem}.o")
        commands.append(Command(words, folder, build.timeout))
    return run_commands(commands, build.jobs, lambda finished: build.tick(finished, len(files)))


def _publish(build: _Build, compiler: Compiler, hashes: list[str], folder: Path) -> None:
    """Link the objects in ``folder``, put them in the cache with a note per kernel, and load them."""
    (folder / "stub.so").write_bytes(compiler.stub)
    objects = sorted(path.name for path in folder.glob("*.o"))
    words = (compiler.path, *objects, *link_flags("stub.so"), "-o", OBJECT)
    outcome = run_command(Command(words, folder, build.timeout))
    if not outcome.ok:
        raise _NotLoadable(f"linking failed:\n{outcome.message.strip()}")

    def fill(entry: Path) -> Mapping[str, Any]:
        for path in (folder / OBJECT, *sorted(folder.glob("*.cpp"))):
            (entry / path.name).write_bytes(path.read_bytes())
        return {
            "kind": "kernels",
            "compiler": compiler.identity,
            "isa": build.isa,
            "flags": list(compile_flags(build.isa)),
            "kernels": {h: build.units[h].name for h in hashes},
        }

    entry = build.cache.put(digest("object", compiler.identity, *sorted(hashes)), fill)
    try:
        library = load_library(entry.path / OBJECT)
    except OSError as error:
        raise _NotLoadable(f"it cannot be loaded: {error}") from None
    for identity in hashes:
        unit = build.units[identity]
        build.loaded[identity] = remember(unit, identity, compiler, build.cache, Library(entry, library))
        build.compiled += 1
