"""Compiled calls as one file that another machine of the same kind runs without capture and compiler.

The file is a zip archive: ``package.json`` says what was compiled, how, and for which machine and versions; the rest is
an export of the entries in the cache. It holds programs, and is to be trusted like one.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import Any

from lamina.artefacts.front import compile, stored_calls
from lamina.artefacts.kind import kind_of_machine, versions
from lamina.artefacts.store import Store, identity, is_stored
from lamina.base.lowering import lowerings_key
from lamina.base.paths import path_of
from lamina.base.region_names import callable_name
from lamina.base.user_warnings import warn_user
from lamina.errors import BadArgument
from lamina.options import Options
from lamina.runtime.cache import Cache, Miss, digest
from lamina.runtime.cache_tool import export_to, import_from

__all__ = ["load", "package"]

_FORMAT = 1
"""The format of the manifest; others are refused."""
_MANIFEST, _CALLS = "package.json", "calls.tar.gz"
_LARGEST = 1 << 20
"""Bytes of a manifest."""
_OF_PLACE = ("cache_dir", "capture")
"""Options that say where something is, and the one that every package has."""
_REMEDY = "name a file that lamina.package wrote"


def package(compiled: Callable[..., Any], path: str | Path) -> Path:
    """Write the calls that ``compiled`` has made to a file, and give its path.

    ``compiled`` is what ``lamina.compile(model, options={"capture": "own"})`` gave, after the calls that the package is
    to hold were made, with their backward passes. ``lamina.load(path, model, allow_code=True)`` gives the compiled
    callable in a process that has the same code and versions, on a machine of the same kind. The file holds kernels,
    no weights or inputs. A warning says which calls it lacks.

    Raises ``BadArgument`` where nothing can be packaged, with the reason, and where the file cannot be written.
    """
    path, store = path_of(path, "the file of the package"), stored_calls(compiled)
    if store is None:
        raise BadArgument(
            f"{callable_name(compiled)} has no calls that can be packaged: only Lamina's own capture stores them",
            remedy='compile with options={"capture": "own"}, an open cache, and no mode or other backend',
        )
    store.keep(again=True)
    why = "; ".join(store.refused.values())
    if not store.own:
        raise BadArgument(
            f"nothing of {store.subject[0]} can be packaged: {why or 'it has not been called'}",
            remedy="call it as the package is to run, and look at its record",
        )
    if store.refused:
        warn_user(f"some calls of {store.subject[0]} are not in {path}: {why}")
    with _written(path) as part:
        _write(store, part)
    return path


def _write(store: Store, part: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        calls = Path(folder) / _CALLS
        written = export_to(store.cache, calls, {*store.own, *store.own.values()})
        if written != len(store.own) + len({*store.own.values()}):
            raise BadArgument(
                f"the cache has lost calls of {store.subject[0]}{_lost(store)}",
                remedy="call it again in another process, with a cache that nobody empties meanwhile",
            )
        manifest = {
            "format": _FORMAT,
            "of": store.subject[0],
            "calls": len(store.own),
            "prefix": store.prefix,
            "machine": kind_of_machine(),
            "versions": versions(),
            "dynamic": store.dynamic,
            "options": _told(store.options),
            "parts": _parts(store),
        }
        with zipfile.ZipFile(part, "w") as archive:
            archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
            archive.write(calls, _CALLS)


def _lost(store: Store) -> str:
    """What of the calls is in the cache no more, and why."""
    found = [store.cache.get(key) for key in store.own.values()]
    lost = [f"{one.key}: {one.reason}" for one in found if isinstance(one, Miss)]
    lost += [f"{name}: the note is not there" for name in store.own if store.cache.note(name) is None]
    return "".join(f"; {one}" for one in lost)


def load(path: str | Path, model: Callable[..., Any], inputs: Any = None, *, allow_code: bool = False) -> Any:
    """What was saved: a result of ``lamina.tune``, or ``model`` compiled as ``lamina.package`` wrote it.

    A result is restored for a model of the same code and layout of weights, on a machine of the same kind; see
    ``Result``. With ``inputs``, as ``lamina.tune`` takes them, the chosen candidate is built and verified against
    eager. A choice that names code, as candidates of your own do, is taken with ``allow_code`` only. Where other
    versions are installed than those that it was measured with, a warning says so.

    A package holds programs, so it is loaded with ``allow_code`` only: load those that you trust. Its calls are added
    to the cache of this process. A call for which their facts do not hold (another shape, a changed setting, a model of
    the same class with other parts) is captured and compiled.

    Raises ``BadArgument`` for another model or machine, for a package of other versions of Python, torch or Lamina, a
    file that is neither, a choice that names code or needs a package that is not installed, and one that is not right.
    """
    path = path_of(path, "the file to load")
    if not (path.is_file() and zipfile.is_zipfile(path)):
        return import_module("lamina.tuner.saved").load(path, model, inputs, allow_code=allow_code)
    if inputs is not None:
        raise BadArgument(f"{path} is a package, whose calls are not measured", remedy="give the file and the model")
    if not allow_code:
        raise BadArgument(f"{path} is a package, which holds programs", remedy="if you trust it, pass allow_code=True")
    manifest, calls = _read(path)
    _check_place(manifest, path)
    given = {name: value for name, value in manifest["options"].items() if name not in _OF_PLACE}
    settings = Options.of(None, {**given, "capture": "own"})
    if not is_stored(settings):
        changed = sorted({*_told(settings)} - {*given})
        raise BadArgument(
            f"{path} cannot be used with these options{': ' if changed else ''}{', '.join(changed)}",
            remedy="unset them in the environment of this process",
        )
    compiled = compile(model, dynamic=manifest["dynamic"], options=settings)
    store = stored_calls(compiled)
    if store is None or store.prefix != manifest["prefix"]:
        raise BadArgument(_other(manifest, store, model, path), remedy="give the model that was packaged")
    store.own.update(_added(calls, store, path))
    return compiled


def _added(calls: bytes, store: Store, path: Path) -> dict[str, str]:
    """The notes that were added to the cache with their entries: those of this callable, after all were checked."""
    with tempfile.TemporaryDirectory() as folder:
        archive, apart = Path(folder) / _CALLS, Cache(Path(folder) / "cache")
        archive.write_bytes(calls)
        _, bad = import_from(apart, archive)
        names = apart.notes_of(f"{store.prefix}.")
        notes = {name: str(note.get("entry")) for name in names if (note := apart.note(name)) is not None}
        if not bad and notes:
            export_to(apart, archive, {*notes, *notes.values()})
            _, bad = import_from(store.cache, archive)
    if bad or not notes:
        why = f": {bad[0].key}: {bad[0].reason}" if bad else ""
        raise BadArgument(f"{path} is damaged{why}", remedy="package the calls again")
    return notes


def _check_place(manifest: Mapping[str, Any], path: Path) -> None:
    """Raise ``BadArgument`` where the calls would not run, or not fast."""
    there = dict((*manifest["machine"], *manifest["versions"]))
    for what, which in (*kind_of_machine(), *versions()):
        if there.get(what) != which:
            one, other = (" ".join(str(v).split()) for v in (there.get(what), which))
            raise BadArgument(
                f"{path} was made for other {_PLURAL.get(what, what)}: {one}; here: {other}",
                remedy="compile the model here, or package it on a machine of this kind",
            )


_PLURAL = {"processor": "processors", "cores": "numbers of cores"}


def _parts(store: Store) -> dict[str, str]:
    """What decides whether the calls are those of a callable, in parts that a refusal can name."""
    return {
        "callable": digest(*identity(store.target)),
        "options": digest(repr(store.options.key())),
        "lowerings": digest(repr(lowerings_key())),
    }


def _other(manifest: Mapping[str, Any], store: Store | None, model: Any, path: Path) -> str:
    """Why the calls are not those of ``model``."""
    mine = {} if store is None else _parts(store)
    for part, said in (("options", "other options are set"), ("lowerings", "other lowerings are registered")):
        if mine and mine["callable"] == manifest["parts"].get("callable") and mine[part] != manifest["parts"].get(part):
            return f"{path} cannot be used: {said} in this process"
    if store is None:
        return f"{path} is of {manifest['of']}; calls of {callable_name(model)} are not stored, and not loaded"
    return f"{path} is of {manifest['of']}, and not of {callable_name(model)} or not of its code as it is now"


def _told(options: Options) -> dict[str, Any]:
    """What differs from the usual, as JSON has it."""
    return {
        name: value
        for name, value in options.changed().items()
        if isinstance(value, (bool, int, float, str)) and name not in _OF_PLACE
    }


# Files.


def _read(path: Path) -> tuple[Mapping[str, Any], bytes]:
    """The manifest of a package, and the export of its entries."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo(_MANIFEST).file_size > _LARGEST:
                raise ValueError("its description is too large")
            return _checked(json.loads(archive.read(_MANIFEST))), archive.read(_CALLS)
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, RuntimeError) as error:
        # RuntimeError: it is encrypted, or packed in a way that this Python does not know.
        raise BadArgument(f"{path} is no package: {str(error).strip(chr(39))}", remedy=_REMEDY) from None


def _checked(manifest: Any) -> Mapping[str, Any]:
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise ValueError("its format is another one")
    wanted = {"of": str, "prefix": str, "machine": list, "versions": list, "options": dict, "parts": dict}
    if (
        any(not isinstance(manifest.get(name), kind) for name, kind in wanted.items())
        or any(
            not isinstance(pair, list) or [*map(type, pair)] != [str, str]
            for pair in (*manifest["machine"], *manifest["versions"])
        )
        or manifest.get("dynamic") not in (None, False, True)
    ):
        raise ValueError("its description is not complete")
    return manifest


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    """A file beside ``path`` that takes its place when all is written."""
    if not path.name:
        raise BadArgument(f"{path} is no name of a file", remedy="name a file")
    part: Path | None = None
    try:
        made = path.with_name(f"{path.name}.{token_hex(8)}")
        made.touch(exist_ok=False)  # with the rights that the user's files have
        part = made
        yield part
        os.replace(part, path)
        part = None
    except OSError as error:
        raise BadArgument(f"{path} cannot be written: {error.strerror or error}", remedy="name another file") from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
