"""Compiled graphs as documents of JSON with files, and compiled graphs of those: what they are made of, made again.

A graph that is differentiated has its backwards with it, as many as were compiled when it was stored. Others, and what
only the graph itself can tell, are compiled when somebody asks for them.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lamina.aot.backwards import Backward, Boxed, Strides, Tangent
from lamina.aot.engine.again import Again, Held
from lamina.aot.engine.inputs import Inputs
from lamina.aot.function import apart, detaching, inference_function, training_function, without_gradients
from lamina.aot.notes import Notes
from lamina.artefacts.around import AROUND, StoredCalls, written_around, written_calls_of
from lamina.artefacts.constants import Unstorable, read_constant, written_constant
from lamina.artefacts.graphs import compiled_again, written_graph
from lamina.artefacts.kernels import Files, loaded_kernels, written_kernels
from lamina.base.recipes import Recipe, captured, captured_as, recipe_of
from lamina.errors import StageFailed
from lamina.record import Record

__all__ = ["Compile", "Here", "made_again", "written_program"]

Compile = Callable[[Any, Sequence[Any]], Callable[..., Any]]
"""Compiles a captured graph with inputs without values."""


@dataclass(frozen=True, slots=True)
class Here:
    """What this process gives stored graphs: ``compile`` compiles what is missing, the ``record`` is told of them."""

    compile: Compile
    record: Record


def written_program(run: Callable[..., Any], files: Files) -> dict[str, Any]:
    """A document of a compiled graph, which adds to the ``files``. Raises ``Unstorable``."""
    recipe = recipe_of(run)
    if recipe is not None and recipe.kind == "turns":
        return _compiled_way(run, recipe.parts, files)
    if recipe is None:
        raise Unstorable("a graph with parts of its own")
    _note_within(run, recipe)
    around = written_around(recipe.kind, recipe.parts, files)
    if around is not None:
        return {"kind": recipe.kind, "compiled": written_program(recipe.parts["compiled"], files), **around}
    return {"kind": recipe.kind, **_WRITERS[recipe.kind](run, recipe.parts, files)}


def _note_within(run: Any, recipe: Recipe) -> None:
    """Note of what ``run`` is made of, too, which captured graph that is the compiled form of."""
    graph, inner = captured_as(run), recipe.parts.get("compiled")
    if graph is not None and inner is not None:
        captured(inner, *graph)


def made_again(text: Mapping[str, Any], files: Files, here: Here) -> Callable[..., Any]:
    """The compiled graph of a document."""
    around = AROUND.get(text["kind"])
    if around is not None:
        return around(made_again(text["compiled"], files, here), text, files, here.record)
    made: Callable[..., Any] = _MAKERS[text["kind"]](text, files, here)
    return made


# Graphs without gradients.


def _inference(run: Any, parts: Mapping[str, Any], files: Files) -> dict[str, Any]:
    inner = written_program(parts["compiled"], files)
    return {"compiled": inner, "mutated": list(parts["mutated"]), "trained": parts["trained"]}


def _make_inference(text: Mapping[str, Any], files: Files, here: Here) -> Callable[..., Any]:
    return inference_function(made_again(text["compiled"], files, here), text["mutated"], text["trained"])


def _inner(run: Any, parts: Mapping[str, Any], files: Files) -> dict[str, Any]:
    return {"compiled": written_program(parts["compiled"], files)}


def _apart(run: Any, parts: Mapping[str, Any], files: Files) -> dict[str, Any]:
    return {**_inner(run, parts, files), "pairs": [list(pair) for pair in parts["pairs"]]}


def _detaching(run: Any, parts: Mapping[str, Any], files: Files) -> dict[str, Any]:
    return {**_inner(run, parts, files), "places": list(parts["places"])}


# Graphs that are differentiated.


def _training(run: Any, parts: Mapping[str, Any], files: Files) -> dict[str, Any]:
    if parts["compile_rereading"] is not None:
        raise Unstorable("a graph whose results are read again")
    captured = captured_as(run)
    if captured is None:
        raise Unstorable("a graph of which nothing is known")
    inputs: Inputs = parts["rerun"].inputs
    return {
        "forward": written_program(parts["forward"], files),
        "backwards": [_backward(strides, found, files) for strides, found in parts["backwards"].found.items()],
        "results": parts["results"],
        "tangents": [tangent and _tangent(tangent) for tangent in parts["tangents"]],
        "tangents_of": [of if of is None else sorted(of) for of in parts["tangents_of"]],
        "mutated": list(parts["mutated"]),
        "inputs": [list(inputs.with_gradient), list(inputs.detached), inputs.again],
        "name": [parts["name"], parts["where"]],
        "grad": parts["grad"],
        "graph": files.later(functools.partial(written_graph, *captured)),
        "held": _held(parts["again"].known),
    }


def _held(known: tuple[Held | None] | None) -> list[Any] | None:
    """What eager's history holds behind each result, if that was asked for."""
    return known and [known[0] and [sorted(nodes) for nodes in known[0]]]


def _tangent(tangent: Tangent) -> list[Any]:
    return [list(tangent.shape), list(tangent.stride), written_constant(tangent.dtype), str(tangent.device)]


def _backward(strides: Strides, found: Backward | None, files: Files) -> list[Any]:
    """A backward that was compiled, for which strides; None where those have none of their own."""
    layout = [stride if stride is None else list(stride) for stride in strides]
    if found is None:
        return [layout, None]
    reads = None if found.reads is None else list(found.reads)
    return [layout, [written_program(found.run, files), found.alone, found.partial, reads]]


