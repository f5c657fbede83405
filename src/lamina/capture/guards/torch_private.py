"""Adding a check to the guards of the graph being compiled; names as read in torch 2.11 to 2.13."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

from torch._C._dynamo import eval_frame
from torch._dynamo.guards import (
    CheckFunctionManager,
    DeletedGuardManagerWrapper,
    GuardBuilder,
    _get_closure_vars,
    get_verbose_code_parts,
)
from torch._guards import Guard, Source

from lamina.capture.trace_corrections.torch_private import compiles_for_lamina

__all__ = ["add_check", "add_check_of_call", "expression", "invalidate_isolated", "reader"]

Check = Callable[[Any], bool]


def add_check(builder: GuardBuilder, guard: Guard, check: Check, what: str) -> None:
    """Ask ``check`` of the value at the guard's source at each call; ``what`` is for those who read guards."""
    value = builder.get(guard.originating_source)
    if isinstance(value, dict):  # guards on dictionaries take no others
        read = reader(builder, [expression(guard.originating_source)])
        add_check_of_call(builder, guard, lambda scope: check(read(scope)[0]), what)
        return
    _add_to(builder.get_guard_manager(guard), check, get_verbose_code_parts(what, guard), guard)


def add_check_of_call(builder: GuardBuilder, guard: Guard, check: Check, what: str) -> None:
    """Ask ``check`` of the local variables of each call."""
    _add_to(builder.guard_manager.root, check, get_verbose_code_parts(what, guard), guard)


def _add_to(manager: Any, check: Check, parts: list[str], guard: Guard) -> None:
    try:
        manager.add_lambda_guard(check, parts, guard.user_stack)
    except TypeError:  # versions without the user's stack
        manager.add_lambda_guard(check, parts)


def reader(builder: GuardBuilder, places: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Gives the values at ``places``, which are expressions of Dynamo's, for the local variables of a call."""
    read: Any = eval(f"lambda L: ({', '.join(places)},)", {**_get_closure_vars(), **builder.scope})
    return cast("Callable[[Any], tuple[Any, ...]]", read)


def expression(source: Source) -> str:
    """The expression for the value at ``source``."""
    name: Any = source.name  # a method in some versions
    return str(name() if callable(name) else name)


_ISOLATES = hasattr(eval_frame, "set_eval_frame_isolate_recompiles_id")


def invalidate_isolated() -> None:
    """Let a function that Lamina compiles, which may have its cache to itself, end entries whose objects are gone.

    Torch 2.13 looks for such an entry among those of all other functions, which ends the process: when a function that
    is guarded by identity is deleted, and for builtin functions when Python exits.
    """
    if not _ISOLATES:
        return
    make_any, invalidate_any = CheckFunctionManager.__init__, CheckFunctionManager.invalidate
    isolated = "is_of_lamina"

    @functools.wraps(make_any)
    def make(self: Any, f_code: Any, output_graph: Any, *arguments: Any, **keywords: Any) -> None:
        setattr(self, isolated, hasattr(output_graph, "compiler_fn") and compiles_for_lamina(output_graph))
        make_any(self, f_code, output_graph, *arguments, **keywords)

    @functools.wraps(invalidate_any)
    def invalidate(self: Any, obj_str: str) -> None:
        manager = getattr(self, "guard_manager", None)
        if manager is None or not getattr(self, isolated, False):
            invalidate_any(self, obj_str)
        elif not isinstance(manager, DeletedGuardManagerWrapper):
            manager.root.add_lambda_guard(lambda _: False, [f"{obj_str} is deleted"], None)

    CheckFunctionManager.__init__ = make  # type: ignore[method-assign]
    CheckFunctionManager.invalidate = invalidate  # type: ignore[method-assign]
