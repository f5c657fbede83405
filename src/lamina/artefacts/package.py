"""Compiled calls as one file that another machine of the same kind runs without capture and compiler.

The file is a zip archive: ``package.json`` says what was compiled, how, and for which machine and versions; the rest is
an export of the entries in the cache. It holds programs, and is to be trusted like one.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from lamina.artefacts.front import compile, stored_calls
from lamina.artefacts.kind import kind_of_machine, versions
from lamina.errors import BadArgument, LaminaError
from lamina.options import Options
from lamina.runtime.cache_tool import export_to, import_from

__all__ = ["load", "package"]

_FORMAT = 1
"""The format of the manifest; others are refused."""
_MANIFEST, _CALLS = "package.json", "calls.tar.gz"
_LARGEST = 1 << 20
"""Bytes of a manifest."""
_OF_PLACE = ("cache_dir", "capture")
"""Options that say where something is, and the one that every package has."""


def package(compiled: Callable[..., Any], path: str | Path) -> Path:
    """Write the calls that ``compiled`` has compiled to a file, and give its path.

    ``compiled`` is what ``lamina.compile(model, options={"capture": "own"})`` gave, after the calls that the package is
    to hold were made, with their backward passes. ``lamina.load(path, model)`` gives the compiled callable in a process
    that has the same code and versions, on a machine of the same kind. The file holds kernels, no weights or inputs.

    Raises ``BadArgument`` where nothing can be packaged, with the reason, and where the file cannot be written.
    """
    path, store = Path(path), stored_calls(compiled)
    if store is None:
        raise BadArgument(
            f"{_name(compiled)} has no calls that can be packaged: only Lamina's own capture stores them",
            remedy='compile with options={"capture": "own"}, an open cache, and no mode or other backend',
        )
    store.keep()
    notes = store.notes()
    if not notes:
        why = store.refused or "it has not been called"
        raise BadArgument(
            f"nothing of {store.subject[0]} can be packaged: {why}",
            remedy="call it as the package is to run, and look at its record",
        )
    with _written(path) as part:
        calls = part.with_name(f"{part.name}.calls")
        try:
            written = export_to(store.cache, calls, {*notes, *notes.values()})
            manifest = {
                "format": _FORMAT,
                "of": store.subject[0],
                "calls": len(notes),
                "parts": written,
                "prefix": store.prefix,
                "machine": kind_of_machine(),
                "versions": versions(),
                "options": _told(store.options),
            }
            with zipfile.ZipFile(part, "w") as archive:
                archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
                archive.write(calls, _CALLS)
        finally:
            calls.unlink(missing_ok=True)
    return path


def load(path: str | Path, model: Callable[..., Any], inputs: Any = None, *, allow_code: bool = False) -> Any:
    """What was saved: a result of ``lamina.tune``, or ``model`` compiled as ``lamina.package`` wrote it.

    A result is restored for a model of the same code and layout of weights, on a machine of the same kind; see
    ``Result``. With ``inputs``, as ``lamina.tune`` takes them, the chosen candidate is built and verified against
    eager. A choice that names code, as candidates of your own do, is taken with ``allow_code`` only. Where other
    versions are installed than those that it was measured with, a warning says so.

    The calls of a package are added to the cache of this process. A call for which their facts do not hold (another
    shape, a changed setting) is captured and compiled. A package holds programs: load those that you trust.

    Raises ``BadArgument`` for another model or machine, for a package other versions of Python, torch or Lamina, a file
    that is neither, a choice that names code or needs a package that is not installed, and one that is not right.
    """
    if not _is_package(Path(path)):
        return import_module("lamina.tuner.saved").load(path, model, inputs, allow_code=allow_code)
    if inputs is not None or allow_code:
        raise BadArgument(
            f"{path} is a package, of which nothing is measured", remedy="give the file and the model only"
        )
    return _loaded(Path(path), model)


def _loaded(path: Path, model: Callable[..., Any]) -> Any:
    with _opened(path) as archive:
        manifest = _manifest(archive, path)
        _check_place(manifest, path)
        compiled = compile(model, options={**manifest["options"], "capture": "own"})
        store = stored_calls(compiled)
        if store is None or store.prefix != manifest["prefix"]:
            raise BadArgument(
                f"{path} is of another callable than {_name(model)}, or its code has changed: "
                f"it holds calls of {manifest['of']}",
                remedy="give the model that was packaged, or package this one",
            )
        with tempfile.TemporaryDirectory() as folder:
            calls = Path(archive.extract(_CALLS, folder))
            _, bad = import_from(store.cache, calls)
    if bad:
        raise BadArgument(f"{path} is damaged: {bad[0].key}: {bad[0].reason}", remedy="package the calls again")
    return compiled


def _check_place(manifest: Mapping[str, Any], path: Path) -> None:
    """Raise ``BadArgument`` where the calls would not run, or not fast."""
    here = (*kind_of_machine(), *versions())
    there = dict((*manifest["machine"], *manifest["versions"]))
    for what, which in here:
        if there.get(what) != which:
            one, other = (" ".join(str(v).split()) for v in (there.get(what), which))
            raise BadArgument(
                f"{path} is for another {what}: {one}; here it is {other}",
                remedy="compile the model here, or package it on a machine of this kind",
            )


def _told(options: Options) -> dict[str, Any]:
    """What differs from the usual, as JSON has it."""
    usual = Options()
    told = {f.name: getattr(options, f.name) for f in fields(options)}
    return {
        name: value
        for name, value in told.items()
        if value != getattr(usual, name) and isinstance(value, (bool, int, float, str)) and name not in _OF_PLACE
    }


def _name(target: Any) -> str:
    return str(getattr(target, "__name__", type(target).__name__))


# Files.


def _is_package(path: Path) -> bool:
    return path.is_file() and zipfile.is_zipfile(path)


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (OSError, zipfile.BadZipFile, KeyError, EOFError) as error:
        if isinstance(error, LaminaError):
            raise
        raise BadArgument(f"{path} cannot be read: {error}", remedy="name a file that lamina.package wrote") from None


def _manifest(archive: zipfile.ZipFile, path: Path) -> Mapping[str, Any]:
    wanted: Sequence[tuple[str, type]] = (
        ("of", str),
        ("prefix", str),
        ("machine", list),
        ("versions", list),
        ("options", dict),
    )
    try:
        if archive.getinfo(_MANIFEST).file_size > _LARGEST:
            raise ValueError("its description is too large")
        manifest = json.loads(archive.read(_MANIFEST))
        if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
            raise ValueError("its format is another one")
        if any(not isinstance(manifest.get(name), kind) for name, kind in wanted):
            raise ValueError("its description is not complete")
        if any(len(pair) != 2 for pair in (*manifest["machine"], *manifest["versions"])):
            raise ValueError("its description is not complete")
    except (ValueError, TypeError) as error:
        raise BadArgument(f"{path} is no package: {error}", remedy="name a file that lamina.package wrote") from None
    return manifest


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    """A file beside ``path`` that takes its place when all is written."""
    part: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
        os.close(descriptor)
        part = Path(name)
        yield part
        os.replace(part, path)
        part = None
    except OSError as error:
        raise BadArgument(f"{path} cannot be written: {error.strerror or error}", remedy="name another file") from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
