"""Reduces a call that differs to a short file: a few operations on small inputs that still differ in the same way."""

from __future__ import annotations

import itertools
import linecache
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from lamina.base.fx.torch_private import graph_module
from lamina.base.reference import copied
from lamina.blame.observed import compile_observed, duplicate
from lamina.blame.scripts import Call
from lamina.compile import compile as compiled
from lamina.errors import BadArgument, LaminaWarning
from lamina.first_call.steps import recorded
from lamina.testing.runs import Runs, differing
from lamina.testing.torch_private import compiled_anew

__all__ = ["Case", "Reduced", "minify_call"]

_FEW = 64
"""Elements of inputs that are written out, where random ones show no difference."""
_MOST_TRIALS = 80
"""Programs that are compiled at most; each takes about a second."""
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Case:
    """A captured graph, flat and of torch calls alone, with an input for each placeholder, and how they are made."""

    gm: GraphModule
    inputs: tuple[Any, ...]
    made: tuple[str, ...] = ()

    def source(self) -> str:
        """The graph as a function ``program``."""
        code = self.gm.graph.python_code("self", verbose=False).src
        code = re.sub(r";  \w+( = \w+)* = None", "", code)
        head = re.search(r"def forward\(self(?:, )?(.*?)\)(?: -> [^:]*)?:", code)
        assert head is not None
        names = re.sub(r" ?: ?[^,]+", "", head[1])
        body = [line for line in code[head.end() :].splitlines() if line.strip()]
        return "\n".join([f"def program({names}):", *body, ""])


@dataclass(frozen=True, slots=True)
class Reduced:
    """The file's text, what differs in it, how many operations are left and how many programs were tried."""

    source: str
    different: tuple[str, ...]
    operations: int
    trials: int

    @property
    def lines(self) -> int:
        """Lines of the file that are not empty."""
        return sum(bool(line.strip()) for line in self.source.splitlines())


def minify_call(call: Call, progress: Callable[[str], None] = lambda line: None) -> Reduced:
    """The shortest case found that differs from eager as ``call`` does.

    Raises ``BadArgument`` where nothing differs, and where no single captured graph shows the difference by itself.
    """
    search = _Search(call.options, progress)
    case = search.first_case(call)
    for step in (search.cut_before, search.cut_after, search.single_output, search.without_nodes, search.smaller):
        case = step(case)
        progress(f"{search.trials} trials, {_size(case)} operations")
    case = search.written(case)
    different = search.differences(case)
    text = _file(case, call.options, different)
    return Reduced(text, different, _size(case), search.trials)


def _size(case: Case) -> int:
    return sum(n.op.startswith("call") for n in case.gm.graph.nodes)


