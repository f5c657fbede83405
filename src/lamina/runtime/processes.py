"""Starting other processes while this one may be forked."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["start_process"]

_STARTING = threading.RLock()
"""Held while a process is started. A child forked in between would keep the ends of pipes that are about to be closed,
and who reads them would wait for it."""


def start_process(words: tuple[str, ...], **settings: Any) -> subprocess.Popen[Any]:
    """``subprocess.Popen(words, **settings)``; no other thread forks meanwhile. Raises ``OSError`` as that does."""
    with _STARTING:
        return subprocess.Popen(words, **settings)


if hasattr(os, "register_at_fork"):
    _take: Callable[[], Any] = _STARTING.acquire
    os.register_at_fork(before=_take, after_in_parent=_STARTING.release, after_in_child=_STARTING.release)
