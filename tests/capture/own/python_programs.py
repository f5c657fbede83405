"""Random programs of plain Python, run by CPython and by the interpreter: all that can be seen of them is compared."""

from __future__ import annotations

import random
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from lamina.capture.own.machine import Machine
from lamina.capture.own.world import PlainWorld

PRELUDE = """
import contextlib, functools, sys, collections
LOG = []
COUNT = 0
def note(*values):
    LOG.append(repr(values))
    return values[-1] if values else None
def appended(to, value):
    if type(to) is list and len(to) > 99: raise ValueError("a list that grows while one goes over it")
    return to.append(value)
class Box:
    kind = "box"
    __match_args__ = ("a", "b")
    def __init__(self, a, b=2):
        self.a, self.b = a, b
    def __repr__(self): return f"{type(self).__name__}({self.__dict__!r})"
    def __add__(self, other):
        note("add", self)
        if not isinstance(other, Box): return NotImplemented
        return type(self)(self.a, other.b)
    def __iter__(self):
        yield self.a
        yield self.b
    def __bool__(self): note("bool"); return bool(self.a)
    def __len__(self): return 2
    def __getitem__(self, i): return (self.a, self.b)[i]
    def __eq__(self, o): return isinstance(o, Box) and self.a == o.a
    def __hash__(self): return 7
    def __call__(self, *a, k=1, **kw): note("call", a, k, sorted(kw)); return (self.a, k)
    def __getattr__(self, name):
        note("getattr", name)
        if name.startswith("z"): return len(name)
        raise AttributeError(name)
    @property
    def both(self): return (self.a, self.b)
    @staticmethod
    def make(x): return Box(x)
    @classmethod
    def named(cls, x=3): return cls(x)
class Sub(Box):
    kind = "sub"
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        self.c = 3
    def __add__(self, other):
        found = super().__add__(other)
        return found
class Mgr:
    def __init__(self, swallow): self.swallow = swallow
    def __enter__(self): note("enter"); return self.swallow
    def __exit__(self, kind, error, tb):
        note("exit", kind, str(error), tb is None or tb.tb_lineno > 0)
        return self.swallow
@contextlib.contextmanager
def managed(v):
    note("before", v)
    try:
        yield v
    except ValueError as e:
        note("managed", str(e))
    finally:
        note("after", sys.exc_info()[0])
def pos(a, b=5, /, c=6, *rest, d=7, **more): return (a, b, c, rest, d, sorted(more.items(), key=str))
def counter(n):
    total = 0
    for i in range(n):
        got = yield i
        if got: total += got
    return total
"""

_ATOMS = ("0", "1", "2", "-3", "2.5", "True", "None", "'ab'", "''", "[1, 2]", "(1, 'x')", "{'k': 1}", "{1, 2}", "COUNT")
_EXCEPTIONS = ("ValueError", "KeyError", "TypeError", "ZeroDivisionError", "(KeyError, IndexError)", "Exception")
_BINARY = ("+", "-", "*", "/", "//", "%", "&", "|", "^", "<<", "**", "@")
_COMPARE = ("<", "<=", "==", "!=", ">", ">=", "is", "is not", "in", "not in")


CLOSED = "('closed',)"
"""Noted when an abandoned generator ends, which an exception in CPython can delay by keeping its frame."""
MOST_NOTES = 250
"""Lines of the log of a program that ends by itself."""


