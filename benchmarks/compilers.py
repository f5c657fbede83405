"""The compile functions that benchmarks and tests compare, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import lamina
from benchmarks.torch_private import aot_backend

__all__ = ["NAMES", "CompileFunction", "compile_function", "wrong_backend"]

CompileFunction = Callable[..., Callable[..., Any]]
"""``(callable, *, fullgraph, dynamic, options) -> callable``; the keywords are torch.compile's."""

NAMES = ("lamina", "torch", "lamina_backend", "aot_eager", "dynamo", "eager", "wrong")


def compile_function(name: str) -> CompileFunction:
    """The compile function called ``name``.

    ``eager`` returns the callable itself, ``dynamo`` captures and runs the captured graph, ``aot_eager`` adds
    AOTAutograd, ``torch`` is torch.compile's default, ``lamina_backend`` is ``torch.compile(backend="lamina")`` and
    ``wrong`` is ``aot_eager`` with every result off by one part in 300: what a test accepts from it, it cannot see.
    Options are Lamina's own; ``numerics="eager"`` is translated for ``torch`` and dropped elsewhere.
    Raises ``ValueError`` for another name and ``RuntimeError`` if this checkout has no ``lamina.compile``.
    """
    if name not in NAMES:
        raise ValueError(f"no compile function is called {name!r}; there are {', '.join(NAMES)}")
    if name == "lamina":
        if not callable(getattr(lamina, "compile", None)):
            raise RuntimeError("this checkout has no lamina.compile")
        return lamina.compile  # type: ignore[no-any-return]
    if name == "eager":
        return _identity
    if name == "torch":
        return _inductor
    backend = {"lamina_backend": "lamina", "aot_eager": "aot_eager", "dynamo": "eager", "wrong": wrong_backend}[name]

    def compiled(
        model: Any, *, fullgraph: bool = False, dynamic: bool | None = None, options: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(options or {}) if name == "lamina_backend" else None
        return torch.compile(model, fullgraph=fullgraph, dynamic=dynamic, backend=backend, options=given)

    return compiled


def _identity(model: Any, **_: Any) -> Any:
    return model


def _inductor(
    model: Any, *, fullgraph: bool = False, dynamic: bool | None = None, options: Mapping[str, Any] | None = None
) -> Any:
    given: dict[str, Any] | None = None
    if (options or {}).get("numerics") == "eager":
        given = {"fallback_random": True, "emulate_precision_casts": True}
    return torch.compile(model, fullgraph=fullgraph, dynamic=dynamic, options=given)


def wrong_backend(gm: nn.Module, example_inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
    """A backend of torch.compile whose forward and backward results are all wrong by 1/300 of their value."""
    return aot_backend(_perturb)(gm, example_inputs)  # type: ignore[no-any-return]


def _perturb(gm: nn.Module, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    def run(*args: Any) -> list[Any]:
        return [_scaled(value) for value in gm(*args)]

    return run


def _scaled(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value * (1 + 1 / 300)
    return value
