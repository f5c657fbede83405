"""Python processes of tests: copies of one that has imported torch and Lamina, in place of a start of 4 s each.

``python()`` gives the words of a command line that stand for ``sys.executable``: what follows them, ``-c``, ``-m`` or
a file, and arguments, or else what standard input has, runs as it would in a fresh process, with the environment, the
folder, the standard streams and the status of that. It is a fork of a server's process, which has run nothing but
imports; where an option of Python's or a variable that is read at its start asks for more, it is a fresh process. A
test that asks what an import does, or how Python ends, is to start ``sys.executable`` itself.
"""

from __future__ import annotations

import atexit
import shlex
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

__all__ = ["python"]

_CLIENT = str(Path(__file__).with_name("client.py"))
_ROOT = Path(__file__).parents[2]


@cache
def python() -> tuple[str, ...]:
    """The words of a command line that stand for ``sys.executable``, of a process that has imported Lamina already.

    The first call starts the server, which runs until this process ends.
    """
    folder = tempfile.TemporaryDirectory(prefix="lamina-processes-")
    place = str(Path(folder.name) / "socket")
    words = (sys.executable, "-S", "-E", _CLIENT, place)
    program = Path(folder.name) / "python"  # by which a copy starts the processes of multiprocessing
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    program.chmod(0o700)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.processes.server", place],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    pipe = server.stdin

    def end() -> None:
        pipe.close()
        server.wait()
        folder.cleanup()

    atexit.register(end)
    return words