class Program:
    """Writes a random function ``f(x, y)`` with what it needs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.names = ["x", "y"]
        self.fresh = 0
        self.loops = 0
        self.within_generator = False

    def text(self) -> str:
        self.block("def f(x, y):", self.random.randint(3, 9))
        self.line(1, f"return ({self.expression(1)}, {', '.join(self.names)})")
        return PRELUDE + "\n".join(self.lines) + "\n"

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def block(self, head: str, count: int, depth: int = 0) -> None:
        self.line(depth, head)
        for _ in range(count):
            self.statement(depth + 1)

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def new(self) -> str:
        self.fresh += 1
        return f"v{self.fresh}"

    def name(self) -> str:
        return self.random.choice(self.names)

    def expression(self, depth: int = 0) -> str:
        if depth > 2 or self.random.random() < 0.45:
            return self.pick(self.name(), self.name(), self.pick(*_ATOMS))
        return getattr(self, "e_" + self.pick(*_EXPRESSIONS))(depth + 1)

    def e_binary(self, d: int) -> str:
        right = self.pick("1", "2", "3") if (op := self.pick(*_BINARY)) in ("<<", "**", "*") else self.expression(d)
        return f"({self.expression(d)} {op} {right})"

    def e_compare(self, d: int) -> str:
        chain = f" {self.pick(*_COMPARE)} {self.expression(d)}" if self.random.random() < 0.2 else ""
        return f"({self.expression(d)} {self.pick(*_COMPARE)} {self.expression(d)}{chain})"

    def e_boolean(self, d: int) -> str:
        return f"({self.expression(d)} {self.pick('and', 'or')} {self.expression(d)})"

    def e_unary(self, d: int) -> str:
        return f"({self.pick('not ', '-', '+', '~')}{self.expression(d)})"

    def e_conditional(self, d: int) -> str:
        return f"({self.expression(d)} if {self.expression(d)} else {self.expression(d)})"

    def e_container(self, d: int) -> str:
        a, b = self.expression(d), self.expression(d)
        return self.pick(
            f"[{a}, {b}]",
            f"({a}, {b})",
            f"{{'p': {a}, 'q': {b}}}",
            f"[*{a}, {b}]",
            f"{{**{a}, 'r': {b}}}",
            f"{{{a}, {b}}}",
            f"{{*{a}, {b}}}",
            f"({a}, *{b})",
        )

    def e_subscript(self, d: int) -> str:
        key = self.pick(self.expression(d), "0", "-1", "'k'", "1:", ":-1", "::2")
        return f"{self.expression(d)}[{key}]"

    def e_call(self, d: int) -> str:
        a, b = self.expression(d), self.expression(d)
        return self.pick(
            f"note({a})",
            f"len({a})",
            f"str({a})",
            f"pos({a}, {b})",
            f"pos({a}, c={b}, e=1)",
            f"pos(*{a})",
            f"pos({a}, **{{'d': {b}}})",
            f"pos({a}, **{b})",
            f"Box({a}, {b})",
            f"Sub({a}, b={b})",
            f"Box({a})({b}, k=2)",
            f"Box.make({a}).both",
            f"Sub.named({a}).kind",
            f"isinstance({a}, {self.pick('int', 'Box', '(str, list)')})",
            f"sorted({a}, key=lambda t: str(t))",
            f"list(map(lambda t: (t, {b}), {a}))",
            f"getattr({a}, 'a', {b})",
            f"sum({a} for _ in range(2))",
            f"list(counter({self.pick(0, 2, 3)}))",
            f"functools.partial(pos, {a})(c={b})",
            f"Box({a}).zed",
            f"Box({a}).a",
            f"abs({a})",
            f"int({a})",
            f"dict(a={a}, b={b})",
            f"appended({a}, {b})",
            f"{a}.get({b})",
            f"{a}.upper()",
            "pos()",
            f"pos({a}, a=1)",
            f"Box({a}) + Sub({b})",
            "sys.exc_info()[0]",
            "sorted(locals())[:2]",
            f"next(iter({a}))",
            f"list(zip({a}, {b}))",
            f"(lambda q, *r, s={a}: (q, r, s))({b}, 1)",
        )

    def e_format(self, d: int) -> str:
        a = self.expression(d + 2).replace("'", '"')
        if "{" in a or "[" in a or ":" in a or "!" in a or "\\" in a:
            a = self.name()
        return f"f'<{{{a}{self.pick('', '!r', '!s', '!a')}{self.pick('', '', ':>5', ':d')}}}>'"

    def e_comprehension(self, d: int) -> str:
        name = self.new()
        self.names.append(name)
        a, condition = self.expression(d), self.pick("", f" if {self.expression(d)}")
        inner = f" for {name}b in ({name}, {self.name()})" if self.random.random() < 0.2 else ""
        self.names.remove(name)
        source = self.pick(self.expression(d), "range(3)", "(1, 2)", "Box(1)", "{'k': 1}.items()")
        tail = f"for {name} in {source}{condition}{inner}"
        return self.pick(
            f"[{a} {tail}]", f"{{{a} {tail}}}", f"{{str({name}): {a} {tail}}}", f"list({a} {tail})", f"any({a} {tail})"
        )

    def e_walrus(self, d: int) -> str:
        name = self.name()
        return f"({name} := {self.expression(d)})" if self.within_generator is False else self.expression(d)

    def statement(self, depth: int) -> None:
        kinds = _SIMPLE if depth > 4 else (*_SIMPLE, *_COMPOUND)
        write = getattr(self, "s_" + self.pick(*kinds))
        if self.random.random() > (0.7 if depth == 1 else 0.2):
            write(depth)
            return
        self.line(depth, "try:")
        write(depth + 1)
        self.line(depth, "except Exception as error:")
        self.line(depth + 1, "note(type(error), error.args, error.__traceback__.tb_lineno)")

    def assigned(self) -> str:
        if self.random.random() < 0.5:
            return self.name()
        return self.new()

    def keep(self, name: str, depth: int) -> None:
        if name not in self.names and (depth == 1 or self.random.random() < 0.3):
            self.names.append(name)

    def s_assign(self, d: int) -> None:
        name = self.assigned()
        self.line(d, f"{name} = {self.expression()}")
        self.keep(name, d)

    def s_augment(self, d: int) -> None:
        self.line(d, f"{self.name()} {self.pick('+', '-', '*', '|', '//')}= {self.pick('1', '2', '[3]', self.name())}")

    def s_unpack(self, d: int) -> None:
        a, b = self.new(), self.new()
        target = self.pick(f"{a}, {b}", f"{a}, *{b}", f"[{a}, {b}]", f"*{a}, {b}")
        self.line(d, f"{target} = {self.pick(self.expression(), '(1, 2)', 'Box(1)', '[3, 4]')}")
        if d == 1:
            self.names += [a, b]

    def s_effect(self, d: int) -> None:
        self.line(
            d,
            self.pick(
                f"note({self.expression()})",
                self.expression(),
                f"LOG.append({self.expression()!r})",
                "global_step()" if False else f"note({self.name()}, {self.name()})",
            ),
        )

    def s_store(self, d: int) -> None:
        a = self.expression()
        n = self.name()
        self.line(
            d,
            self.pick(
                f"{n}[{self.pick('0', repr('k'), '1:')}] = {a}",
                f"{n}.a = {a}",
                f"del {n}[0]",
                "LOG[:] = LOG[-50:]",
                f"{n}['k'] += 1",
                f"del {n}.a",
            ),
        )

    def s_delete(self, d: int) -> None:
        name = self.new()
        self.line(d, f"{name} = {self.expression()}")
        if self.random.random() < 0.7:
            self.line(d, f"del {name}")
        self.line(d, f"note('name', {name})")

    def s_raise(self, d: int) -> None:
        kind = self.pick("ValueError", "KeyError", "IndexError", "RuntimeError")
        what = self.pick(
            f"raise {kind}({self.expression()})",
            f"raise {kind}",
            f"raise {kind}('c') from {self.pick('None', 'ValueError(1)')}",
            "raise",
            f"assert {self.expression()}, 'told'",
            f"raise {self.name()}",
        )
        self.line(d, f"if {self.expression()}: {what}")

    def s_return(self, d: int) -> None:
        self.line(d, f"if {self.expression()}: return {self.expression()}")

    def s_if(self, d: int) -> None:
        self.block(f"if {self.expression()}:", self.random.randint(1, 3), d)
        if self.random.random() < 0.5:
            self.block("else:", self.random.randint(1, 2), d)

    def s_for(self, d: int) -> None:
        name = self.new()
        self.loops += 1
        source = self.pick(
            "range(3)", self.expression(), "Box(1, 2)", "counter(3)", "enumerate((3, 4))", "{'a': 1}.items()"
        )
        self.block(f"for {name} in {source}:", self.random.randint(1, 3), d)
        self.line(d + 1, self.pick("pass", f"if {self.expression()}: break", f"if {self.expression()}: continue"))
        self.loops -= 1
        if self.random.random() < 0.3:
            self.block("else:", 1, d)

    def s_while(self, d: int) -> None:
        name = self.new()
        self.line(d, f"{name} = 0")
        self.line(d, f"while {name} < {self.pick(2, 3)} {self.pick('', 'and ' + self.expression())}:")
        self.line(d + 1, f"{name} += 1")
        for _ in range(self.random.randint(1, 2)):
            self.statement(d + 1)

    def s_try(self, d: int) -> None:
        self.block("try:", self.random.randint(1, 3), d)
        final = self.random.random()
        if final < 0.8:
            name = self.new()
            self.line(d, f"except {self.pick(*_EXCEPTIONS)} as {name}:")
            self.line(
                d + 1, f"note(type({name}), {name}.args, type({name}.__context__), {name}.__traceback__.tb_lineno)"
            )
            self.statement(d + 1)
            if self.random.random() < 0.2:
                self.line(d + 1, "raise")
            if self.random.random() < 0.3:
                self.block("else:", 1, d)
        if final > 0.6:
            self.block("finally:", 1, d)
            self.line(d + 1, "note('finally', sys.exc_info()[0])")

    def s_with(self, d: int) -> None:
        manager = self.pick(
            "Mgr(True)",
            "Mgr(False)",
            f"managed({self.expression()})",
            "contextlib.suppress(KeyError, TypeError)",
            "Mgr(0), managed(1)",
            self.name(),
        )
        self.block(
            f"with {manager}{self.pick('', ' as w')}:" if "," not in manager else f"with {manager}:",
            self.random.randint(1, 3),
            d,
        )

    def s_match(self, d: int) -> None:
        self.line(d, f"match {self.expression()}:")
        n = self.new()
        for pattern in self.random.sample(
            [
                "0 | 1",
                f"[{n}, *_]",
                f"({n}, 'x')",
                f"{{'k': {n}, **_r}}",
                f"Box({n}, b=2)",
                f"str({n})",
                f"int() as {n}",
                "[]",
                f"Box(a={n})",
                "None",
                f"[_, _] as {n} if {self.name()}",
                f"list({n})",
                f"Box(1, 2, {n})",
            ],
            self.random.randint(1, 3),
        ):
            self.line(d + 1, f"case {pattern}:")
            self.line(d + 2, f"note('case', {pattern!r})")
            self.statement(d + 2)

    def s_function(self, d: int) -> None:
        name, arg = self.new(), self.new()
        shared = self.name()
        names, self.names = self.names, [arg, *self.names]
        self.line(d, f"def {name}({arg}, k={self.expression()}):")
        if self.random.random() < 0.4:
            self.line(d + 1, f"nonlocal {shared}")
            self.line(d + 1, f"{shared} = {self.pick('1', arg, 'k')}")
            self.names = [arg]
        else:
            self.names = [arg, "k"]
        for _ in range(self.random.randint(1, 2)):
            self.statement(d + 1)
        self.line(d + 1, f"return {self.expression()}")
        self.names = names
        self.line(d, f"note({name}({self.expression()}))")

    def s_generator(self, d: int) -> None:
        name, arg = self.new(), self.new()
        names, self.names, before = self.names, [arg], self.within_generator
        self.within_generator = True
        self.line(d, f"def {name}({arg}):")
        self.line(d + 1, f"got = yield {self.expression()}")
        self.line(d + 1, "note('got', got)")
        self.line(d + 1, "try:")
        self.line(d + 2, self.pick(f"yield from ({arg}, 2)", "back = yield from counter(2); note(back)", "yield 3"))
        self.statement(d + 2)
        self.line(d + 1, f"except {self.pick(*_EXCEPTIONS)} as e:")
        self.line(d + 2, "note('in generator', str(e), sys.exc_info()[0])")
        self.line(d + 2, "yield 'caught'")
        self.line(d + 1, "finally:")
        self.line(d + 2, "note('closed')")
        self.line(d + 1, f"return {self.expression()}")
        self.names, self.within_generator = names, before
        g = self.new()
        self.line(d, f"{g} = {name}({self.expression()})")
        self.line(
            d,
            self.pick(
                f"note(list({g}))",
                f"note(next({g}), {g}.send(4)); {g}.close()",
                f"note(next({g}), next({g}), {g}.throw(KeyError('t')), list({g}))",
                f"note(next({g}), next({g})); {g}.throw(RuntimeError('thrown'))",
                f"note(type({g}).__name__, {g}.__name__); del {g}",
            ),
        )

    def s_class(self, d: int) -> None:
        name, base = self.new(), self.pick("Box", "Sub", "object")
        value = self.name()
        self.line(d, f"class {name}({base}):")
        self.line(d + 1, f"attr = {value}")
        self.line(d + 1, f"def method(self, q=3): return (__class__.__name__, {value}, q, self.attr)")
        self.line(d, f"note({name}.attr, {name}{'(1)' if base != 'object' else '()'}.method())")

    def s_globals(self, d: int) -> None:
        self.line(
            d,
            self.pick(
                "globals()['COUNT'] = COUNT + 1",
                "import math as mm; note(mm.floor(2.5))",
                "from collections import OrderedDict as OD, deque; note(OD(a=1), deque([1]))",
                "note(undefined_name)",
                "from math import nothing_there",
                "import no_such_module",
            ),
        )


_EXPRESSIONS = (
    "binary",
    "compare",
    "boolean",
    "unary",
    "conditional",
    "container",
    "subscript",
    "call",
    "call",
    "call",
    "format",
    "comprehension",
    "walrus",
)
_SIMPLE = (
    "assign",
    "assign",
    "assign",
    "augment",
    "unpack",
    "effect",
    "effect",
    "store",
    "delete",
    "raise",
    "return",
    "globals",
)
_COMPOUND = ("if", "for", "while", "try", "try", "with", "match", "function", "generator", "class")

ARGUMENTS = ("(1, 2)", "([1, 2], 'ab')", "(Box(0), {'k': 2})", "('x', None)", "(2.5, (1, 'x'))")


def _error(found: BaseException | None, file: str, seen: int = 0) -> Any:
    """Class, arguments, lines and chain of an exception."""
    if found is None or seen > 4:
        return None
    lines = [
        (entry.name, entry.lineno) for entry in traceback.extract_tb(found.__traceback__) if entry.filename == file
    ]
    return (
        type(found).__name__,
        repr(found.args),
        tuple(lines),
        found.__suppress_context__,
        _error(found.__cause__, file, seen + 1),
        _error(found.__context__, file, seen + 1),
    )


def observed(text: str, call: Callable[..., Any], file: str = "<program>") -> list[Any]:
    """All that can be seen of a program whose function ``f`` is called by ``call``."""
    space: dict[str, Any] = {"__name__": "program"}
    exec(compile(text, file, "exec"), space)
    seen: list[Any] = []
    for arguments in ARGUMENTS:
        args = eval(arguments, space)
        try:
            result: Any = repr(call(space["f"], args))
        except RecursionError:
            result = "RecursionError"
        except Exception as error:
            result = _error(error, file)
        log = [line for line in space["LOG"] if line != CLOSED]
        seen.append((result, _shown(args), log, len(space["LOG"]) - len(log), space["COUNT"]))
        space["LOG"].clear()
    return seen


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:
        return repr(error)


def by_python(function: Any, args: Any) -> Any:
    return function(*args)


def by_machine(function: Any, args: Any) -> Any:
    return Machine(PlainWorld()).run(function, args, {})


def difference(seed: int) -> str:
    """What differs between the two ways to run the program of ``seed``; "" if nothing does."""
    text = Program(seed).text()
    try:
        compile(text, "<program>", "exec")
    except SyntaxError:
        return ""
    expected, found = observed(text, by_python), observed(text, by_machine)
    endless = any(len(log) > MOST_NOTES for _, _, log, *_ in (*expected, *found))  # how deep Python recurses differs
    if endless or "0x" in repr(expected) or _told(expected) == _told(found):
        return ""
    wanted, got = next(pair for pair in zip(expected, found, strict=True) if _told(pair[0]) != _told(pair[1]))
    return f"{numbered(text)}\npython  {wanted}\nmachine {got}"


def _told(seen: Any) -> str:
    """What was seen, but for the line where a local name was not there.

    CPython 3.11 gives the line before, once it has joined the instruction with the one that came before it.
    """
    return re.sub(r"(UnboundLocalError\\*'>, [^)]*\),) \d+", r"\1", repr(seen))


def numbered(text: str) -> str:
    lines = list(enumerate(text.splitlines(), 1))[PRELUDE.count("\n") :]
    return "\n".join(f"{number:3} {line}" for number, line in lines)


def ends(by: Any) -> list[str]:
    """When objects end in a program that is run ``by`` a function: one of no name, and one that an exception held."""
    ended = []

    class Object:
        def __del__(self) -> None:
            ended.append("object")

    def program() -> None:
        Object()
        ended.append("after")
        kept = Object()
        try:
            raise ValueError(kept)
        except ValueError:
            pass
        del kept
        ended.append("end")

    by(program)
    return ended


def main() -> None:
    warnings.simplefilter("ignore")
    first, count = int(sys.argv[1]), int(sys.argv[2])
    shown = bad = 0
    for seed in range(first, first + count):
        told = difference(seed)
        bad += bool(told)
        if told and shown < int(sys.argv[3] if len(sys.argv) > 3 else 1):
            shown += 1
            print("seed", seed, told)
    print(*ends(lambda program: by_machine(program, ())))
    print(count, "programs,", bad, "differ", sys.version.split()[0])


if __name__ == "__main__":
    main()
