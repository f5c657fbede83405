"""What a program asks by its own code is asked as often as by eager, and what changes between calls is noticed."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from lamina.capture.own.callable import interpreted_callable
from lamina.record import Record
from tests.capture.own.changing_programs import Memory
from tests.capture.own.machines import MACHINES

BEGIN = """
import abc, inspect, torch
from functools import lru_cache
log = []
"""
READER = """
class Other: pass
class Abstract(abc.ABC): pass
class Asked:
    def __getattribute__(self, name):
        log.append(name)
        return super().__getattribute__(name)
asked = Asked(); asked.k = 2
"""
DRAWN = """
def values(*given):
    for value in given:
        log.append(value)
        yield value
"""
ANNOTATED = """
def annotated(x: "int") -> "a": pass
def program(x): return x * len(str(inspect.signature(annotated).return_annotation))
"""
PROGRAMS: dict[str, tuple[str, ...]] = {
    "a method for missing keys": (
        "class Kept(dict): pass\nkept = Kept()\ndef program(x):\n"
        "    try: return x * kept['k']\n    except KeyError: return x - 1",
        "Kept.__missing__ = lambda self, key: 5", "del Kept.__missing__",
    ),
    "a class that is told": (
        READER + "def program(x): return x * (2 if isinstance(asked, Other) else 3)",
        "pass", "Asked.__getattribute__ = lambda s, n: Other if n == '__class__' else object.__getattribute__(s, n)",
    ),
    "a class among abstract ones": (
        READER + "def program(x): return x * (2 if isinstance(asked, (Other, Abstract)) else 3) * asked.k",
        "pass", "Abstract.register(Asked)",
    ),
    "no cache": (
        "@lru_cache(0)\ndef f(n): log.append(n); return n\nK = 1\ndef program(x): return x * f(2) + K",
        "K = 2", "K = 1", "K = 3",
    ),
    "a small cache": (
        "@lru_cache(1)\ndef f(n): log.append(n); return n\nK = 1\ndef program(x): return x * f(2) + f(3) + K",
        "K = 2", "K = 1", "K = 3",
    ),
    "a cache in another grad mode": (
        "w = torch.ones(3, requires_grad=True)\n@lru_cache\ndef f(): return w * 2\ndef program(x):\n"
        "    with torch.no_grad(): kept = f()\n    return x * kept",
        "pass", "f.cache_clear()", "pass",
    ),
    "a cache and what its function changes": (
        "count = 0\n@lru_cache\ndef f():\n    global count\n    count += 1\n    return 2\n"
        "def program(x):\n    before = count\n    return x * f() + 10 * before + count",
        "count = 0", "pass", "f.cache_clear()", "f.cache_clear()", "count = 0; f.cache_clear()",
    ),
    "a cache after a write": (
        "n = [0]\n@lru_cache\ndef f(): return n[0]\ndef program(x):\n    n[0] = n[0] + 1\n    return x * f()",
        "pass", "f.cache_clear()", "f.cache_clear(); n[0] = 0",
    ),
    "a cache of equal keys": (
        "@lru_cache\ndef f(n): log.append(type(n)); return n\nK = 1.0\ndef program(x): return x.long() * f(K)",
        "K = True", "K = 1", "f.cache_clear()", "K = 1.0", "f.cache_clear(); K = True",
    ),
    "a cache that forgets": (
        "@lru_cache(2)\ndef f(a, k=1): log.append((a, k)); return a * k\ndef program(x): return x * f(2, k=3) + f(a=1)",
        "f(5)", "f(6); f(7)", "f.cache_clear()",
    ),
    "a cache of numbers that equal nothing": (
        "@lru_cache\ndef f(a): log.append(a); return 2\nN = float('nan')\ndef program(x): return x * f(N)",
        "pass", "N = float('nan')", "N = 1.0", "N = -0.0",
    ),
    "a way to find members": (
        "import enum\nclass Kind(enum.Enum): A = 1; B = 2\ndef program(x): return x * Kind(1).value",
        "Kind.__new__ = lambda kind, value: Kind.B", "pass",
    ),
    "a write to what has no dictionary": (
        "class Slotted: __slots__ = ('k',)\nslotted = Slotted(); slotted.k = 2\ndef program(x):\n"
        "    try: slotted.k = torch.ones(3)\n    except AttributeError as error: log.append(str(error))\n"
        "    return x * slotted.k", "Slotted.k = 7", "pass",
    ),
    "annotations": (ANNOTATED, "annotated.__annotations__['return'] = 'bbb'", "annotated.__annotations__ = {}"),
    "values that are not compared": (
        DRAWN + "def program(x):\n    try: return x * max(values(1, 'a', 3))\n    except TypeError: return x - 1",
        "pass",
    ),
    "values that are not added": (
        DRAWN + "def program(x):\n    try: return x * sum(v for v in values(1, None, 3))\n"
        "    except TypeError: return x - 1", "pass",
    ),
    "values that are not hashed": (
        DRAWN + "def program(x):\n    try: return x * len(set(values(1, slice(2), 3)))\n"
        "    except TypeError: return x - 1", "pass",
    ),
}  # fmt: skip
RAISING = """
bad = False
@lru_cache
def f():
    log.append(bad)
    if bad: raise ValueError
    return 2
def program(x):
    try: return x * f()
    except ValueError: return x - 1
"""
PROGRAMS["a cache whose function raises"] = (
    RAISING, "pass", "bad = True; f.cache_clear()", "pass", "bad = False", "pass",
)  # fmt: skip


def _world(text: str) -> ModuleType:
    module = ModuleType("world")
    sys.modules["world"] = module
    exec(BEGIN + text, vars(module))
    return module


def _done(world: Any, call: Any, change: str) -> Any:
    exec(change, vars(world))
    found = call(torch.arange(3.0) + 1)
    return found.tolist(), found.dtype, found.requires_grad, [*map(repr, world.log)]


def _compiled(program: Any, **given: Any) -> Any:
    return interpreted_callable(program, backend_callable=lambda gm, fakes: gm.forward, record=Record(), **given)


@pytest.fixture(autouse=True)
def _world_of_others(monkeypatch):
    monkeypatch.setitem(sys.modules, "world", ModuleType("world"))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_calls_of_one_process(program: str, machine: str) -> None:
    text, *changes = PROGRAMS[program]
    eager, own = (), ()
    for compiled in (False, True):
        world = _world(text)
        call = _compiled(world.program, machine=MACHINES[machine]) if compiled else world.program
        done = [_done(world, call, change) for change in ("pass", *changes)]
        eager, own = (eager, done) if compiled else (done, own)
    assert own == eager


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("program", PROGRAMS)
def test_stored_calls(program: str) -> None:
    text, *changes = PROGRAMS[program]
    steps, memory = ("pass", *changes), Memory()
    for called_before in (True, False):
        for count, step in enumerate(steps):
            found = []
            for compiled in (False, True):
                world = _world(text)
                for change in steps[:count]:
                    _done(world, world.program if called_before else lambda x: x, change)
                call = _compiled(world.program, store=memory.of) if compiled else world.program
                found.append([_done(world, call, again) for again in (step, "pass")])
                if compiled:
                    memory.keep()
            assert found[1] == found[0], (step, called_before)