class _Search:
    """Smaller cases, each held against what differs in the first one."""

    def __init__(self, options: dict[str, Any], progress: Callable[[str], None]) -> None:
        self.options, self.progress = options, progress
        self.want: frozenset[str] = frozenset()
        self.trials = 0

    def first_case(self, call: Call) -> Case:
        """The first captured graph that differs by itself."""
        runs = Runs(call.fn, call.args, call.kwargs, dict(call.options))
        with compiled_anew(), warnings.catch_warnings():
            warnings.simplefilter("ignore", LaminaWarning)
            function, record, _ = compile_observed(call.fn, call.options)
            found = differing(runs.run(call.fn), runs.run(function), runs.exact(call.fn))
        if not found:
            raise BadArgument(f"{call.name} gives what it gives in eager", remedy="name a script that shows one")
        self.want = frozenset(d.kind for d in found)
        for name, graph in record.graphs.items():
            captured = next(s.gm for s in record.snapshots if s.graph == name and s.place == "captured")
            case = _case(captured, graph.inputs)
            if case is not None and self.fails(case):
                return case
        raise BadArgument(
            f"no captured graph of {call.name} differs by itself: {found[0].where}: {found[0].kind}",
            remedy="lamina bisect says what makes it differ",
        )

    def differences(self, case: Case) -> tuple[str, ...]:
        """How a case, compiled, differs from eager, with its kinds in front."""
        function = _function(case.source())
        runs = Runs(function, case.inputs, {}, dict(self.options))
        with compiled_anew(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            eager = runs.run(function)
            fast = compiled(function, options={**self.options, "progress": False, "compare_eager": "off"})
            found = differing(eager, runs.run(fast), runs.exact(function))
        return tuple(f"{d.kind}: {d.where}: {d.text.partition(': [')[0]}" for d in found)

    def fails(self, case: Case) -> bool:
        """Whether a case differs in a way in which the first one does, and in no other."""
        if self.trials >= _MOST_TRIALS:
            return False
        self.trials += 1
        self.progress(f"{self.trials} trials, {_size(case)} operations")
        try:
            found = self.differences(case)
        except Exception:
            return False
        kinds = {text.partition(":")[0] for text in found}
        return bool(kinds) and kinds <= self.want

    def first_that_fails(self, case: Case, smaller: Iterator[Case | None]) -> Case:
        """The first of some smaller cases that fails, or the case itself."""
        return next((one for one in smaller if one is not None and self.fails(one)), case)

    def cut_before(self, case: Case) -> Case:
        """Without the first operations: what later ones read of them is an input."""
        return self.halved(case, lambda at: _begun_at(case, at), 1)

    def cut_after(self, case: Case) -> Case:
        """Without the last operations: what they read is the result."""
        return self.halved(case, lambda at: _ended_at(case, _size(case) - at), 1)

    def halved(self, case: Case, cut: Callable[[int], Case | None], least: int) -> Case:
        """The largest cut that still fails, by halving."""
        good, bad, best = 0, _size(case), case
        while bad - good > least:
            middle = (good + bad) // 2
            made = cut(middle)
            if made is not None and self.fails(made):
                good, best = middle, made
            else:
                bad = middle
        return best

    def single_output(self, case: Case) -> Case:
        """One result only."""
        outputs = _outputs(case.gm)
        if len(outputs) < 2:
            return case
        return self.first_that_fails(case, (_returning(case, [node]) for node in outputs))

    def without_nodes(self, case: Case) -> Case:
        """Operations replaced by an operand or by an input, again and again, the last first."""
        changed = True
        while changed and _size(case) > 1:
            changed = False
            for name in [n.name for n in case.gm.graph.nodes if n.op.startswith("call")][::-1]:
                fewer = (one for one in _without(case, name) if one is not None and _size(one) < _size(case))
                smaller = self.first_that_fails(case, fewer)
                if smaller is not case:
                    case, changed = smaller, True
                    break
        return case

    def smaller(self, case: Case) -> Case:
        """Sizes halved while that shows the same."""
        for size in sorted({n for x in case.inputs if isinstance(x, Tensor) for n in x.shape if n > 1}, reverse=True):
            while size > 1:
                made = _resized(case, size, size // 2)
                if made is None or not self.fails(made):
                    break
                case, size = made, size // 2
        return case

    def written(self, case: Case) -> Case:
        """Inputs that a line of Python makes: random ones, ones, or the elements themselves."""
        for maker in (_random, _ones):
            made = _made(case, maker)
            if made is not None and self.fails(made):
                return made
        literal = _made(case, _literal)
        if literal is None:
            raise BadArgument(
                f"inputs of more than {_FEW} elements are needed to show it", remedy="lamina bisect says where it is"
            )
        return literal


def _case(gm: GraphModule, inputs: Sequence[Any]) -> Case | None:
    """A graph with its inputs; None if it has more than calls of functions and methods."""
    if any(n.op not in ("placeholder", "call_function", "call_method", "output") for n in gm.graph.nodes):
        return None
    own = duplicate(gm)
    outputs = [n for n in _outputs(own) if isinstance(n, Node)]
    return _returning(Case(own, tuple(copied(list(inputs)))), outputs)


def _outputs(gm: GraphModule) -> list[Any]:
    returned: Any = gm.graph.output_node().args[0]
    return list(returned) if isinstance(returned, (tuple, list)) else [returned]


def _function(source: str) -> Callable[..., Any]:
    """The function ``program`` of a text, as the written file has it."""
    file = f"<lamina case {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"torch": torch, "device": torch.device, "inf": float("inf"), "nan": float("nan")}
    exec(compile(source, file, "exec"), scope)
    function: Callable[..., Any] = scope["program"]
    return function


def _tidy(graph: Graph, inputs: dict[str, Any], gm: GraphModule) -> Case:
    """The case of a changed graph, without what nothing needs."""
    graph.eliminate_dead_code()
    for node in graph.find_nodes(op="placeholder"):
        if not node.users:
            graph.erase_node(node)
    kept = tuple(inputs[n.name] for n in graph.find_nodes(op="placeholder"))
    return Case(graph_module(gm, graph), kept)


def _copy(case: Case) -> tuple[GraphModule, dict[str, Node], dict[str, Any]]:
    """A graph to change, its nodes by name and its inputs by the name of their placeholders."""
    gm = duplicate(case.gm)
    names = [n.name for n in gm.graph.find_nodes(op="placeholder")]
    return gm, {n.name: n for n in gm.graph.nodes}, dict(zip(names, case.inputs, strict=True))


def _returning(case: Case, outputs: Sequence[Node]) -> Case:
    """The case with these nodes as its results."""
    gm, nodes, inputs = _copy(case)
    gm.graph.output_node().args = (tuple(nodes[n.name] for n in outputs),)
    return _tidy(gm.graph, inputs, gm)


def _calls(gm: GraphModule) -> list[Node]:
    return [n for n in gm.graph.nodes if n.op.startswith("call")]


def _ended_at(case: Case, count: int) -> Case | None:
    """The first ``count`` operations, which return what later ones and the caller read of them."""
    first = _calls(case.gm)[:count]
    later = {*_calls(case.gm)[count:], case.gm.graph.output_node()}
    results = [n for n in first if set(n.users) & later]
    return _returning(case, results) if results else None


def _begun_at(case: Case, count: int) -> Case | None:
    """All but the first ``count`` operations; what is read of these are inputs of the values that they have."""
    first = {n.name for n in _calls(case.gm)[:count]}
    return _with_inputs(case, first)


def _with_inputs(case: Case, names: set[str]) -> Case | None:
    """The case with inputs in the place of nodes; None where one of those that are read is not one tensor."""
    gm, nodes, inputs = _copy(case)
    with torch.no_grad():
        values = recorded(case.gm, copied([x.detach() if isinstance(x, Tensor) else x for x in case.inputs])).values
    gradients = any(isinstance(x, Tensor) and x.requires_grad for x in case.inputs)
    last = gm.graph.find_nodes(op="placeholder")[-1:]
    for name in names:
        node = nodes[name]
        if all(user.name in names for user in node.users):
            continue
        if len(values.get(name, ())) != 1:
            return None
        (value,) = values[name]
        with gm.graph.inserting_after(last[-1]) if last else gm.graph.inserting_before(nodes[next(iter(nodes))]):
            fresh = gm.graph.placeholder(f"{name}_given")
        inputs[fresh.name] = value.requires_grad_(gradients and value.is_floating_point())
        node.replace_all_uses_with(fresh)
    return _tidy(gm.graph, inputs, gm)


def _without(case: Case, name: str) -> Iterator[Case | None]:
    """The case without a node, or with one of its operands or an input in its place."""
    node = next(n for n in case.gm.graph.nodes if n.name == name)
    if not node.users:  # it writes to something
        gm, nodes, inputs = _copy(case)
        gm.graph.erase_node(nodes[name])
        yield _tidy(gm.graph, inputs, gm)
    for operand in node.all_input_nodes:
        gm, nodes, inputs = _copy(case)
        nodes[name].replace_all_uses_with(nodes[operand.name])
        yield _tidy(gm.graph, inputs, gm)
    if any(user.op != "output" for user in node.users):
        yield _with_inputs(case, {name})


def _resized(case: Case, old: int, new: int) -> Case | None:
    """The case with another size wherever an input, or a number in a call, has ``old``."""

    def narrowed(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        made = x.detach()
        for dim, n in enumerate(x.shape):
            made = made.narrow(dim, 0, new) if n == old else made
        return made.clone().requires_grad_(x.requires_grad)

    gm, _, _ = _copy(case)
    for node in _calls(gm):
        node.args = _numbered(node.args, old, new)
        node.kwargs = _numbered(node.kwargs, old, new)
    return Case(gm, tuple(map(narrowed, case.inputs)))


def _numbered(value: Any, old: int, new: int) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_numbered(item, old, new) for item in value)
    if isinstance(value, dict):
        return {key: _numbered(item, old, new) for key, item in value.items()}
    return new if type(value) is int and value == old else value


def _made(case: Case, maker: Callable[[Tensor], str]) -> Case | None:
    """The case with inputs that lines of Python make, which are kept."""
    lines: list[str] = []
    for x in case.inputs:
        text = maker(x) if isinstance(x, Tensor) else repr(x)
        if not text:
            return None
        lines.append(f"{text}.requires_grad_()" if isinstance(x, Tensor) and x.requires_grad else text)
    torch.manual_seed(0)
    return Case(case.gm, tuple(eval(line, {"torch": torch}) for line in lines), tuple(lines))


def _random(x: Tensor) -> str:
    shape = list(x.shape)
    if x.is_floating_point():
        return f"torch.randn({shape}, dtype={x.dtype})"
    return f"torch.randint(0, 2, {shape}, dtype={x.dtype})"


def _ones(x: Tensor) -> str:
    return f"torch.ones({list(x.shape)}, dtype={x.dtype})"


def _literal(x: Tensor) -> str:
    return f"torch.tensor({x.tolist()}, dtype={x.dtype})" if x.numel() <= _FEW else ""


def _file(case: Case, options: dict[str, Any], different: Sequence[str]) -> str:
    """A file that shows the difference when it is run."""
    plain = {name: value for name, value in options.items() if isinstance(value, (bool, int, float, str))}
    others = sorted(set(options) - set(plain))
    note = f"  # and the script's own: {', '.join(others)}" if others else ""
    lines = [
        f'"""Compiled, this differs from eager: {different[0] if different else ""}"""',
        "import torch",
        "from torch import device, inf, nan  # noqa: F401",
        "import lamina",
        "",
        case.source(),
        "torch.manual_seed(0)",
        "inputs = (",
        *(f"    {line}," for line in case.made),
        ")",
        f"options = {plain!r}{note}",
        "print(lamina.bisect(program, *inputs, options=options))",
        "",
    ]
    return "\n".join(lines)
