"""Faults put into one process: an exception at a stage, a kill or a full disk at a file operation, a bad compiler."""

from __future__ import annotations

import errno
import importlib
import inspect
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lamina.rewrite import order

__all__ = [
    "COMPILERS",
    "ERRORS",
    "FileFaults",
    "StageFault",
    "boundaries",
    "change_boundary",
    "limit_files",
    "write_compiler",
]

DRIVERS = (
    "lamina.compile",
    "lamina.capture.dynamo",
    "lamina.aot.captured",
    "lamina.aot.run",
    "lamina.aot.graph_compiler",
    "lamina.aot.joint_tracing",
    "lamina.aot.joint_function",
    "lamina.rewrite.rewriting",
    "lamina.backends.run",
    "lamina.freezing.region",
    "lamina.backends.kernels",
    "lamina.segments.pieces",
    "lamina.segments.cut",
    "lamina.backends.cpu",
    "lamina.lower.to_loops",
    "lamina.schedule.fuse",
    "lamina.schedule.plan",
    "lamina.codegen.host",
    "lamina.codegen.cpp.emit",
    "lamina.runtime.build",
    "lamina.runtime.library",
)
"""Modules that call stages: every function of another module of Lamina that one of them names is a boundary."""

OUTSIDE = {
    "lamina.compile": (
        "as_backend check_arguments check_rules is_torch_name options_for torch_settings name_backend passed_through "
        "compile_callable serve_without_tangents lowerings_key"
    ),
    "lamina.capture.dynamo": "watch_compile_start improve_entry transparent is_transparent original_of passed_through",
    "*": (
        "recover brief is_internal warn_once instead aten_calls asks_for_another_capture leave_to_python "
        "seconds_since_compile_started"
    ),
}
"""What ``lamina.compile`` does before there is a graph, and what handles a failure: no boundaries."""

ERRORS: dict[str, Callable[[], BaseException]] = {
    "KeyError": lambda: KeyError("injected"),
    "AttributeError": lambda: AttributeError("injected"),
    "MemoryError": lambda: MemoryError("injected"),
    "RecursionError": lambda: RecursionError("injected"),
    "SyntaxError": lambda: SyntaxError("injected"),
    "full disk": lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "no permission": lambda: PermissionError(errno.EACCES, os.strerror(errno.EACCES)),
}


def boundaries() -> list[str]:
    """``module.name`` of every stage that a driver calls, in a fixed order."""
    found = []
    for driver in DRIVERS:
        module = importlib.import_module(driver)
        left_out = {*OUTSIDE["*"].split(), *OUTSIDE.get(driver, "").split()}
        for name, value in sorted(vars(module).items()):
            owner = getattr(value, "__module__", None) or ""
            if inspect.isclass(value) and (not _is_stage(value) or name.endswith(("Error", "Failed"))):
                continue
            if callable(value) and owner.startswith("lamina.") and owner != driver and name not in left_out:
                found.append(f"{driver}.{name}")
    passes = dict.fromkeys(one.name for one in order.PASSES if one.function is not order.users_passes)
    return found + [f"{order.__name__}.{name}" for name in passes]


def _is_stage(kind: type) -> bool:
    """Classes that do work when they are called; those that only hold values do not fail."""
    return kind.__name__ in ("Rewriting", "Lowering", "HostWriter", "Values", "Region")


