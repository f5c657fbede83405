"""Taking Dynamo's hook on frames off where an error left it behind; names as read in torch 2.11 to 2.13."""

from __future__ import annotations

from typing import Any

from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    get_eval_frame_callback,
    set_code_exec_strategy,
    set_eval_frame,
)

__all__ = ["take_off_hook", "take_off_lost_hook"]


def take_off_hook() -> None:
    """Count one thread less of those that need the hook; to be called where this thread has no callback.

    Dynamo sets this thread's callback to None while it calls it, and leaves it so if it raises, without counting that:
    the hook would stay on, and each call of a Python function in the process would take half as long again.
    """
    set_eval_frame(_no_callback)  # type: ignore[arg-type]
    _count_down()
    set_eval_frame(None)


def take_off_lost_hook() -> None:
    """``take_off_hook`` for an error that has just left Dynamo: if it came from the callback, there is none now."""
    if get_eval_frame_callback() is None:
        take_off_hook()


def _no_callback(*_: Any) -> None:
    raise AssertionError


def _count_down() -> None:
    """Counts a thread less. At the end Dynamo sets the callback that there was at the start, which it does not count.

    While this runs the callback is another, since what it calls is to use compiled code and compile nothing.
    """
    set_eval_frame(None)


set_code_exec_strategy(_count_down.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.RUN_ONLY))
for _function in (take_off_hook, take_off_lost_hook):
    set_code_exec_strategy(_function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT))
