"""FX graphs of a report: where each node stands in a graph's text, and the user's lines that it came from."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from torch.fx import Graph, GraphModule, Node

from lamina.base.files import graph_text
from lamina.base.source import place_in
from lamina.report.texts import Text, Texts

__all__ = ["Captures", "add_graph", "call_nodes", "module_of"]

_ASSIGNED = re.compile(r' {8}(\w+)(?:: "[^"]*")? = ')
_WRITTEN = re.compile(r";  +(\w+) = ")
_FRAME = re.compile(r'File "([^"]*)", line (\d+)')
_PLACE = re.compile(r"([^\s:]+):(\d+)")


def call_nodes(graph: Graph) -> list[Node]:
    """The nodes that compute something."""
    return [n for n in graph.nodes if n.op.startswith("call")]


def add_graph(texts: Texts, gm: GraphModule, key: str, level: str, region: str) -> tuple[Text, dict[str, int]]:
    """The text of a graph as ``dump`` writes it, and the line on which each node stands."""
    lines = graph_text(gm).splitlines()
    found = _lines_of(gm.graph, lines)
    names: dict[int, str] = {}
    for name, line in found.items():
        names.setdefault(line, name)
    text = texts.add(Text(key, level, region, "python", tuple(lines), names, region))
    return text, found


def _lines_of(graph: Graph, lines: Sequence[str]) -> dict[str, int]:
    names = {node.name for node in graph.nodes}
    found: dict[str, int] = {}
    others: dict[str, int] = {}
    signature = returned = 0
    for number, line in enumerate(lines, 1):
        match = _ASSIGNED.match(line)
        if match and match[1] in names:
            found.setdefault(match[1], number)
        for name in _WRITTEN.findall(line):
            others.setdefault(name, number)
        if not signature and line.startswith("    def forward("):
            signature = number
        if line.startswith("        return "):
            returned = number
    for node in graph.nodes:
        if node.name in found:
            continue
        if node.op == "placeholder" and signature:
            found[node.name] = signature
        elif node.op == "output" and returned:
            found[node.name] = returned
        elif node.name in others:
            found[node.name] = others[node.name]
    return found


def module_of(node: Node) -> str:
    """The module that a node computes for, as a path from the outermost ("blocks.0.ln"); "" if that is not known."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    path = re.sub(r"L\['(\w+)'\]\.?", "", path)
    return re.sub(r"\._modules\['([^']*)'\]|\['([^']*)'\]|\[(\d+)\]", r".\1\2\3", path).strip(".")


def _stack(node: Node) -> str:
    return str(node.meta.get("stack_trace") or "")


def _place(node: Node) -> str:
    """The user's place as "file.py:line"; a node that a rewrite made says it in its source."""
    stack = _stack(node)
    if stack:
        return place_in(stack)
    match = _PLACE.match(str(node.meta.get("source") or ""))
    return f"{match[1]}:{match[2]}" if match else ""


class Captures:
    """The captured graphs of one compiled callable: what a functional node is traced from, down to Python's line."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self._exact: dict[tuple[str, str, str], list[tuple[str, int]]] = {}
        self._stacks: dict[tuple[str, str], list[tuple[str, int]]] = {}
        self._places: dict[tuple[str, str], list[tuple[str, int]]] = {}
        self._inputs: dict[str, list[tuple[str, int]]] = {}
        self._readers: dict[str, list[tuple[str, int]]] = {}
        self._files: dict[str, str] = {}

    def add(self, gm: GraphModule, name: str) -> None:
        """Take the captured graph ``name`` and link its nodes to the user's lines."""
        text, lines = add_graph(self.texts, gm, f"captured:{name}", "captured", name)
        for node in gm.graph.nodes:
            line = lines.get(node.name)
            if line is None:
                continue
            here = (text.key, line)
            if node.op == "placeholder":
                self._inputs.setdefault(name, []).append(here)
                reader = next((lines[user.name] for user in node.users if user.name in lines), line)
                self._readers.setdefault(name, []).append((text.key, reader))
            stack = _stack(node)
            if node.op.startswith("call"):
                self._exact.setdefault((name, stack, module_of(node)), []).append(here)
                self._stacks.setdefault((name, stack), []).append(here)
                self._places.setdefault((name, place_in(stack)), []).append(here)
                self._link_python(stack, text.key, line)

    def _link_python(self, stack: str, key: str, line: int) -> None:
        frames = _FRAME.findall(stack)
        if not frames:
            return
        file, number = frames[-1]
        python = self._python(file)
        if python and int(number) <= len(self.texts.by_key[python].lines):
            self.texts.links.add(python, int(number), key, line)

    def _python(self, file: str) -> str:
        """The key of the user's file, which becomes a text when it is first asked for; "" where it cannot be read."""
        if file in self._files:
            return self._files[file]
        lines = [line.rstrip("\n") for line in linecache.getlines(file)]
        key = ""
        if lines:
            name = Path(file).name
            key = f"python:{name}"
            if key in self.texts.by_key:
                key = f"python:{'/'.join(Path(file).parts[-2:])}"
            self.texts.add(Text(key, "python", name, "python", tuple(lines)))
        self._files[file] = key
        return key

    def link(self, gm: GraphModule, graph: str, key: str, lines: Mapping[str, int]) -> list[str]:
        """Link the nodes of a functional graph to those captured; gives the names of the calls that reach none."""
        lost: list[str] = []
        inputs = self._inputs.get(graph, [])
        for node in gm.graph.nodes:
            line = lines.get(node.name)
            if line is None:
                continue
            if node.op == "placeholder":
                found = _input_of(node, inputs)
            else:
                found = self._found(node, graph)
                if not found and node.op.startswith("call"):
                    lost.append(node.name)
            for upper, number in found:
                self.texts.links.add(upper, number, key, line)
        return lost

    def _found(self, node: Node, graph: str) -> Sequence[tuple[str, int]]:
        stack = _stack(node)
        ways: Iterable[Sequence[tuple[str, int]] | None] = (
            self._exact.get((graph, stack, module_of(node))) if stack else None,
            self._stacks.get((graph, stack)) if stack else None,
            self._places.get((graph, place)) if (place := _place(node)) else None,
        )
        return next((found for found in ways if found), self._reading(node, graph))

    def _reading(self, node: Node, graph: str) -> Sequence[tuple[str, int]]:
        """A node that was added on the way, such as a copy of an input, belongs to the first call that reads that."""
        readers = self._readers.get(graph, [])
        return [one for source in node.all_input_nodes for one in _input_of(source, readers)]


def _input_of(node: Node, inputs: Sequence[tuple[str, int]]) -> Sequence[tuple[str, int]]:
    match = re.fullmatch(r"primals_(\d+)", node.name)
    return inputs[int(match[1]) - 1 : int(match[1])] if match else ()
