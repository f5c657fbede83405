"""Compiled graphs of backends that can save them, kept in the on-disk cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.backends.api import Backend, Compiled
from lamina.backends.regions import open_cache
from lamina.backends.results import check_callable
from lamina.base.identity import place_of
from lamina.errors import BackendFailed
from lamina.options import Options
from lamina.runtime.cache import Entry, digest

__all__ = ["kept"]

_FILE = "compiled.bin"


def kept(
    backend: Backend,
    gm: GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    compile: Callable[[], Compiled],
    name: str,
) -> Compiled:
    """The graph ``name`` as ``backend`` loads it from the cache, or as it compiles it, and saves it, now.

    Raises ``BackendFailed`` where it loads something that cannot be called, or does not save bytes.
    """
    assert backend.save is not None
    assert backend.load is not None
    cache = open_cache(options)
    key = digest("backend", backend.name, backend.version, torch.__version__, *_facts(gm))
    found = cache.get(key)
    if isinstance(found, Entry):
        loaded = backend.load(found.read(_FILE), gm, example_inputs)
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


def _facts(gm: GraphModule) -> list[str | bytes]:
    """All that tells the graph from others: its calls, what is known of their values, the constants it holds."""
    facts: list[str | bytes] = [gm.code]
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        several = value if isinstance(value, (tuple, list)) else (value,)
        facts.append(node.name)
        for one in several:
            if isinstance(one, torch.Tensor):
                facts.append(f"{one.dtype} {tuple(one.shape)} {tuple(one.stride())} {one.device} {one.requires_grad}")
            else:
                facts.append(f"{type(one).__name__} {one}")
    for name, tensor in sorted({**dict(gm.named_parameters()), **dict(gm.named_buffers())}.items()):
        flat = tensor.detach().cpu().contiguous().flatten()
        facts += [name, str(tensor.dtype), flat.view(torch.uint8).numpy().tobytes()]
    return facts
