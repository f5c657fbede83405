"""Functions that ask for the frame that calls them, answered for frames of the interpreter's."""

from __future__ import annotations

import builtins
import sys
from typing import Any

from lamina.capture.own.frame import MISSING, Frame
from lamina.capture.own.world import World

__all__ = ["OF_FRAMES", "of_frame"]

OF_FRAMES = frozenset(map(id, (super, locals, globals, vars, dir, eval, exec, sys.exc_info, sys.exception)))
"""Identities of functions that ask for the frame that calls them."""


def of_frame(world: World, handled: BaseException | None, frame: Frame, function: Any, args: tuple[Any, ...]) -> Any:
    """What a function that asks for its caller's frame gives; ``MISSING`` if this call does not."""
    if function is super:
        return MISSING if args else _super_of(world, frame)
    if function is builtins.globals:
        return frame.function.__globals__
    if function is sys.exception and handled is not None:
        return handled
    if function is sys.exc_info and (error := handled) is not None:
        return type(error), error, error.__traceback__
    if function in (eval, exec):
        given = (*args, frame.function.__globals__, frame.names())[: 3 if len(args) == 1 else len(args)]
        return function(*given) if len(args) == 1 else MISSING
    if args or function in (sys.exception, sys.exc_info):
        return MISSING
    return sorted(frame.names()) if function is dir else frame.names()


def _super_of(world: World, frame: Frame) -> Any:
    names = frame.program.places
    if "__class__" not in names:
        raise RuntimeError("super(): __class__ cell not found")
    if not frame.code.co_argcount:
        raise RuntimeError("super(): no arguments")
    owner = world.cell(frame.variables[names.index("__class__")])
    itself = frame.variables[0]
    if names[0] in frame.code.co_cellvars:
        itself = world.cell(itself)
    return super(owner, itself)
