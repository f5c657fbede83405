"""The kernels of a region as a host program and shared objects, and the region of those."""

from __future__ import annotations

import json
import marshal
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from lamina.artefacts.constants import Unstorable
from lamina.base.namespaces import ATEN
from lamina.base.retryable import set_retryable
from lamina.base.torch_private import boxed
from lamina.runtime.cache import Entry
from lamina.runtime.host import code_of, load_program
from lamina.runtime.kernel import Kernel
from lamina.runtime.library import OBJECT, functions_in, object_of
from lamina.runtime.loading import load_library

_OPERATION = re.compile(r"(?:\btorch\.ops\.(\w+)\.|\b(\w+)::)(\w+)")
_OURS = dict.fromkeys(("lamina::philox_seed", "lamina::philox_uniform"), "lamina.decomp.random_ops")
"""Operations of ours that host programs call, and the modules that define them."""

__all__ = ["Files", "loaded_kernels", "written_kernels"]


@dataclass(slots=True)
class Files:
    """Files of an entry: those to be written, or those of the ``entry`` that they are read from.

    ``verdicts``: the notes of the cache that say, once it is known, whether eager runs a graph of the entry faster.
    """

    entry: Entry | None = None
    content: dict[str, bytes] = field(default_factory=dict)
    made_later: dict[str, Callable[[], Any]] = field(default_factory=dict)
    verdicts: list[str] = field(default_factory=list)
    _objects: dict[str, str] = field(default_factory=dict)
    _loaded: dict[str, Any] = field(default_factory=dict)

    def add(self, suffix: str, content: bytes) -> str:
        """The name of a new file."""
        name = f"part{len(self.content) + len(self.made_later)}{suffix}"
        self.content[name] = content
        return name

    def later(self, make: Callable[[], Any]) -> str:
        """The name of a new file of JSON, which ``make`` makes when the entry is written."""
        name = f"part{len(self.content) + len(self.made_later)}.json"
        self.made_later[name] = make
        return name

    def of_object(self, key: str, read: Callable[[], bytes]) -> str:
        """The name of the file of a shared object, which is written once."""
        if key not in self._objects:
            self._objects[key] = self.add(".so", read())
        return self._objects[key]

    def write(self, folder: Path) -> None:
        """Write all files."""
        for name, make in self.made_later.items():
            self.content[name] = json.dumps(make()).encode()
        for name, content in self.content.items():
            (folder / name).write_bytes(content)

    def read(self, name: str) -> bytes:
        """The content of a file."""
        return self.content[name] if self.entry is None else self.entry.read(name)

    def read_json(self, name: str) -> Any:
        """A file of JSON."""
        return json.loads(self.read(name))

    def library(self, name: str) -> Any:
        """A shared object of the entry, loaded once."""
        assert self.entry is not None
        if name not in self._loaded:
            with self.entry.opened(name) as descriptor:
                self._loaded[name] = load_library(descriptor)
        return self._loaded[name]

    def texts_of(self, text: Mapping[str, Any]) -> list[bytes]:
        """The host programs that a document of a program names."""
        found = [self.read(text["host"])] if "host" in text else []
        return [
            *found,
            *(part for inner in text.values() if isinstance(inner, Mapping) for part in self.texts_of(inner)),
        ]


def _is_varying(value: Any) -> bool:
    """Whether ``value`` is a number that differs from call to call, and no integer, which kernels take as it is."""
    return isinstance(value, (torch.SymFloat, torch.SymBool))


def written_kernels(run: Any, parts: Mapping[str, Any], files: Files) -> dict[str, Any]:
    """A document of a region of kernels for CPUs. Raises ``Unstorable``."""
    if any(_is_varying(node.meta.get("val")) for node in parts["graph"].graph.find_nodes(op="placeholder")):
        raise Unstorable("a graph of varying numbers")
    kernels = parts["kernels"]
    try:
        built = kernels.result()
    except OSError as error:
        raise Unstorable(f"kernels that cannot be kept: {error}") from error
    if built.errors:
        raise Unstorable("a graph with kernels that are not built")
    described = [_described(name, kernel, kernels.backend.cache, files) for name, kernel in built.kernels.items()]
    host = files.add(".py", kernels.host.text.encode())
    code = files.add(".code", marshal.dumps(code_of(kernels.host.text, "call")))
    return {
        "host": host,
        "code": code,
        "kernels": described,
        "retryable": parts["retryable"],
        "modules": _modules_of(kernels.host.text),
    }


def _modules_of(text: str) -> list[str]:
    """Modules that define the operations of ours which a host program calls. Raises ``Unstorable`` for the user's."""
    found = set()
    for attribute, given, name in _OPERATION.findall(text):
        space = attribute or given
        if space not in ATEN and f"{space}::{name}" not in _OURS:
            raise Unstorable(f"the operation {space}::{name}")
        found.add(_OURS.get(f"{space}::{name}", ""))
    return sorted(found - {""})


def _described(name: str, kernel: Kernel, cache: Any, files: Files) -> list[Any]:
    key = object_of(kernel.launch)
    if key is None:
        raise Unstorable(f"kernel {name}, which is in no file")

    def read() -> bytes:
        entry = cache.get(key)
        if not isinstance(entry, Entry):
            raise Unstorable(f"kernel {name}, whose file the cache has no more")
        return entry.read(OBJECT)

    first = list(kernel.pack.args) if isinstance(kernel.pack, partial) else []
    symbol: Any = kernel.launch
    return [name, "q" * len(first) + kernel.parameters, first, files.of_object(key, read), symbol.__name__]


def loaded_kernels(text: Mapping[str, Any], files: Files, compile: Any) -> Callable[[list[Any]], Any]:
    """The region of a document, its kernels loaded."""
    run, retryable = _program(text, files), text["retryable"]

    def call(args: list[Any]) -> Any:
        try:
            return run(args)
        except struct.error:
            raise
        except Exception as error:
            set_retryable(error, retryable)
            raise

    return boxed(call)


def _program(text: Mapping[str, Any], files: Files) -> Callable[[list[Any]], Any]:
    for module in text["modules"]:
        import_module(module)
    kernels = {}
    for name, parameters, first, library, symbol in text["kernels"]:
        (launch,) = functions_in(files.library(library), (symbol,))
        kernels[name] = Kernel(name, parameters, launch, tuple(first))
    code = marshal.loads(files.read(text["code"]))  # of this version of Python, and with this digest
    return load_program(files.read(text["host"]).decode(), "call", {"kernels": kernels}, code)
