"""What a stage's value is as files: program text that can be run, compiled or read back.

A type says how its values are written by a method ``files``, or the module that prints it registers that here; a value
of any other type is a ``.txt`` file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import singledispatch
from textwrap import indent
from types import ModuleType
from typing import Any

from torch.fx import Graph, GraphModule, symbolic_trace

from lamina.base.text import one_line

__all__ = [
    "copied_graph_text",
    "files",
    "files_of_parts",
    "graph_copy",
    "graph_text",
    "own_text_of",
    "read_graph",
    "text_of",
]

_SPACES = re.compile(r"^ +$", re.MULTILINE)


@singledispatch
def files(value: object) -> dict[str, str]:
    """The texts of ``value`` by what follows the stage's name in a file's: ``.py``, or ``/kernel.cpp`` in a folder."""
    own = getattr(value, "files", None)
    if callable(own):
        return own()  # type: ignore[no-any-return]
    text = getattr(value, "text", None)
    return {".txt": text() if callable(text) else repr(value)}


def text_of(value: object) -> str:
    """All files of ``value`` in one text, for printing."""
    return _joined(files(value))


def own_text_of(value: object) -> str:
    """``text_of`` without the files that several parts of ``value`` have, such as the functions that kernels call."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    shared = {end for part in parts for end in files(part) if end.startswith("/")}
    return _joined({name: text for name, text in files(value).items() if name not in shared})


def _joined(found: Mapping[str, str]) -> str:
    if len(found) == 1:
        return next(iter(found.values()))
    return "\n".join(f"# {name.lstrip('/_')}\n{text}" for name, text in found.items())


@files.register(list)
@files.register(tuple)
def _sequence(value: Iterable[object]) -> dict[str, str]:
    return files_of_parts({str(getattr(part, "name", place)): part for place, part in enumerate(value)})


@files.register(dict)
def files_of_parts(parts: Mapping[str, object]) -> dict[str, str]:
    """The files of values that have names, in a folder; a file that several have is written once."""
    found: dict[str, str] = {}
    for name, part in parts.items():
        for end, text in files(part).items():
            found[end if end.startswith("/") else f"/{name}{end}"] = text
    return found


@files.register(GraphModule)
def _graph(value: GraphModule) -> dict[str, str]:
    return {".py": graph_text(value)}


def graph_text(gm: GraphModule) -> str:
    """A module of Python with the class ``GraphModule``, whose ``forward`` is the graph; the user's lines as comments.

    Constants and bodies that the graph reads as attributes are not in it.
    """
    return copied_graph_text(graph_copy(gm.graph), gm)


def graph_copy(graph: Graph) -> Graph:
    """The graph as it is now: its nodes with what is known of them, called as any Python function is."""
    plain = Graph()
    plain.output(plain.graph_copy(graph, {}))
    return plain


def copied_graph_text(graph: Graph, owner: GraphModule) -> str:
    """``graph_text`` of a copy of a graph of ``owner``. The graphs that it calls stand within the class, indented."""
    code = graph.python_code("self", verbose=True)
    called = dict.fromkeys(str(n.target) for n in graph.nodes if n.op in ("get_attr", "call_module"))
    bodies = [code.src.lstrip("\n")]
    for name in called:
        if isinstance(inner := getattr(owner, name, None), GraphModule):
            _, _, rest = inner.print_readable(print_output=False).partition("\n")
            bodies.append(f"class {name}(torch.nn.Module):\n{rest}")
    body = "class GraphModule(torch.nn.Module):\n" + _SPACES.sub("", indent("\n".join(bodies), "    "))
    used = {name: value for name, value in code.globals.items() if re.search(rf"\b{re.escape(name)}\b", body)}
    return "\n".join([*_imports(used), "", "", body.strip(), ""])


def _imports(used: Mapping[str, object]) -> Iterator[str]:
    """Lines that give the names which a graph's text uses to what they stand for."""
    yield "import torch"
    for name, value in sorted(used.items()):
        if isinstance(value, ModuleType):
            if value.__name__ != name:
                yield f"import {value.__name__} as {name}"
        elif isinstance(value, float):
            yield f"from math import {name}"
        elif isinstance(value, type) and value is type(None):
            yield f"{name} = type(None)"
        elif str(getattr(value, "__qualname__", "<")).isidentifier() and getattr(value, "__module__", None):
            owner, called = value.__module__, value.__qualname__  # type: ignore[attr-defined]
            yield f"from {owner} import {called}" + (f" as {name}" if called != name else "")
        else:
            yield f"# {name} is {one_line(repr(value))}"


def read_graph(text: str) -> Graph:
    """The graph that such a module has, by tracing it. The text is executed: read only what you would run."""
    scope: dict[str, Any] = {}
    exec(compile(text, "<graph>", "exec"), scope)
    return symbolic_trace(scope["GraphModule"]()).graph
