"""Whether the joint graph is the captured one with its gradients, and whether both halves are the joint graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from lamina.aot.graph_compiler import role
from lamina.aot.partition import Partition
from lamina.base.accuracy import judge_alone
from lamina.base.reference import copied
from lamina.base.source import source_of
from lamina.blame.found import Blame
from lamina.blame.observed import Generators, GraphCall
from lamina.blame.values import Captured, Reference, Values, evaluated
from lamina.errors import LaminaError
from lamina.first_call.steps import recorded

__all__ = ["Unalike", "blamed_halves", "blamed_joint", "joint_inputs"]


class Unalike(LaminaError):
    """A graph's inputs or results are not those of the captured one, so that it cannot be evaluated."""

    code = "LM015"


def joint_inputs(joint: GraphModule, call: GraphCall, captured: Captured) -> list[Any]:
    """Values for the inputs of a joint graph: those of the captured graph, and its cotangents. Raises ``Unalike``."""
    placeholders = joint.graph.find_nodes(op="placeholder")
    primals = [n for n in placeholders if role(n, "") != "tangent"]
    tangents = [n for n in placeholders if role(n, "") == "tangent"]
    if len(primals) != len(call.inputs):
        raise Unalike(f"the joint graph has {len(primals)} inputs, the captured one {len(call.inputs)}")
    if len(tangents) not in (0, len(captured.cotangents)):
        raise Unalike(f"the joint graph has {len(tangents)} tangents for {len(captured.cotangents)} results")
    values = iter([x.detach() if isinstance(x, Tensor) else x for x in call.inputs])
    cotangents = iter(captured.cotangents)
    return [next(cotangents) if n in tangents else next(values) for n in placeholders]


def blamed_joint(
    graph: str,
    joint: GraphModule,
    gm: GraphModule,
    call: GraphCall,
    captured: Callable[[bool], Captured | Exception],
) -> Blame | None:
    """What of the joint graph is not the captured graph ``gm`` or its gradients. Raises ``Unalike``."""
    ours = captured(False)
    if isinstance(ours, Exception):
        raise Unalike(f"the captured graph raises {ours}")
    inputs = joint_inputs(joint, call, ours)
    made = evaluated(joint, inputs, call.generators)
    reference = Reference.of(lambda wide: _aligned(captured(wide)))
    aligned = made if isinstance(made, Exception) else _outputs(made[: -len(inputs)], ours)
    complaint = reference.complaint(aligned)
    if not complaint:
        return None
    node = _first_unknown(joint, gm, inputs, call)
    what = _what(complaint, len(ours.results))
    return Blame("differentiation", graph, "", 0, (node[0],) if node else what, node[1] if node else "", complaint)


def _aligned(found: Captured | Exception) -> Values:
    return found if isinstance(found, Exception) else [*found.results, *found.gradients]


def _outputs(made: Sequence[Any], captured: Captured) -> list[Any]:
    """The results and gradients of a joint graph, a gradient only where the captured graph has one."""
    inputs, results = len(captured.gradients), len(captured.results)
    if len(made) == results:
        return [*made, *captured.gradients]
    if len(made) != results + inputs:
        raise Unalike(f"the joint graph has {len(made)} results, not {results} and {inputs} gradients")
    gradients = [
        None if theirs is None else torch.zeros_like(theirs) if mine is None else mine
        for mine, theirs in zip(made[results:], captured.gradients, strict=True)
    ]
    return [*made[:results], *gradients]


def _what(complaint: str, results: int) -> tuple[str, ...]:
    number = complaint.removeprefix("value ").partition(":")[0]
    if not number.isdigit():
        return ()
    place = int(number)
    return (f"result {place}",) if place < results else (f"gradient of input {place - results}",)


