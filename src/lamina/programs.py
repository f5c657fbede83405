"""Runs a user's program as ``python`` would: a file, or a function of a module; what it raises is kept for later.

What the commands say about a program comes after it has ended, however it ended.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lamina.base.user_frames import all_frames_shown, of_user
from lamina.errors import BadArgument

__all__ = ["Ended", "Program", "found_program", "named_object"]

_MOST = 15
"""Lines of a traceback."""
_REMEDY = "give the file of a Python program, or package.module:function"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended: what it ``made`` (its variables, or a function's result), or what it ``raised``."""

    made: Any = None
    raised: BaseException | None = None

    @property
    def status(self) -> int:
        """The exit status that Python would have given."""
        if isinstance(self.raised, KeyboardInterrupt):
            return 130
        if isinstance(self.raised, SystemExit):
            code = self.raised.code
            return code if isinstance(code, int) else int(code is not None)
        return int(self.raised is not None)

    @property
    def told(self) -> str:
        """What Python would have printed on standard error, in the user's frames and 15 lines at most."""
        error = self.raised
        if error is None:
            return ""
        if isinstance(error, SystemExit):
            return error.code if isinstance(error.code, str) else ""
        full = all_frames_shown()
        trace = error.__traceback__ if full else of_user(error.__traceback__)
        lines = "".join(traceback.format_exception(type(error), error, trace)).rstrip().splitlines()
        if full or len(lines) <= _MOST:
            return "\n".join(lines)
        last = next((k for k, line in enumerate(lines) if k > 4 and not line.startswith((" ", "Traceback"))), _MOST)
        ending = lines[max(last - 4, 5) :][: _MOST - 6]
        return "\n".join([*lines[:5], "  ... LAMINA_TRACEBACK=full shows all ...", *ending])


@dataclass(frozen=True, slots=True)
class Program:
    """Something to run: ``run`` gives what it made, and is the user's own function if ``of_function``.

    ``name`` is what the user called it.
    """

    name: str
    run: Callable[[], Any]
    of_function: bool = False

    def ended(self, quiet: bool = False) -> Ended:
        """Run it to its end; with ``quiet`` what it prints goes to standard error, so that output is ours alone."""
        with _output_to_errors() if quiet else contextlib.nullcontext():
            try:
                return Ended(self.run())
            except BaseException as error:
                return Ended(raised=error)


def found_program(target: str, arguments: tuple[str, ...] = ()) -> Program:
    """A script ("train.py", with ``arguments`` in its ``sys.argv``) or a function ("package.module:function").

    Raises ``BadArgument`` for what cannot be run: no such file, a folder, text that is no Python, no such function, a
    function that takes arguments.
    """
    if ":" in target and not target.endswith(".py"):
        return Program(target, _function(target), of_function=True)
    path = Path(target)
    if path.is_dir():
        raise BadArgument(f"{target} is a folder", remedy=_REMEDY)
    if not path.is_file():
        raise BadArgument(f"there is no program {target!r}", remedy=_REMEDY)
    try:
        compile(path.read_bytes(), target, "exec")
    except SyntaxError as problem:
        line = f"{target}:{problem.lineno}" if problem.lineno else target
        raise BadArgument(f"{target} is no Python: {problem.msg}", where=line, remedy=_REMEDY) from None
    except (OSError, ValueError) as problem:
        raise BadArgument(f"{target} cannot be read as Python: {problem}", remedy=_REMEDY) from None
    return Program(target, lambda: _script(path, arguments))


def _script(path: Path, arguments: tuple[str, ...]) -> dict[str, Any]:
    before, sys.argv = sys.argv, [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        return runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = before
        with contextlib.suppress(ValueError):
            sys.path.remove(str(path.resolve().parent))


def named_object(name: str) -> Any:
    """What ``package.module:name`` stands for, also ``name.attribute``. Raises ``BadArgument`` where there is none.

    What an import within the module raises is raised as it is.
    """
    module, _, path = name.partition(":")
    if not (module and path):
        raise BadArgument(f"{name} names no object of a module", remedy="write package.module:name")
    sys.path.insert(0, "")  # modules of the folder at hand
    try:
        return functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except ModuleNotFoundError as problem:
        if problem.name is None or not (module == problem.name or module.startswith(f"{problem.name}.")):
            raise
        raise BadArgument(f"{name}: {problem}", remedy="write package.module:name") from None
    except AttributeError as problem:
        raise BadArgument(f"{name}: {problem}", remedy="write package.module:name") from problem
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove("")


def _function(target: str) -> Callable[[], Any]:
    """A function that takes no arguments."""
    found = named_object(target)
    if not callable(found) or not _takes_nothing(found):
        raise BadArgument(f"{target} takes arguments", remedy="name a function that takes none and calls yours")
    return found  # type: ignore[no-any-return]


def _takes_nothing(function: Callable[..., Any]) -> bool:
    try:
        return all(p.default is not p.empty for p in inspect.signature(function).parameters.values())
    except ValueError:  # functions written in C say nothing
        return False


@contextlib.contextmanager
def _output_to_errors() -> Iterator[None]:
    """Inside, what is written to standard output, by Python or by C, goes to standard error."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # standard output is closed
        kept = -1
    try:
        if kept >= 0:
            os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        if kept >= 0:
            os.dup2(kept, 1)
            os.close(kept)