class _Whole:
    """The graph of a stored function, compiled as any other when its first call that asks for more comes."""

    def __init__(self, text: Mapping[str, Any], files: Files, here: Here) -> None:
        self.text, self.files, self.here = text, files, here
        self.inputs = Inputs(*text["inputs"])
        self.taken = self.inputs.taken
        stored = ((tuple(s if s is None else tuple(s) for s in layout), found) for layout, found in text["backwards"])
        self.backwards: dict[Strides, Any] = dict(stored)
        self.usual = tuple(tuple(tangent[1]) for tangent in text["tangents"] if tangent is not None)

    @functools.cached_property
    def parts(self) -> Mapping[str, Any]:
        """What the function would be made of if it were compiled now. Raises ``StageFailed`` where it would differ."""
        run = compiled_again(self.files.read_json(self.text["graph"]), self.here.compile)
        recipe = _training_within(run)
        if recipe is None or not self._is_same(recipe.parts["forward"]):
            raise StageFailed(
                f"the stored form of {self.text['name'][0]} is not that of this process",
                remedy="clear the cache with `lamina cache clear`",
            )
        return recipe.parts

    def _is_same(self, forward: Boxed) -> bool:
        """Whether a forward saves what the stored one does: they are one program."""
        files = Files()
        mine, stored = files.texts_of(written_program(forward, files)), self.files.texts_of(self.text["forward"])
        return [*map(_meaning, mine)] == [*map(_meaning, stored)]

    def backward(self, strides: Strides | None) -> Backward | None:
        """The stored backward for these strides, or one that is compiled now."""
        wanted = self.usual if strides is None else strides
        if wanted not in self.backwards:
            found: Backward | None = self.parts["compile_backward"](strides)
            return found
        stored = self.backwards[wanted]
        if stored is None:
            return None
        text, alone, partial, reads = stored
        try:
            run = made_again(text, self.files, self.here)
        except Exception:  # it was removed from the cache since the forward was loaded, say
            compiled: Backward | None = self.parts["compile_backward"](strides)
            return compiled
        return Backward(run, alone, partial, None if reads is None else tuple(reads))

    def held(self) -> Held | None:
        """What eager's history holds, as it was stored or as it is found now."""
        known: Any = self.text["held"]
        if known is None:
            found: Held | None = self.parts["again"].held()
            return found
        return known[0] and tuple(map(frozenset, known[0]))

    def gradients(self, *given: Any, **how: Any) -> Any:
        return self.parts["rerun"].gradients(*given, **how)


def _meaning(text: bytes) -> str:
    """A host program without its comments and the text that says which region it is of."""
    return ast.dump(ast.Module(ast.parse(text).body[1:], []))


def _make_training(text: Mapping[str, Any], files: Files, here: Here) -> Callable[..., Any]:
    whole: Any = _Whole(text, files, here)
    notes = Notes(here.record, text["name"][0])
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(text["grad"])
    try:
        return training_function(
            made_again(text["forward"], files, here),
            whole.backward,
            text["results"],
            [
                tangent
                and Tangent(tuple(tangent[0]), tuple(tangent[1]), read_constant(tangent[2]), torch.device(tangent[3]))
                for tangent in text["tangents"]
            ],
            [of if of is None else frozenset(of) for of in text["tangents_of"]],
            text["mutated"],
            again=Again(whole.held, notes),
            rerun=whole,
            name=text["name"][0],
            where=text["name"][1],
        )
    finally:
        torch.set_grad_enabled(before)


def _compiled_way(run: Any, parts: Mapping[str, Any], files: Files) -> dict[str, Any]:
    """The compiled way of the two; a process that loads it compares it with nothing, but knows what others found."""
    if parts["by_eager"]():
        raise Unstorable("a graph that eager runs faster")
    files.verdicts.append(parts["verdict"])
    compiled, graph = parts["compiled"](), captured_as(run)
    if graph is not None:
        captured(compiled, *graph)
    return written_program(compiled, files)


def _training_within(run: Any) -> Recipe | None:
    """What the differentiated function is made of that a compiled graph has within; None where it has none."""
    recipe = recipe_of(run)
    while recipe is not None and recipe.kind != "training":
        inner = recipe.parts.get("compiled")
        recipe = None if inner is None else recipe_of(inner() if recipe.kind == "turns" else inner)
    return recipe


_WRITERS: dict[str, Callable[[Any, Mapping[str, Any], Files], dict[str, Any]]] = {
    "inference": _inference,
    "without gradients": _inner,
    "apart": _apart,
    "detaching": _detaching,
    "training": _training,
    "kernels": written_kernels,
    "by calls": lambda run, parts, files: {"calls": written_calls_of(run, files)},
}
_MAKERS: dict[str, Callable[[Mapping[str, Any], Files, Here], Callable[..., Any]]] = {
    "inference": _make_inference,
    "without gradients": lambda text, files, here: without_gradients(made_again(text["compiled"], files, here)),
    "apart": lambda text, files, here: apart(made_again(text["compiled"], files, here), text["pairs"]),
    "detaching": lambda text, files, here: detaching(made_again(text["compiled"], files, here), text["places"]),
    "training": _make_training,
    "kernels": loaded_kernels,
    "by calls": lambda text, files, here: StoredCalls(text["calls"], files),
}
