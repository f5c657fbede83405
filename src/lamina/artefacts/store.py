"""The stored calls of one callable: entries of the cache that fresh processes run without capture and compiler.

An entry holds a driver's facts and program (``driver.json``) and its graphs' host programs and kernels. It is found by
what is compiled and by all that decides how: the versions of Lamina, torch and Python, the machine, the options. Then
every fact is asked of the call that is to be made; what does not hold is not used.
"""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch

from lamina.artefacts.code import code_digest
from lamina.artefacts.constants import Unstorable
from lamina.artefacts.documents import Stored, written_driver
from lamina.artefacts.kernels import Files
from lamina.artefacts.kind import kind_of_process
from lamina.artefacts.programs import Compile, Here, made_again, written_program
from lamina.base.decision import Decision
from lamina.base.recovery import brief
from lamina.capture.frame_reasons import LOADED, NOT_STORED, STORED, STORED_FOR_OTHERS
from lamina.capture.own.reuse.driver import Driver
from lamina.capture.own.reuse.facts import Fact
from lamina.options import Options
from lamina.record import Record
from lamina.runtime.cache import Cache, Entry, digest

__all__ = ["Store", "identity", "is_stored"]

_DOCUMENT = "driver.json"
_MOST = 16
"""Entries that other processes have stored of one callable, as many as a process looks at."""
_KEPT = 16
"""Entries that one process stores of a callable: each length of a generation is a call of its own."""


def is_stored(options: Options) -> bool:
    """Whether calls compiled with ``options`` are stored: not those that somebody wants to see compiled."""
    usual = Options()
    names = ("mode", "rules", "passes", "freeze", "verify", "dump_dir", "report", "expect_matches", "logs", "debug")
    return options.cache and all(getattr(options, name) == getattr(usual, name) for name in names)


