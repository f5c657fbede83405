"""From kernel units to loaded kernels: looked up one by one, compiled many at a time.

A kernel is looked up by the hash of its own code, so equal layers and other models share it. Those that are missing are
compiled together, because starting a compiler costs as much as half a kernel: one shared object holds them all, and a
note per kernel says in which object it is.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lamina.base.plurals import counted
from lamina.errors import BadArgument
from lamina.runtime.batch import Build, compile_kernels
from lamina.runtime.cache import Cache, Miss
from lamina.runtime.compilation import Limit, Running
from lamina.runtime.kernel import Kernel, KernelError, KernelUnit, kernel_hash
from lamina.runtime.locks import Patience, Stripe, stripe_of
from lamina.runtime.nearest import MissedKernel, missed_kernels
from lamina.runtime.toolchain import Compiler, DiskIsFull, NoCompiler, compile_flags

__all__ = ["BuildResult", "build_kernels", "build_together"]

_PROGRESS_SECONDS = 2.0
"""Seconds of building after which the user is told that kernels are compiled."""
_SECONDS = 300.0
"""Seconds after which a compiler is given up and the region runs as ATen calls: a round number, for loaded machines."""
_REMEDY = "install g++, or correct the option cxx where it is given; `lamina doctor` says what was tried"


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What became of the units of one call.

    ``kernels`` are the loaded functions by unit name (``unit.function`` where a unit has several), ``errors`` the
    units that have none. ``reused`` kernels came from the cache, ``compiled`` ones from the compiler; ``damages`` are
    the bad cache entries met, ``missed`` the first kernels that the cache did not have, compared with what it had.
    """

    kernels: Mapping[str, Kernel]
    errors: Mapping[str, KernelError]
    reused: int
    compiled: int
    seconds: float
    damages: tuple[Miss, ...]
    missed: tuple[MissedKernel, ...] = ()

    @property
    def summary(self) -> str:
        """How many kernels were compiled, at how many milliseconds each, and how many were there."""
        each = f" ({self.seconds / self.compiled * 1e3:.0f} ms each)" if self.compiled else ""
        return f"{counted(self.compiled, 'kernel')} compiled{each}, {self.reused} reused"


def build_kernels(
    units: Sequence[KernelUnit],
    *,
    compiler: Compiler | NoCompiler | None,
    isa: str,
    cache: Cache,
    jobs: int = 0,
    limit: Limit | None = None,
    on_progress: Callable[[int, int, float], None] | None = None,
    running: Running | None = None,
    patience: Patience | None = None,
) -> BuildResult:
    """Load the kernels of all units, compiling those that the cache does not hold; as ``build_together``."""
    (built,) = build_together(
        [units],
        compiler=compiler,
        isa=isa,
        cache=cache,
        jobs=jobs,
        limit=limit,
        on_progress=on_progress,
        running=running,
        patience=patience,
    )
    return built


def build_together(
    groups: Sequence[Sequence[KernelUnit]],
    *,
    compiler: Compiler | NoCompiler | None,
    isa: str,
    cache: Cache,
    jobs: int = 0,
    limit: Limit | None = None,
    on_progress: Callable[[int, int, float], None] | None = None,
    running: Running | None = None,
    patience: Patience | None = None,
) -> list[BuildResult]:
    """Load the kernels of several groups of units, compiling those that the cache does not hold; a result for each.

    Units of one group are told apart by their names, those of all groups are compiled as one batch. A result has the
    seconds of the whole by its share of what was compiled.

    ``isa`` is one of ``toolchain.ISAS``. At most ``jobs`` compilers run at once (0: one per usable core), all of them
    until ``limit`` is over. ``on_progress(finished, files, seconds)`` is called about twice a second once two seconds
    have passed. Without a compiler only the cache is used. A kernel that cannot be built has a ``KernelError`` in the
    result and does not harm the others. What another process is compiling is waited for with ``patience``, then
    compiled here too. Raises ``BadArgument`` if two units of a group with one name differ, and ``Stopped`` after
    ``running.stop()`` in another thread.
    """
    limit = limit or Limit(_SECONDS)
    now = limit.clock.now
    started = now()

    def tick(finished: int, files: int) -> None:
        seconds = now() - started
        if on_progress is not None and seconds >= _PROGRESS_SECONDS:
            on_progress(finished, files, seconds)

    hashes = [_hashes(units, compile_flags(isa)) for units in groups]
    by_hash: dict[str, KernelUnit] = {}
    for units, of_group in zip(groups, hashes, strict=True):
        for unit in units:
            by_hash.setdefault(of_group[unit.name], unit)
    running = running or Running()
    build = Build(by_hash, compiler, isa, cache, jobs or _cores(), limit, tick, running)
    patience = patience or Patience(check=running.check)
    met = len(cache.damages)
    build.recall(build.missing())
    missed: tuple[MissedKernel, ...] = ()
    if isinstance(compiler, Compiler) and (missing := build.missing()):
        with suppress(Exception):  # what is told must not keep a kernel from being built
            missed = missed_kernels([by_hash[h] for h in missing], compiler, isa, cache)
    while build.missing():
        if isinstance(compiler, Compiler):
            _build_claimed(build, compiler, patience)
            continue
        why = f": {compiler.what}" if compiler is not None else ""
        remedy = compiler.remedy if isinstance(compiler, DiskIsFull) else _REMEDY
        reason = KernelError(f"no C++ compiler, and the kernel is not in the cache{why}", remedy=remedy)
        build.errors.update(dict.fromkeys(build.missing(), reason))
    seconds, told = now() - started, (tuple(cache.damages)[met:], missed)
    results: list[BuildResult] = []
    seen: set[str] = set()
    for units, of_group in zip(groups, hashes, strict=True):
        kernels, errors = _results(units, of_group, build)
        new = (build.loaded.keys() & of_group.values()) - seen
        seen |= new
        compiled = len(new & build.compiled)
        share = compiled / len(build.compiled) if build.compiled else 1 / len(groups)
        results.append(BuildResult(kernels, errors, len(new) - compiled, compiled, seconds * share, *told))
        told = (), ()
    return results


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
    units: Iterable[KernelUnit], hashes: Mapping[str, str], build: Build
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
            kernels[name] = Kernel(name, function.parameters, launch, unit.arguments)
    return kernels, errors


def _build_claimed(build: Build, compiler: Compiler, patience: Patience) -> None:
    """Build the missing kernels that nobody else is building; if all are being built, wait for some of them.

    Only one lock is ever waited for, and none is held meanwhile, so processes cannot block each other. One that does
    not come free is done without: the kernels are then compiled twice, and published by whoever ends first.
    """
    held: list[Stripe] = []
    stripes = sorted({stripe_of(h) for h in build.missing()})
    claimed: set[str] = set()
    try:
        for stripe in stripes:
            lock = build.cache.lock(stripe, patience)
            if lock.acquire(blocking=False):
                held.append(lock)
                claimed.add(stripe)
        if not held:
            lock = build.cache.lock(stripes[0], patience)
            if lock.acquire():
                held.append(lock)
                claimed.add(stripes[0])
            else:
                claimed.update(stripes)
        mine = [h for h in build.missing() if stripe_of(h) in claimed]
        build.recall(mine)  # somebody may have published them just before we got the lock
        mine = [h for h in mine if h not in build.loaded]
        if mine:
            compile_kernels(build, compiler, mine)
    finally:
        for lock in held:
            lock.release()
