"""Budgets: how complex a function may be, how many numbers a package may rest on, what may grow with a process."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from tests.architecture.source import SourceFile, dotted, functions, sources

COMPLEX = {
    "src/lamina/aot/defined_gradients.py follow",
    "src/lamina/aot/function.py _backward_function",
    "src/lamina/aot/function.py run_backward",
    "src/lamina/capture/entry/torch_private.py _entry",
    "src/lamina/capture/entry/torch_private.py entry",
    "src/lamina/schedule/gpu_reductions.py columns",
}
"""Functions of more than 15 branches, which ruff counts: but for the last, what runs at each call, in one frame. Take
away from this list, do not add to it."""

CONSTANTS = {
    "aot": 20,
    "backends": 20,
    "base": 20,
    "capture": 30,
    "cli": 10,
    "codegen": 50,
    "eager_comparison": 20,
    "flex_attention": 10,
    "freezing": 10,
    "ir": 10,
    "library_algorithms": 30,
    "lower": 22,
    "masked_rows": 10,
    "ops": 15,
    "rewrite": 50,
    "runtime": 50,
    "schedule": 280,
    "testing": 30,
    "tuner": 40,
    "tuning": 30,
}
"""Numbers with a name, by package: thresholds and sizes that somebody chose. Each says what it is and where it was
measured. In tens; where a package needs more, it is time to look which of them could be derived."""

NEW = 30
"""The same of a package that is not listed yet."""

CONTAINERS = re.compile(r"(\w+\.)*(dict|set|list|deque|defaultdict|OrderedDict|Weak\w+)(\[.*\])?\(\)|\{\}|\[\]")
CACHES = ("cache", "functools.cache", "lru_cache", "functools.lru_cache")


def test_functions_are_simple() -> None:
    marked = {
        f"{file.name} {function.name}"
        for file in sources()
        for function in functions(file.tree)
        if "noqa: C901" in file.text.splitlines()[function.lineno - 1]
    }
    assert marked == COMPLEX


def named_numbers(file: SourceFile) -> int:
    """How many names a module gives to numbers, or to tuples of numbers."""
    plain = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Tuple, ast.expr_context)
    count = 0
    for node in file.tree.body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        parts = list(ast.walk(node.value))
        numbers = [p for p in parts if isinstance(p, ast.Constant) and type(p.value) in (int, float)]
        if numbers and all(isinstance(part, plain) for part in parts):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            count += sum(isinstance(n, ast.Name) for target in targets for n in ast.walk(target))
    return count


def test_packages_rest_on_few_numbers() -> None:
    found: Counter[str] = Counter()
    for file in sources():
        parts = file.module.split(".")
        if len(parts) > 2:
            found[parts[1]] += named_numbers(file)
    assert {package: count for package, count in found.items() if count > CONSTANTS.get(package, NEW)} == {}


def test_caches_are_bounded_or_say_why_not() -> None:
    wrong = [where for file in sources() for where in (*unbounded_functions(file), *unexplained_containers(file))]
    assert not wrong


def unbounded_functions(file: SourceFile) -> Iterator[str]:
    """Functions that remember a result for each argument, of any number of arguments, without a word on how many."""
    lines = file.text.splitlines()
    for function in functions(file.tree):
        for decorator in function.decorator_list:
            call = decorator.func if isinstance(decorator, ast.Call) else decorator
            if dotted(call) not in CACHES or "lru_cache" in dotted(call):
                continue
            if function.args.args and "#" not in lines[decorator.lineno - 1]:
                yield f"{file.at(function)} {function.name}"


def unexplained_containers(file: SourceFile) -> Iterator[str]:
    """Empty containers of a module, which its functions fill, that do not say what is in them."""
    body = file.tree.body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if dotted(target) != "__all__" and CONTAINERS.fullmatch(ast.unparse(node.value)) and not said:
            yield f"{file.at(node)} {dotted(target)}"
