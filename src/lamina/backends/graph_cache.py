"""Compiled graphs of backends that can save them, kept in the on-disk cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.backends.api import Backend, Compiled
from lamina.backends.code_identity import code_identity, content_of
from lamina.backends.regions import open_cache, warn_once
from lamina.backends.results import check_callable
from lamina.base.identity import place_of
from lamina.base.recovery import brief
from lamina.errors import BackendFailed
from lamina.options import Options
from lamina.runtime.cache import Cache, Entry, digest

__all__ = ["cached_graph"]

_FILE = "compiled.bin"


def cached_graph(
    backend: Backend,
    gm: GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    compile: Callable[[], Compiled],
    name: str,
    kind: str = "",
) -> Compiled:
    """The graph ``name`` as ``backend`` loads it from the cache, or as it compiles it, and saves it, now.

    What it cannot load is removed, and compiled anew. Raises ``BackendFailed`` where it loads something that cannot be
    called, or does not save bytes.
    """
    cache = open_cache(options)
    code = _code(backend, options)
    try:
        return _cached_graph(backend, gm, example_inputs, cache, compile, name, kind, code)
    finally:
        after = _now(backend, options)
        if after != code:
            _BEFORE[after] = code


def _cached_graph(
    backend: Backend,
    gm: GraphModule,
    example_inputs: Sequence[Any],
    cache: Cache,
    compile: Callable[[], Compiled],
    name: str,
    kind: str,
    code: str,
) -> Compiled:
    assert backend.save is not None
    assert backend.load is not None
    key = digest("backend", backend.name, str(backend.version), kind, code, *_facts(gm))
    found = cache.get(key)
    if isinstance(found, Entry):
        try:
            loaded = backend.load(found.read(_FILE), gm, example_inputs)
        except Exception as error:
            cache.evict(key, f"backend {backend.name!r} cannot load it: {brief(error)}")
            what = f"{name} is compiled anew, {brief(error)}"
            warn_once(f"lamina: backend {backend.name!r} cannot load what it saved: {what}")
        else:
            check_callable(loaded, backend.load, backend.name, name)
            return loaded
    compiled = compile()
    data = backend.save(compiled)
    if not isinstance(data, bytes):
        raise BackendFailed(
            f"backend {backend.name!r} saved {name} as a {type(data).__name__}",
            where=place_of(backend.save),
            remedy="return bytes from its save, or leave out save and load",
        )

    def build(folder: Path) -> Mapping[str, Any]:
        (folder / _FILE).write_bytes(data)
        return {"backend": backend.name, "version": backend.version}

    cache.put(key, build)
    return compiled


_BEFORE: dict[str, str] = {}
"""Identities of backends after they compiled or loaded, and before: a count or a log of theirs is no other backend."""


def _code(backend: Backend, options: Options) -> str:
    now = _now(backend, options)
    return _BEFORE.get(now, now)


def _now(backend: Backend, options: Options) -> str:
    return code_identity(backend.compile, backend.save, backend.load, backend.supports, options.key())


def _facts(gm: GraphModule) -> list[str | bytes]:
    """All that tells the graph from others: its calls, what is known of their values, the constants it holds."""
    facts: list[str | bytes] = [gm.code]
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        several = value if isinstance(value, (tuple, list)) else (value,)
        facts.append(node.name)
        if node.op == "call_function" and isinstance(node.target, FunctionType):
            facts.append(code_identity(node.target))
        if node.op == "get_attr":
            facts.append(code_identity(attrgetter(str(node.target))(gm)))
        for one in several:
            if isinstance(one, torch.Tensor):
                facts.append(f"{one.dtype} {tuple(one.shape)} {tuple(one.stride())} {one.device} {one.requires_grad}")
            else:
                facts.append(f"{type(one).__name__} {one}")
    for name, tensor in sorted({**dict(gm.named_parameters()), **dict(gm.named_buffers())}.items()):
        facts += [name, str(tensor.dtype), content_of(tensor)]
    return facts
