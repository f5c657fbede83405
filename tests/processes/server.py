"""The process that is copied: it imports, and then waits for requests of ``client.py``."""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import multiprocessing
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

_READ_AT_START = ("OMP_", "KMP_", "GOMP_", "MKL_", "TORCH", "PYTORCH", "PYTHON", "LD_", "TRITON")
"""What names of variables begin with that Python's start or an import reads: the server has those of the tests."""
_READ_AT_USE = {"PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}
"""But not these. torch sets the last two as it compiles: the tests have them some time after the server has begun."""
_THREADS = "OMP_NUM_THREADS"
"""Which a copy takes up too, as long as it is a number: the server has run nothing on threads."""


_MOST, _BEYOND = 64, 256
"""Open files that a program is given at most, and a number beyond those that are open here."""


def _serve(place: str) -> dict[str, Any] | None:
    """Make a copy for each request until standard input ends; what is asked, in each of the copies."""
    children: dict[int, socket.socket] = {}
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(place)
        listening.listen(64)
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([0, wake, listening, *children.values()], [], [])
            if wake in ready:
                os.read(wake, 4096)
                _tell_of_ended(children)
            for pid, asking in list(children.items()):
                if asking in ready and not asking.recv(1):  # nobody waits for it any more
                    os.kill(pid, signal.SIGKILL)
                    asking.close()
                    del children[pid]
            if listening in ready:
                asking, _ = listening.accept()
                wanted, streams = _request(asking)
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for one in (asking, listening, *children.values()):
                        one.close()
                    _take(dict(zip((0, 1, 2, *wanted["more"]), streams, strict=True)), max([wake, woken, *streams]))
                    return wanted
                for stream in streams:
                    os.close(stream)
                children[pid] = asking
            if 0 in ready:
                for pid in children:
                    os.kill(pid, signal.SIGKILL)
                return None


def _take(given: dict[int, int], last: int) -> None:
    """Have the files that are given, by the numbers they are to have, and no other up to the ``last``."""
    beyond = {number: fcntl.fcntl(file, fcntl.F_DUPFD, _BEYOND) for number, file in given.items()}
    os.closerange(3, last + 1)
    for number, file in beyond.items():
        os.dup2(file, number)
        os.close(file)


def _tell_of_ended(children: dict[int, socket.socket]) -> None:
    with suppress(ChildProcessError, BrokenPipeError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if (asking := children.pop(ended[0], None)) is not None:
                with asking:
                    asking.sendall(os.waitstatus_to_exitcode(ended[1]).to_bytes(8, "big", signed=True))


def _request(asking: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, streams, _, _ = socket.recv_fds(asking, 8, _MOST)
    length, text = int.from_bytes(head, "big"), b""
    while len(text) < length:
        text += asking.recv(length - len(text))
    return json.loads(text), streams


_GIVEN = dict(os.environ)
"""The environment before any import of torch, which sets variables."""


def _become(words: list[str], folder: str, environment: dict[str, str], found: list[str]) -> dict[str, Any]:
    """Make this process one that Python has started with these words; the names of its module ``__main__``."""
    names = {n for n in {*_GIVEN, *environment} if n.startswith(_READ_AT_START)} - _READ_AT_USE
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    if flags and words[: len(flags)] == flags:  # what a process tells those of multiprocessing that it starts
        del words[: len(flags)]
    plain = words[:1] in (["-c"], ["-m"]) or not words or not words[0].startswith("-")
    os.chdir(folder)
    changed = {name for name in names if _GIVEN.get(name) != environment.get(name)}
    threads = environment.get(_THREADS, "") if _THREADS in changed else ""
    if not plain or (changed - {_THREADS} if threads.isdecimal() else changed):
        os.execve(sys.executable, [sys.executable, *words], environment)
    if threads:
        sys.modules["torch"].set_num_threads(int(threads))
    tempfile.tempdir = None
    set_by_imports = {n: value for n, value in os.environ.items() if _GIVEN.get(n) != value}
    os.environ.clear()
    os.environ.update(set_by_imports | environment)
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    kind = words[0] if words[:1] in (["-c"], ["-m"]) else ""
    first = {"-c": "", "-m": folder}.get(kind, os.path.dirname(os.path.realpath(words[0])) if words else "")
    sys.path[:] = [first, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *found]
    sys.argv[:] = ["-c", *words[2:]] if kind == "-c" else words[1:] if kind == "-m" else words or [""]
    sys.orig_argv[:] = [sys.executable, *words]
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    return main.__dict__


def _run(wanted: dict[str, Any], found: list[str]) -> None:
    words = wanted["words"]
    namespace = _become(words, wanted["folder"], wanted["environment"], found)
    if words[:1] == ["-m"]:
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
        return
    if not words:
        place, text = "<stdin>", sys.stdin.buffer.read()
        namespace["__file__"] = place
    elif words[0] == "-c":
        place, text = "<string>", words[1].encode()
    else:
        place = os.path.abspath(words[0])
        text = Path(place).read_bytes()
        namespace["__file__"] = place
    exec(compile(text, place, "exec"), namespace)


def _main(place: str) -> None:
    given = {os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p}
    found = [p for p in sys.path if p and os.path.abspath(p) not in {*given, os.getcwd()}]
    for name in ("numpy", "torch", "lamina.cli.app", "lamina.compile", "lamina.report.recording"):
        importlib.import_module(name)
    multiprocessing.set_executable(str(Path(place).with_name("python")))
    gc.collect()
    gc.freeze()
    wanted = _serve(place)
    if wanted is not None:
        _end(_status(wanted, found))


def _status(wanted: dict[str, Any], found: list[str]) -> int:
    """What the program that is wanted ends with; it is run, and what it raises is told."""
    try:
        _run(wanted, found)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
    except BaseException as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, runpy.__file__):
            frames = frames.tb_next
        sys.excepthook(type(error), error.with_traceback(frames), frames)
    else:
        return 0
    return 1


def _end(status: int) -> None:
    """As Python ends, but that it takes nothing apart: modules, half a second of them."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    _main(sys.argv[1])
