"""The stance of torch.compile and its switches, as read in torch 2.11 to 2.13; Dynamo keeps them and is not loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

from lamina.base.user_frames import shortened
from lamina.errors import LaminaError

__all__ = [
    "SWITCHED_OFF",
    "compiling_is_switched_off",
    "forbids_recompiles",
    "stance_in_words",
    "under_stances",
    "uses_what_is_compiled",
]

_KEPT, _SWITCHES = "torch._dynamo.eval_frame", "torch._dynamo.config"
_modules = sys.modules
_COMPILING = ("default", "fail_on_recompile", "eager_then_compile", "aot_eager_then_compile")


class Versions(Protocol):
    """What earlier calls have left for later ones."""

    first: Callable[[tuple[Any, ...], dict[str, Any]], Any]


def under_stances(
    versions: Versions,
    called: Callable[[tuple[Any, ...], dict[str, Any]], Any],
    uncompiled: Callable[[tuple[Any, ...], dict[str, Any]], Any],
    missing: object,
) -> Any:
    """A function whose calls ``versions`` makes, where what it gives is ``missing`` ``called``, and under a stance that
    does not compile ``uncompiled``; what it does costs each call.
    """
    loaded, kept, usual = _modules.get, _modules.get(_KEPT), None

    def compiled(*args: Any, **kwargs: Any) -> Any:
        nonlocal kept, usual
        if kept is None:
            kept = loaded(_KEPT)
        if kept is not None:
            try:
                stance = kept._stance
            except AttributeError:  # the module is being loaded
                stance = usual
            if stance is not usual:
                if not _compiles(stance):
                    return uncompiled(args, kwargs)
                usual = stance
        found = versions.first(args, kwargs)
        if found is not missing:
            return found
        try:
            return called(args, kwargs)
        except LaminaError as error:
            raise shortened(error) from None

    return compiled


def _compiles(stance: Any) -> bool:
    """Whether calls are compiled as they are without a stance, but for what ``fail_on_recompile`` refuses."""
    return stance.backend is None and stance.stance in _COMPILING


SWITCHED_OFF = "torch._dynamo.config.disable is set"
"""Why nothing is compiled where ``compiling_is_switched_off``."""


def _stance() -> Any:
    return getattr(_modules.get(_KEPT), "_stance", None)


def forbids_recompiles() -> bool:
    """Whether ``torch.compiler.set_stance("fail_on_recompile")`` holds; it loads the module where a stance is kept."""
    stance = _stance()
    return stance is not None and stance.stance == "fail_on_recompile"


def uses_what_is_compiled() -> bool:
    """Whether the stance lets what was compiled before run, and nothing else be compiled."""
    stance = _stance()
    return stance is not None and stance.backend is None and stance.stance == "eager_on_recompile"


def stance_in_words() -> str:
    """The stance, as the user has set it."""
    stance = _stance()
    if stance is None:
        return "default"
    return stance.stance if stance.backend is None else f"{stance.stance}, force_backend={stance.backend!r}"


def compiling_is_switched_off(first: bool) -> bool:
    """Whether ``torch._dynamo.config.disable`` keeps all from compiling; ``first`` is its value before it is loaded."""
    return bool(getattr(_modules.get(_SWITCHES), "disable", first))
