"""The interpreter against CPython: results, exceptions with their lines and chains, effects and the order of calls."""

from __future__ import annotations

import collections
import contextlib
import os
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest

from lamina.capture.own.control import CONTROL_STEPS
from lamina.capture.own.instructions import UnknownInstruction, decode
from lamina.capture.own.machine import Machine, is_interpretable
from lamina.capture.own.steps import DATA_STEPS
from lamina.capture.own.world import PlainWorld
from tests.capture.own.python_programs import PRELUDE, Program, difference, ends, observed

ROOT = Path(__file__).parents[3]


FIRST = [*range(0, 400, 100), *(pytest.param(n, marks=pytest.mark.slow) for n in range(400, 20_000, 100))]
"""Seeds: 400 programs in `make test`, 20,000 in `make test-full`."""


def by_machine(function, *args, **kwargs):
    return Machine(PlainWorld()).run(function, args, kwargs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("first", FIRST)
def test_random_programs_do_what_they_do_in_python(first: int) -> None:
    assert [told for seed in range(first, first + 100) if (told := difference(seed))] == []


HANDLED_OUTSIDE = """
def f(log):
    def made():
        try:
            raise ValueError("within")
        finally:
            yield 1
            a, *b = False
    try:
        raise KeyError("outside")
    finally:
        list(made())
"""


def test_what_is_handled_around_a_generator_leads_to_what_it_handles() -> None:
    told = []
    for call in (lambda function: function([]), lambda function: by_machine(function, [])):
        space = {}
        exec(HANDLED_OUTSIDE, space)
        error, kinds = None, []
        try:
            call(space["f"])
        except TypeError as caught:
            error = caught
        while error is not None:
            kinds.append(type(error))
            error = error.__context__
        told.append(kinds)
    assert told == [[TypeError, ValueError, KeyError]] * 2


@pytest.mark.filterwarnings("ignore")
def test_a_wrong_interpreter_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(machine, frame, arg):
        frame.stack[-1], frame.stack[-2] = frame.stack[-2], frame.stack[-1]
        DATA_STEPS["BINARY_OP"](machine, frame, arg)

    monkeypatch.setitem(sys.modules["lamina.capture.own.machine"]._STEPS, "BINARY_OP", swapped)
    assert any(difference(seed) for seed in range(60))


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the names below are those that 3.11 lacks")
@pytest.mark.filterwarnings("ignore")
def test_programs_reach_every_kind_of_instruction() -> None:
    reached: set[str] = set()

    def visit(code: types.CodeType) -> None:
        with contextlib.suppress(UnknownInstruction):
            reached.update(name for name, _ in decode(code).steps)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                visit(constant)

    for seed in range(150):
        try:
            visit(compile(Program(seed).text(), "<program>", "exec"))
        except SyntaxError:
            continue
    later = {
        "BINARY_SLICE",
        "STORE_SLICE",
        "END_SEND",
        "TO_BOOL",
        "LOAD_SUPER",
        "LOAD_FAST_CHECK",
        "LOAD_FAST_AND_CLEAR",
        "FORMAT_SIMPLE",
        "FORMAT_WITH_SPEC",
        "CONVERT_VALUE",
        "CALL_KW",
        "SET_FUNCTION_ATTRIBUTE",
        "STOP_ITERATION_ERROR",
        "CLEANUP_THROW",
        "DELETE_DEREF",
        "STORE_GLOBAL",
        "DELETE_GLOBAL",
    }
    assert (DATA_STEPS.keys() | CONTROL_STEPS.keys()) - later <= reached


def test_an_unknown_instruction_leaves_the_function_to_python() -> None:
    async def coroutine():
        return 1

    def group():
        found = 1
        try:
            raise ValueError
        except* ValueError:
            found = 2
        return found

    def plain():
        return group()

    assert not is_interpretable(coroutine)
    assert not is_interpretable(group)
    assert is_interpretable(plain)
    assert by_machine(plain) == 2


def test_warnings_and_frames_name_the_users_line() -> None:
    def warns():
        warnings.warn("told", stacklevel=1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        by_machine(warns)
    assert (caught[0].filename, caught[0].lineno) == (__file__, warns.__code__.co_firstlineno + 1)


def test_a_classes_module_is_the_users() -> None:
    def makes():
        return collections.namedtuple("P", "a b")

    assert by_machine(makes).__module__ == __name__


def test_objects_end_when_they_would() -> None:
    assert ends(by_machine) == ends(lambda program: program()) == ["object", "after", "object", "end"]


def test_an_interrupt_leaves_what_was_done() -> None:
    done = []

    class Interrupt:
        def __index__(self):
            raise KeyboardInterrupt

    def program():
        done.append(1)
        try:
            [0][Interrupt()]
        finally:
            done.append(2)

    with pytest.raises(KeyboardInterrupt):
        by_machine(program)
    assert done == [1, 2]


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_other_versions_of_python(version: str) -> None:
    """The interpreter needs no torch, so that any Python on the machine can run it."""
    command = [f"python{version}", "-m", "tests.capture.own.python_programs", "0", "200"]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={"PYTHONPATH": "src:.", "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=200,
        )
    except FileNotFoundError:
        pytest.skip(f"there is no python{version}")
    if "programs," not in done.stdout:
        pytest.skip(f"python{version} does not run: {done.stderr[-200:]}")
    assert f"200 programs, 0 differ {version}" in done.stdout, done.stdout[-3000:]
    assert "object after object end" in done.stdout, done.stdout[-3000:]


def test_what_is_seen_of_a_program() -> None:
    text = PRELUDE + "def f(x, y):\n    note(x)\n    return x + y\n"
    (result, args, log, closed, count), *_ = observed(text, lambda function, args: function(*args))
    assert (result, args, log, closed, count) == ("3", "(1, 2)", ["(1,)"], 0, 0)
