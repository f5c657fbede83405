"""Reduces a program that shows a difference: statements, arguments, calls and sizes go while the difference stays."""

from __future__ import annotations

import ast
import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lamina.errors import BadArgument
from lamina.testing.fuzz.pool import Answer, Job, Worker, signature

__all__ = ["Minified", "minify", "minify_file", "reduce"]

_BODIES = ("body", "orelse", "finalbody")
MOST_TRIALS = 1000
"""Programs that a reduction runs at most."""
SHORTEST = 10.0
"""Seconds that every trial is given."""


FOOTER = """
if __name__ == "__main__":
    from lamina.testing.fuzz import report

    report(__file__)
"""
"""Makes the file of a program say what differs when it is run."""


@dataclass(frozen=True, slots=True)
class Minified:
    """The reduced program and what it shows."""

    source: str
    answer: Answer
    trials: int

    @property
    def lines(self) -> int:
        """Lines of the program that are not empty, without those that make the file run itself."""
        return sum(bool(line.strip()) for line in self.source.removesuffix(FOOTER).splitlines())


def minify_file(path: str | Path, target: str = "lamina", *, progress: Callable[[str], None] | None = None) -> Minified:
    """Reduce the program in a file. Raises ``BadArgument`` for a file that is no program or shows no difference."""
    try:
        source = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise BadArgument(f"{path} cannot be read: {problem}", remedy="name a Python file") from None
    return minify(source, target, progress=progress)


def minify(
    source: str, target: str = "lamina", *, worker: Worker | None = None, progress: Callable[[str], None] | None = None
) -> Minified:
    """The smallest program found that shows the same kind of difference with this compile function."""
    try:
        tree = ast.parse(source)
    except SyntaxError as problem:
        raise BadArgument(f"the program is not Python: {problem}", remedy="run it with Python first") from None
    if not any(isinstance(node, ast.FunctionDef) and node.name == "program" for node in tree.body):
        raise BadArgument(
            "the file has no function 'program'",
            remedy="define program(compile): it compiles functions with compile(function) and yields what they return",
        )
    if worker is None:
        with Worker() as own:
            return minify(source, target, worker=own, progress=progress)
    first = worker.ask(Job(target, source))
    if first.verdict.ok:
        raise BadArgument(
            f"nothing differs from eager with {target!r}", remedy="name the compile function that shows it, --compile"
        )
    return _reduced(first, target, worker, progress or (lambda line: None))


def _reduced(first: Answer, target: str, worker: Worker, progress: Callable[[str], None]) -> Minified:
    want = signature(first)
    last = first
    # A smaller program takes no longer, unless it is another program.
    worker.seconds = min(worker.seconds, max(SHORTEST, 10 * first.seconds))
    trials = 0

    def holds(source: str) -> bool:
        nonlocal last, trials
        trials += 1
        answer = worker.ask(Job(target, source, want=want, calm=not first.verdict.eager_raised))
        if signature(answer) != want:
            return False
        last = answer
        progress(f"{trials} trials, {len(source.splitlines())} lines")
        return True

    source = _imported(reduce(first.source, holds))
    return Minified(source + FOOTER, last, trials)


def reduce(source: str, holds: Callable[[str], bool], most: int = MOST_TRIALS) -> str:
    """The text, reduced while ``holds`` says that what is looked for is still there; at most ``most`` questions."""
    current = ast.parse(source)
    seen = {ast.unparse(current)}
    changed = True
    while changed and len(seen) <= most:
        changed = False
        changes = list(_changes(current))
        at = 0
        while at < len(changes) and len(seen) <= most:
            candidate = copy.deepcopy(current)
            text = _text(candidate) if changes[at](candidate) else None
            at += 1
            if text is None or text in seen:
                continue
            seen.add(text)
            if holds(text + "\n"):
                # What was tried of the larger text is not tried again before the end of this round.
                at -= 1
                current, changed = ast.parse(text), True
                changes = list(_changes(current))
    return ast.unparse(current) + "\n"


def _text(tree: ast.Module) -> str | None:
    try:
        text = ast.unparse(ast.fix_missing_locations(tree))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            compile(text, "<candidate>", "exec")
    except (SyntaxError, ValueError):
        return None
    return text


def _imported(source: str) -> str:
    """The text without the imports of names that it does not use."""
    tree = ast.parse(source)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    body: list[ast.stmt] = []
    for statement in tree.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            names = [n for n in statement.names if (n.asname or n.name).split(".")[0] in used]
            if not names:
                continue
            statement.names = names
        body.append(statement)
    tree.body = body
    return ast.unparse(tree) + "\n"


Change = Callable[[ast.Module], bool]
"""Changes a copy of the tree in place; False if there is nothing to change."""


def _changes(tree: ast.Module) -> Iterator[Change]:
    """Changes to try, the largest first."""
    yield from _statements(tree)
    yield from _parameters(tree)
    yield from _expressions(tree)