def change_boundary(place: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put what ``change`` gives for the function of a boundary in its place: in a module, or in the list of passes."""
    driver, _, name = place.rpartition(".")
    module = importlib.import_module(driver)
    if module is order:
        order.PASSES = order.changed(name, change)
    else:
        setattr(module, name, change(getattr(module, name)))


@dataclass
class StageFault:
    """What happens at the ``number``-th call of a boundary, ``before`` it or after: an error, or ``kill``."""

    place: str
    error: str
    before: bool = True
    number: int = 1
    reached: bool = False

    def inject(self) -> None:
        """Put the fault where the driver finds the function."""
        calls, guard = [0], threading.Lock()

        def changed(real: Callable[..., Any]) -> Callable[..., Any]:
            def faulty(*args: Any, **kwargs: Any) -> Any:
                with guard:
                    calls[0] += 1
                    now = calls[0] == self.number
                if not now:
                    return real(*args, **kwargs)
                if not self.before:
                    result = real(*args, **kwargs)
                    self.fail()
                    return result
                self.fail()
                return real(*args, **kwargs)

            return faulty

        change_boundary(self.place, changed)

    def fail(self) -> None:
        """Raises, or returns where the fault comes to the main thread only."""
        self.reached = True
        if self.error == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.error == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
            return
        raise ERRORS[self.error]()


_OPERATIONS = frozenset(
    (
        *("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"),
        *("os.scandir", "os.listdir", "os.utime", "subprocess.Popen", "fcntl.flock", "fcntl.lockf", "ctypes.dlopen"),
        *("shutil.rmtree", "shutil.move"),
    )
)
"""The audit events of what needs a disk, a lock, another program or a library."""


class FileFaults:
    """Counts the file operations of the process below a folder, and the commands it runs; fails at one of them."""

    def __init__(self, folder: Path, number: int = 0, what: str = "") -> None:
        self.folder, self.number, self.what = os.fspath(folder), number, what
        self.log: list[str] = []
        self.reached = False
        self.active = True
        self.guard = threading.Lock()

    def inject(self) -> None:
        """From now on. Lasts as long as the process."""
        sys.addaudithook(self._event)

    def _event(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.active or event not in _OPERATIONS or not self._ours(event, args):
            return
        with self.guard:
            self.log.append(event)
            now = len(self.log) == self.number
        if now:
            self.reached = True
            if self.what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ERRORS[self.what]()

    def _ours(self, event: str, args: tuple[Any, ...]) -> bool:
        if event == "subprocess.Popen":
            return True
        if event in ("fcntl.flock", "fcntl.lockf"):
            return self._path_of(args[0]).startswith(self.folder)
        return any(self.folder in self._path_of(a) for a in args[:2]) or self._relative(args)

    def _relative(self, args: tuple[Any, ...]) -> bool:
        """Whether one of the arguments is the descriptor of an open folder below ours."""
        return any(isinstance(a, int) and a > 2 and self.folder in self._path_of(a) for a in args)

    @staticmethod
    def _path_of(given: Any) -> str:
        if isinstance(given, bool) or given is None:
            return ""
        if isinstance(given, int):
            try:
                return os.readlink(f"/proc/self/fd/{given}")
            except OSError:
                return ""
        return os.fsdecode(given) if isinstance(given, (str, bytes, os.PathLike)) else ""


def limit_files(size: int) -> None:
    """No file that this process or a command it runs writes may be larger: what a full disk looks like to both."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


COMPILERS = {
    "killed at once": "kill -9 $$",
    "killed when it has written half": '"{cxx}" "$@"; halve; kill -9 $$',
    "writes half and says all is well": '"{cxx}" "$@"; halve; exit 0',
    "writes nothing and says all is well": "exit 0",
    "writes an empty file and says all is well": '"{cxx}" "$@"; for f in $outputs; do : > "$f"; done; exit 0',
    "writes text and says all is well": '"{cxx}" "$@"; for f in $outputs; do echo no > "$f"; done; exit 0',
    "writes a library of another source": 'echo "int lamina_other;" > "{state}.cpp"; for f in $outputs; do '
    '"{cxx}" -shared -fPIC -o "$f" "{state}.cpp"; done; exit 0',
    "fails": "echo fatal error: no space left on device >&2; exit 1",
    "fails when it has written all": '"{cxx}" "$@"; exit 1',
    "is ended (SIGTERM)": "kill -15 $$",
}
"""What a compiler may do instead of its work, in shell."""

_SCRIPT = """#!/bin/bash
count=$(( $(cat "{state}" 2>/dev/null || echo 0) + 1 )); echo $count > "{state}"
outputs=""; last=""
for a in "$@"; do [ "$last" = "-o" ] && outputs="$outputs $a"; last="$a"; done
halve() {{ for f in $outputs; do [ -f "$f" ] && truncate -s $(( $(stat -c %s "$f") / 2 )) "$f"; done; true; }}
if [ "$count" = "{number}" ]; then
  touch "{state}.reached"
  {what}
fi
exec "{cxx}" "$@"
"""


def write_compiler(path: Path, cxx: str, what: str, number: int) -> None:
    """A C++ compiler at ``path`` whose ``number``-th run does ``what``; the file ``path``.state.reached tells that."""
    state = path.with_suffix(".state")
    path.write_text(_SCRIPT.format(state=state, number=number, cxx=cxx, what=what.format(cxx=cxx, state=state)))
    path.chmod(0o755)
