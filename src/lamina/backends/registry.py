"""Backends by name: built in, registered, brought by installed packages, or known to torch.compile."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, overload

from torch.fx import GraphModule

from lamina.backends.adapters.onnxruntime import ONNXRUNTIME
from lamina.backends.adapters.openvino import OPENVINO
from lamina.backends.adapters.optional import absent, check_installed
from lamina.backends.adapters.torch_tensorrt import TORCH_TENSORRT
from lamina.backends.adapters.torchao import TORCHAO
from lamina.backends.api import Backend
from lamina.backends.count import COUNT
from lamina.backends.debug import DEBUG
from lamina.backends.eager import ATEN, EAGER
from lamina.backends.kernels import KERNELS
from lamina.backends.torch_private import torch_backend, torch_backend_names, traced_apart
from lamina.base.user_warnings import warn_user
from lamina.errors import BadArgument

__all__ = [
    "BUILT_IN",
    "GROUP",
    "as_backend",
    "backend_names",
    "handed_over",
    "is_torch_name",
    "list_backends",
    "register_backend",
]

GROUP = "lamina.backends"
"""The entry point group in which installed packages name their backends."""

_OURS = (*KERNELS, EAGER, ATEN, DEBUG, COUNT, ONNXRUNTIME, OPENVINO, TORCHAO, TORCH_TENSORRT)

BUILT_IN: Mapping[str, Backend] = MappingProxyType({backend.name: backend for backend in _OURS})
"""The backends that come with Lamina; nobody else can take their names."""

_registered: dict[str, Backend] = dict(BUILT_IN)
_of_function: dict[Callable[..., Any], str] = {}
"""The user's registrations: a name by the function that was registered."""


@overload
def register_backend(backend: Backend, *, name: str | None = None, **facts: Any) -> Backend: ...
@overload
def register_backend(backend: Callable[..., Any], *, name: str | None = None, **facts: Any) -> Callable[..., Any]: ...
@overload
def register_backend(
    backend: None = None, *, name: str | None = None, **facts: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
def register_backend(backend: Any = None, *, name: str | None = None, **facts: Any) -> Any:
    """Make a backend known by name to ``lamina.compile(backend=...)``; also usable as a decorator.

    ``backend`` is a ``Backend`` or a function ``(gm, example_inputs) -> callable``, which is named after itself
    unless ``name`` is given. ``facts`` are fields of ``Backend`` (``dtypes=...``, ``supports=...``). Returns what it
    was given. A name registered before is taken over; raises ``BadArgument`` for a built-in one, one that
    torch.compile has a backend of, and for what is no backend.
    """
    if name is not None and not (isinstance(name, str) and name):
        raise BadArgument(f"the name of the backend to register is {name!r}", remedy="pass a word, or leave it out")
    if backend is None:
        return lambda given: register_backend(given, name=name, **facts)
    if not callable(backend) and not isinstance(backend, Backend):
        raise BadArgument(
            f"the backend to register is {backend!r}",
            remedy="pass a function (gm, example_inputs) -> callable, or a lamina.extend.Backend",
        )
    called = name or getattr(backend, "name", None) or getattr(backend, "__name__", None)
    if not isinstance(called, str) or called == "<lambda>":
        raise BadArgument("the backend to register has no name", remedy="pass name=")
    if called in BUILT_IN:
        raise BadArgument(f"{called!r} is a built-in backend", remedy="register yours under another name")
    if called not in _registered and is_torch_name(called):
        raise BadArgument(f"torch.compile has a backend {called!r}", remedy="register yours under another name")
    try:
        made = (
            backend.replace(name=called, **facts) if isinstance(backend, Backend) else Backend(called, backend, **facts)
        )
    except TypeError:
        known = ", ".join(f for f in Backend.__dataclass_fields__ if f not in ("name", "compile"))
        raise BadArgument(f"a backend has no {', '.join(sorted(facts))}", remedy=f"its facts are {known}") from None
    _registered[called] = made
    if not isinstance(backend, Backend):
        _of_function[backend] = called
    return backend


def as_backend(given: str | Backend | Callable[..., Any]) -> Backend:
    """What ``backend=`` stands for. Raises ``BadArgument`` with close names for one that nobody knows.

    A name that only torch.compile knows gives a backend that hands our ATen graphs over to it.
    """
    if isinstance(given, Backend):
        check_installed(given.name, given.requires)
        return given
    if isinstance(given, str):
        found = _registered.get(given) or _installed(given)
        if found is not None:
            return as_backend(found)
        if is_torch_name(given):
            return handed_over(given)
        names = backend_names()
        close = difflib.get_close_matches(given, names, n=3, cutoff=0.6)
        raise BadArgument(
            f"no backend is called {given!r}",
            remedy=f"did you mean {' or '.join(close)}?" if close else f"use one of {', '.join(names)}",
        )
    if callable(given):
        try:
            named = _of_function.get(given)
        except TypeError:  # it cannot be hashed
            named = None
        return _registered[named] if named else Backend(getattr(given, "__name__", type(given).__name__), given)
    raise BadArgument(f"backend is {given!r}", remedy='pass "lamina", another backend\'s name, a Backend or a function')


def backend_names() -> list[str]:
    """Every name ``backend=`` takes, without those that torch.compile has for its own debugging."""
    return sorted({*_registered, *_entry_points(), *torch_backend_names(("debug", "experimental"))})


def list_backends() -> dict[str, str]:
    """What ``backend=`` takes, by name: where each comes from, and the packages that are to be installed for it."""
    found: dict[str, str] = {}
    for name in backend_names():
        missing = absent(_registered[name].requires) if name in _registered else []
        found[name] = f"{_origin(name)}, needs {' and '.join(missing)}" if missing else _origin(name)
    return found


def _origin(name: str) -> str:
    if name in BUILT_IN:
        return "built in"
    if name in _registered:
        return "registered"
    return "an installed package's" if name in _entry_points() else "torch.compile's"


def is_torch_name(name: str) -> bool:
    """Whether ``name`` is a backend of torch.compile's and not one of Lamina's."""
    return name not in _registered and name not in _entry_points() and name in torch_backend_names()


@cache  # names of backends
def handed_over(name: str) -> Backend:
    """Our functional graphs, forward and backward, compiled by a backend that torch.compile knows."""

    def compile(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        with traced_apart(example_inputs):
            compiled: Callable[..., Any] = torch_backend(name)(gm, list(example_inputs))
        return compiled

    return Backend(name, compile, writes=True)


@cache
def _entry_points() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


@cache  # names of backends
def _installed(name: str) -> Backend | None:
    """The backend an installed package has under ``name``; None, with a warning, when it cannot be loaded."""
    point = _entry_points().get(name)
    if point is None:
        return None
    package = point.dist.name if point.dist is not None else point.value
    try:
        loaded = point.load()
        if isinstance(loaded, Backend):
            return loaded.replace(name=name)
        if callable(loaded):
            return Backend(name, loaded)
        why = f"{point.value} is a {type(loaded).__name__}, not a backend"
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    warn_user(f"lamina cannot use the backend {name!r} of the package {package!r}: {why}")
    return None