def _bodies(tree: ast.Module) -> list[tuple[int, str]]:
    """Every list of statements, by the number of its node in ``ast.walk`` and its field."""
    return [
        (number, name)
        for number, node in enumerate(ast.walk(tree))
        for name in _BODIES
        if isinstance(getattr(node, name, None), list)
    ]


def _node(tree: ast.Module, number: int) -> ast.AST:
    return next(itertools.islice(ast.walk(tree), number, None))


def _statements(tree: ast.Module) -> Iterator[Change]:
    for number, name in _bodies(tree):
        count = len(getattr(_node(tree, number), name))
        size = count
        while size:
            for start in range(count - size, -1, -max(1, size // 2)):
                yield lambda t, n=number, f=name, a=start, s=size: _cut(t, n, f, a, s)  # type: ignore[misc]
            size //= 2
        for at in range(count):
            yield lambda t, n=number, f=name, a=at: _unwrap(t, n, f, a)  # type: ignore[misc]


def _cut(tree: ast.Module, number: int, name: str, start: int, size: int) -> bool:
    node = _node(tree, number)
    body = getattr(node, name)
    if any(isinstance(s, ast.FunctionDef) and s.name == "program" for s in body[start : start + size]):
        return False
    del body[start : start + size]
    if not body and name == "body":
        if isinstance(node, (ast.With, ast.For, ast.If, ast.ClassDef, ast.Module)):
            return False  # the statement goes as a whole
        body.append(ast.Pass())
    return True


def _unwrap(tree: ast.Module, number: int, name: str, at: int) -> bool:
    """Replace a compound statement by what it holds."""
    body = getattr(_node(tree, number), name)
    statement = body[at]
    if not isinstance(statement, (ast.With, ast.For, ast.If)):
        return False
    body[at : at + 1] = statement.body
    return True


def _parameters(tree: ast.Module) -> Iterator[Change]:
    for number, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.FunctionDef) and node.name != "program":
            for at, argument in enumerate(node.args.args):
                if argument.arg != "self":
                    yield lambda t, n=number, a=at: _drop_parameter(t, n, a)  # type: ignore[misc]


def _drop_parameter(tree: ast.Module, number: int, at: int) -> bool:
    """Remove a parameter, and the argument from calls that have as many arguments."""
    function = _node(tree, number)
    assert isinstance(function, ast.FunctionDef)
    names = [a.arg for a in function.args.args]
    method = names[0] == "self"
    count, position = len(names) - method, at - method
    del function.args.args[at]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        through = isinstance(node.func, ast.Name) and node.func.id == "attempt"
        if len(node.args) == count + through and (through or isinstance(node.func, ast.Name)):
            del node.args[position + through]
    return True


def _expressions(tree: ast.Module) -> Iterator[Change]:
    for number, node in enumerate(ast.walk(tree)):
        for index in range(len(_smaller(node))):
            yield lambda t, n=number, i=index: _replace(t, n, i)  # type: ignore[misc]


def _replace(tree: ast.Module, number: int, index: int) -> bool:
    target = _node(tree, number)
    made = _smaller(target)[index]
    if made is target:
        return True
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is target:
                setattr(parent, name, made)
                return True
            if isinstance(value, list):
                for at, item in enumerate(value):
                    if item is target:
                        value[at] = made
                        return True
    return False


def _smaller(node: ast.AST) -> list[ast.AST]:
    """Expressions that may stand for this one."""
    if not isinstance(node, ast.expr) or isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
        return []
    if isinstance(node, ast.Constant):
        return _smaller_constant(node)
    if isinstance(node, (ast.Tuple, ast.List)):
        return [
            *(_without(node, "elts", n) for n in range(len(node.elts))),
            *(node.elts if len(node.elts) == 1 else []),
        ]
    if isinstance(node, ast.Call):
        parts: list[ast.AST] = [_without(node, "keywords", n) for n in range(len(node.keywords))]
        if isinstance(node.func, ast.Name) and node.func.id == "attempt":
            return [ast.Call(node.args[0], node.args[1:], node.keywords)] if node.args else []
        owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return [*owner, *node.args, *parts, *(_without(node, "args", n) for n in range(len(node.args)))]
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    if isinstance(node, ast.Subscript):
        return [node.value]
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.Compare):
        return [node.left]
    return []


def _without(node: ast.AST, name: str, at: int) -> ast.AST:
    made = copy.copy(node)
    setattr(made, name, [item for n, item in enumerate(getattr(node, name)) if n != at])
    return made


def _smaller_constant(node: ast.Constant) -> list[ast.AST]:
    value = node.value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return []
    smaller = [0, 1, 2, value // 2] if isinstance(value, int) else [1.0, 2.0]
    return [ast.Constant(v) for v in dict.fromkeys(smaller) if abs(v) < abs(value)]
