"""Choices of modules as a file of plain data: no weights, no inputs, nothing that could run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lamina.aitune.graphs import Graph
from lamina.aitune.modules import Module, tuned_modules
from lamina.base.paths import path_of
from lamina.errors import BadArgument
from lamina.tuner.files import write_whole
from lamina.tuner.parts import modules_in, replaced
from lamina.tuner.saved import restored

__all__ = ["load", "save"]

_VERSION = 1
"""Form of files."""


def save(module: Any, path: str | Path) -> None:
    """Write what ``tune`` chose for the ``Module``s of an object. Raises ``BadArgument`` if nothing was tuned."""
    modules = tuned_modules(module)
    if not any(m.results for m in modules.values()):
        raise BadArgument("nothing was tuned yet", remedy="call ait.tune(...) first")
    told = {
        place: {
            "name": m.name,
            "graphs": [
                {"key": key, "shapes": m.graphs[key].shapes, "result": result.to_json()}
                for key, result in m.results.items()
            ],
        }
        for place, m in modules.items()
        if m.results
    }
    data = {"aitune": _VERSION, "modules": told}
    write_whole(path_of(path, "the file to save to"), json.dumps(data, indent=1, sort_keys=True))


def load(module: Any, path: str | Path, *, allow_code: bool = False) -> Any:
    """``module``, an object as it was before ``wrap`` or after it, with the choices of a file that ``save`` wrote.

    ``allow_code``: also choices that name code, as those of backends of your own may. Where other versions are
    installed than those that a choice was measured with, a warning says so. Raises ``BadArgument`` for a file that is
    none of these, another object, another device, and a choice that names code or needs what is not installed.
    """
    held = modules_in(module)
    new: dict[int, Any] = {}
    for place, saved in _read(path_of(path, "the file to load")).items():
        if place not in held:
            raise BadArgument(f"{path} has a module {place!r}, which is not in this object", remedy="tune this object")
        there = held[place]
        own = there if isinstance(there, Module) else Module(there, saved["name"])
        for graph in saved["graphs"]:
            shapes = [{name: tuple(sizes) for name, sizes in shape.items()} for shape in graph["shapes"]]
            own.graphs[graph["key"]] = Graph(graph["key"], shapes)
            own.results[graph["key"]] = restored(graph["result"], own.module, str(path), None, allow_code)
        if own is not there:
            new[id(there)] = own
    return replaced(module, new)


def _read(path: Path) -> dict[str, Any]:
    remedy = "give a file that ait.save wrote"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        form, modules = data["aitune"], data["modules"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadArgument(f"{path} has no saved choices: {error}", remedy=remedy) from error
    if form != _VERSION:
        raise BadArgument(f"{path} has the form {form}, not {_VERSION}", remedy="tune again")
    return dict(modules)