class Store:
    """What is stored of the calls of ``target``; ``compile`` compiles what a stored graph lacks.

    ``own`` are the notes of those that this process has stored or used, with the entries that hold them; ``refused``
    says why others are not stored, the sentence of each reason.
    """

    def __init__(self, target: Any, options: Options, cache: Cache, record: Record, compile: Compile) -> None:
        self.target, self.options, self.cache, self.record, self.compile = target, options, cache, record, compile
        self.subject = (str(getattr(target, "__name__", type(target).__name__)),)
        self.prefix = digest("calls", kind_of_process(), repr(options.key()), *identity(target))[:40]
        self.waiting: list[Driver] = []
        self.refused: dict[str, str] = {}
        self.own: dict[str, str] = {}
        self.dynamic: bool | None = None
        self._kept: weakref.WeakKeyDictionary[Driver, str] = weakref.WeakKeyDictionary()
        self._candidates: list[tuple[str, str, Stored, Files]] | None = None
        self._told: set[str] = set()

    def found(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Driver, Callable[[], Any]] | None:
        """The driver that is stored for a call in the ordinary state, and what makes the call; None if there is none.

        That gives a ``Miss`` where a graph fails before anything is written.
        """
        if self._candidates is None:
            self._candidates = self._listed()
        for candidate in tuple(self._candidates):
            name, key, stored, files = candidate
            try:
                values = stored.values(args, kwargs)
            except Exception:  # a place is not there
                continue
            if isinstance(values, Fact):
                self._tell("differs", Decision("capture", self.subject, False, STORED_FOR_OTHERS(fact=values)))
                continue
            with contextlib.suppress(ValueError):  # another thread has it
                self._candidates.remove(candidate)
            with self._harmless(key):
                here = Here(self.compile, self.record)
                graphs = [made_again(text, files, here) for text in stored.document["graphs"]]
                driver = stored.driver(graphs)
                self.own[name] = key
                self._tell(key, Decision("capture", self.subject, True, LOADED(count=stored.count)))
                run = partial(driver.run, args, kwargs) if driver.decides else driver.runs_with(values)
                return driver, run
        return None

    @contextlib.contextmanager
    def _harmless(self, key: str) -> Any:
        """What is stored under ``key`` and cannot be made is removed; the call is made as if it were not there."""
        try:
            yield
        except Exception as error:
            self.cache.evict(key, f"the stored calls cannot be made: {brief(error)}")

    def _notes(self) -> dict[str, str]:
        """The notes of the cache that name stored calls, and the entries that hold those."""
        notes = {name: self.cache.note(name) for name in self.cache.notes_of(f"{self.prefix}.")}
        return {name: str(note.get("entry")) for name, note in notes.items() if note is not None}

    def _listed(self) -> list[tuple[str, str, Stored, Files]]:
        found = []
        others = {name: key for name, key in self._notes().items() if name not in self.own}
        for name, key in (*self.own.items(), *[*others.items()][:_MOST]):
            entry = self.cache.get(key)
            if isinstance(entry, Entry):
                with self._harmless(entry.key), contextlib.suppress(LookupError):  # of a module that is not loaded
                    stored = Stored(json.loads(entry.read(_DOCUMENT)), self.target)
                    if any((self.cache.note(note) or {}).get("eager") for note in stored.document["verdicts"]):
                        self.cache.evict(entry.key, "eager was found to be faster than one of its graphs")
                    else:
                        found.append((name, entry.key, stored, Files(entry)))
        return found

    # Storing.

    def wait(self, driver: Driver) -> None:
        """``driver`` is to be stored, once its graphs have what their first calls compile."""
        if len(self.own) + len(self.waiting) < _KEPT:
            self.waiting.append(driver)
        else:
            self._refuse(f"{_KEPT} of them are stored already")

    def left(self) -> None:
        """A call was made of which nothing can be stored."""
        self._refuse("it is interpreted each time")

    def keep(self, again: bool = False) -> None:
        """Store the drivers that wait; what cannot be stored is noted with the reason.

        With ``again`` those that are stored already, too, with what was compiled since: other backwards.
        """
        waiting, self.waiting = [*(self._kept if again else ()), *self.waiting], []
        for driver in waiting:
            try:
                self._keep(driver)
            except Exception as error:
                self.own.pop(self._kept.pop(driver, ""), None)  # eager runs a graph of it by now, say
                self._refuse(str(error) if isinstance(error, Unstorable) else brief(error))

    def _keep(self, driver: Driver) -> None:
        files, graphs = Files(), list[Callable[..., Any]]()
        document = written_driver(driver, self.target, graphs, driver.views)
        document["graphs"] = [written_program(run, files) for run in graphs]
        document["verdicts"] = files.verdicts
        text = json.dumps(document)
        key = digest("stored", self.prefix, text)

        def build(folder: Path) -> Mapping[str, Any]:
            files.write(folder)
            (folder / _DOCUMENT).write_text(text)
            return {"kind": "calls", "of": self.subject[0]}

        self.cache.put(key, build)
        facts = digest(json.dumps([document["rows"], document["objects"]]))[:24]  # one entry for equal facts
        name = f"{self.prefix}.{facts}"
        self.cache.write_note(name, {"entry": key})
        self.own[name] = key
        self._kept[driver] = name
        self._tell(key, Decision("capture", self.subject, True, STORED(count=len(graphs))))

    def _refuse(self, why: str) -> None:
        if why not in self.refused:
            reason = NOT_STORED(why=why)
            self.refused[why] = str(reason)
            self._tell(why, Decision("capture", self.subject, False, reason))

    def _tell(self, name: str, decision: Decision) -> None:
        if name not in self._told:
            self._told.add(name)
            self.record.note("", decision.kind, decision)


def identity(target: Any) -> tuple[str, ...]:
    """What tells a callable from others before anything of it is looked at: its name, and its code where it has one."""
    if isinstance(target, MethodType):
        return ("method", *identity(target.__func__), *_class(type(target.__self__)))
    if isinstance(target, FunctionType):
        return ("function", target.__module__ or "", target.__qualname__, code_digest(target.__code__))
    return ("object", *_class(type(target)))


def _class(kind: type) -> tuple[str, ...]:
    forward = vars(kind).get("forward") if issubclass(kind, torch.nn.Module) else None
    code = code_digest(forward.__code__) if type(forward) is FunctionType else ""
    return kind.__module__, kind.__qualname__, code