def _first_unknown(
    joint: GraphModule, captured: GraphModule, inputs: Sequence[Any], call: GraphCall
) -> tuple[str, str] | None:
    """The last node, and the line, of the first of the user's calls whose value no node of its line has."""
    try:
        with torch.no_grad():
            call.generators.again()
            right = recorded(captured, copied([x.detach() if isinstance(x, Tensor) else x for x in call.inputs])).values
            call.generators.again()
            made = recorded(joint, copied(list(inputs))).values
    except Exception:
        return None
    by_line: dict[str, list[str]] = {}
    for node in joint.graph.nodes:
        by_line.setdefault(source_of(node).strip(), []).append(node.name)
    for node in captured.graph.nodes:
        names = by_line.get(source_of(node).strip(), ()) if node.op.startswith("call") else ()
        value = right.get(node.name, ())
        if names and len(value) == 1 and not any(_holds(made.get(name, ()), value[0]) for name in names):
            return names[-1], source_of(node).strip()
    return None


def _holds(made: Sequence[Tensor], value: Tensor) -> bool:
    return any(t.shape == value.shape and not judge_alone(t.to(value.dtype), value) for t in made)


def blamed_halves(
    graph: str, joint: GraphModule, halves: Partition, inputs: Sequence[Any], generators: Generators
) -> Blame | None:
    """What the forward and the backward graph, one after the other, give that the joint graph does not."""
    placeholders = joint.graph.find_nodes(op="placeholder")
    places = [i for i, n in enumerate(placeholders) if role(n, "") == "tangent"]
    count = len(placeholders) - len(places)
    results = len(joint.graph.output_node().args[0]) - count  # type: ignore[arg-type]

    def run(given: Sequence[Any]) -> list[Any]:
        forward = halves.forward.forward(*(x for i, x in enumerate(given) if i not in places))
        saved, tangents = iter(forward[results:]), iter([given[i] for i in places])
        nodes = halves.backward.graph.find_nodes(op="placeholder")
        back = [next(tangents) if role(n, "") == "tangent" else next(saved) for n in nodes]
        return [*forward[:results], *halves.backward.forward(*back)]

    def values(function: Callable[[Sequence[Any]], Any], wide: bool) -> Values:
        given = copied(list(inputs), wide=wide)
        generators.again()
        try:
            with torch.no_grad():
                return list(function(given))
        except Exception as error:
            return error

    reference = Reference.of(lambda wide: values(lambda given: joint.forward(*given), wide))
    made = values(run, False)
    if isinstance(made, Exception) and isinstance(made, StopIteration | RuntimeError):
        raise Unalike("the backward graph does not read what the forward graph saves, one after the other")
    complaint = reference.complaint(made)
    if not complaint:
        return None
    name, place, how = _first_wrong_half(joint, halves, inputs, results, generators)
    decided = tuple(d for d in halves.decisions if name and name in d.subject)[:3]
    return Blame("partition", graph, how, 0, (name,) if name else (), place, complaint, decisions=decided)


def _first_wrong_half(
    joint: GraphModule, halves: Partition, inputs: Sequence[Any], results: int, generators: Generators
) -> tuple[str, str, str]:
    """The first node of either half that has another value than the joint graph's of that name."""
    placeholders = joint.graph.find_nodes(op="placeholder")
    primals = [x for n, x in zip(placeholders, inputs, strict=True) if role(n, "") != "tangent"]
    tangents = iter([x for n, x in zip(placeholders, inputs, strict=True) if role(n, "") == "tangent"])
    try:
        with torch.no_grad():
            generators.again()
            right = recorded(joint, copied(list(inputs))).values
            generators.again()
            forward = recorded(halves.forward, copied(primals))
            saved = iter(list(forward.outputs)[results:])
            nodes = halves.backward.graph.find_nodes(op="placeholder")
            back = [next(tangents) if role(n, "") == "tangent" else next(saved) for n in nodes]
            backward = recorded(halves.backward, back)
    except Exception:
        return "", "", ""
    for gm, values in ((halves.forward, forward.values), (halves.backward, backward.values)):
        for node in gm.graph.nodes:
            for mine, theirs in zip(values.get(node.name, ()), right.get(node.name, ()), strict=False):
                if mine.shape == theirs.shape and judge_alone(mine, theirs):
                    how = "saved" if node.op == "placeholder" else "computed again" if gm is halves.backward else ""
                    return node.name, source_of(node).strip(), how
    return "", "", ""
