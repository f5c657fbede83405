"""Capture with fixed sizes, where questions about symbolic ones would not end; names as read in torch 2.11 to 2.13."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from types import CodeType
from typing import TypeVar

from torch._dynamo import config

from lamina.base.symbolic.environment.torch_private import questions_limited
from lamina.capture.log import CaptureLog

__all__ = ["SECONDS_FOR_SIZES", "FixedSizes"]

Made = TypeVar("Made")

SECONDS_FOR_SIZES = 5.0
"""So long one capture may ask about symbolic sizes; what the backend asks is not counted."""


class FixedSizes:
    """The code of which graphs are captured with the sizes of the call, as questions about symbols took too long."""

    def __init__(self, log: CaptureLog) -> None:
        """``log`` is told of each once."""
        self.log = log
        self._codes: weakref.WeakValueDictionary[int, CodeType] = weakref.WeakValueDictionary()

    def capture(self, code: CodeType, captured: Callable[[], Made]) -> Made:
        """What ``captured`` makes of ``code``. Sizes that the user marked as dynamic stay symbols."""
        if id(code) in self._codes:  # code of another function of the same text is equal
            return self._fixed(captured)
        with contextlib.ExitStack() as stack:
            limit = stack.enter_context(questions_limited(SECONDS_FOR_SIZES))
            try:
                made = captured()
            except Exception:
                if not limit.exceeded:
                    raise
            else:
                if limit.exceeded_within and not limit.exceeded:
                    self._add(code)  # the next sizes need not try again
                if not limit.exceeded:
                    return made
        self._add(code)
        return self._fixed(captured)

    def _add(self, code: CodeType) -> None:
        self._codes[id(code)] = code
        self.log.fixed_from_now_on(code)

    def _fixed(self, captured: Callable[[], Made]) -> Made:
        with config.patch(assume_static_by_default=True, automatic_dynamic_shapes=False):
            return captured()
