"""``lamina.compile``: with capture own, calls that are stored need no compiler, which is loaded for others."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from types import FunctionType, MethodType
from typing import Any

import torch

from lamina.artefacts.store import Store, is_stored
from lamina.backends.caches import guard_machine, open_cache
from lamina.base.recovery import recover
from lamina.base.region_names import callable_name
from lamina.base.user_frames import with_users_frames
from lamina.capture.compiled_before.torch_private import uncompiled
from lamina.capture.module import is_transparent, original_of
from lamina.capture.own.callable import interpreted_callable
from lamina.errors import LaminaError
from lamina.options import Options, torch_compile_disabled, wanted_capture
from lamina.record import Record, is_held
from lamina.report.recording import kept_record, report

__all__ = ["compile", "own_callable", "stored_calls"]


@with_users_frames
def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "lamina",
    mode: str | None = None,
    options: Mapping[str, Any] | Options | None = None,
    disable: bool = False,
) -> Any:
    """Compile a function, method, module or module class; as ``torch.compile``, and usable as a decorator.

    ``backend`` is "lamina" (kernels for this machine), the name of another backend (those built in, registered,
    installed, or known to torch.compile), a ``Backend`` or a function ``(gm, example_inputs) -> callable``, which is
    given functional ATen graphs. With ``fullgraph`` what cannot be part of one graph raises. With ``dynamic`` sizes are
    symbols (True), numbers (False), or numbers until a call has others (None). ``disable`` gives ``model`` as it is.
    ``mode`` is one of torch.compile's four modes, ``options`` an ``Options`` or a mapping of its fields. The result has
    a ``record`` and ``stats()``, and ``report(path)`` writes the record as a page. Raises ``BadArgument`` or
    ``UnknownOption`` for wrong arguments.
    """
    model = model if disable is True else uncompiled(model)
    how = {"fullgraph": fullgraph, "dynamic": dynamic, "backend": backend, "mode": mode, "disable": disable}
    usual = fullgraph is False and not dynamic and backend == "lamina" and disable is False
    settings = _settings(mode, options) if usual and wanted_capture(options) == "own" else None
    if settings is None or not (model is None or _is_usual(model)):
        return import_module("lamina.compile").compile_now(model, **how, options=options)
    if model is None:
        return partial(_decorated, settings=settings, how=how)
    record = kept_record(callable_name(model), settings)
    return own_callable(model, settings, record, _Later(settings, record), dynamic=dynamic)


def _decorated(model: Any, *, settings: Options, how: Mapping[str, Any]) -> Any:
    if model is None:
        return import_module("lamina.compile").compile_now(**how, options=settings)(model)
    return compile(model, **how, options=settings)


def _settings(mode: str | None, options: Any) -> Options | None:
    """The options, if calls are stored with them; None if not, or if something is wrong with them."""
    try:
        settings = Options.of(mode, options)
    except LaminaError:
        return None
    return settings if is_stored(settings) and settings.simd == "auto" and settings.capture == "own" else None


def _is_usual(model: Any) -> bool:
    module = isinstance(model, torch.nn.Module) and not isinstance(model, torch.jit.ScriptModule)
    return module or isinstance(model, (FunctionType, MethodType))


class _Later:
    """The compiler, which is loaded when there is something to compile."""

    def __init__(self, settings: Options, record: Record) -> None:
        self.settings, self.record = settings, record
        self._compiler: Callable[..., Any] | None = None

    def __call__(self, gm: Any, inputs: Sequence[Any]) -> Any:
        if self._compiler is None:
            self._compiler = import_module("lamina.compile").interpreters_compiler(self.settings, self.record)
        return self._compiler(gm, inputs)


def own_callable(
    model: Any,
    settings: Options,
    record: Record,
    compiler: Any,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    stored: bool = True,
) -> Any:
    """``model`` with its calls interpreted, and stored for other processes where they may be.

    ``stored``: whether the compiler is the default backend's, which is not a part of what names stored calls. Where
    somebody wants to see how the model is compiled, as the commands do, it is compiled.
    """
    stores: weakref.WeakSet[Store] = weakref.WeakSet()
    seen = record.compares_stages or is_held(record)

    def store(target: Any) -> Store | None:
        if fullgraph or not stored or not is_stored(settings) or seen:
            return None
        made = Store(target, settings, open_cache(settings), record, compiler)
        made.dynamic = dynamic
        stores.add(made)
        return made

    return interpreted_callable(
        model,
        backend_callable=compiler,
        record=record,
        fullgraph=fullgraph,
        machine=partial(guard_machine, settings),
        attributes={
            "record": record,
            "stats": partial(_stats, record),
            "report": partial(report, record),
            _STORES: stores,
        },
        store=store,
        dynamic=dynamic,
        disabled=torch_compile_disabled(),
        other_in_eager=partial(_other_in_eager, settings, record),
        keeps=settings.freeze,
        by_dynamo=partial(_by_dynamo, settings, record, compiler, fullgraph, dynamic),
    )


def _by_dynamo(
    settings: Options, record: Record, compiler: Any, fullgraph: bool, dynamic: bool | None, target: Any
) -> Any:
    """``target`` with its calls captured by Dynamo, and compiled by the same backend."""
    backend = getattr(compiler, "backend", None)
    return import_module("lamina.compile").captured_by_dynamo(target, settings, backend, record, fullgraph, dynamic)


def _other_in_eager(settings: Options, record: Record, node: Any, laid_out: bool) -> bool:
    """Whether eager gives other tensors for a call than torch tells; so it counts where that cannot be found out."""
    try:
        return bool(import_module("lamina.compile").other_kind_in_eager(node, laid_out))
    except Exception as error:
        doing, instead = "trying a call in eager", "the call is made between graphs"
        note = record.noting("", "capture")
        recover(error, doing=doing, region=record.name, instead=instead, strict=settings.strict, note=note)
        return True


_STORES = "_lamina_stored_calls"
"""The attribute of what ``compile`` gave that holds the stores of it and, if it is a module, of its copies."""


def stored_calls(compiled: Any) -> Store | None:
    """Where the calls of what ``compile`` gave are stored for other processes, if they are."""
    target = original_of(compiled) if is_transparent(compiled) else getattr(compiled, "__wrapped__", None)
    return next((store for store in getattr(compiled, _STORES, ()) if store.target is target), None)


def _stats(record: Record) -> Any:
    return import_module("lamina.stats").stats_of(record)
