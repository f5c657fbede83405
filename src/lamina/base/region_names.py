"""Names of captured graphs and of the regions that are made of them.

A graph is called by what was compiled and its number there: ``Encoder0``, ``train_step1``. Its regions add what they
are, after an underscore: ``Encoder0_forward``, ``Encoder0_backward``, ``train_step1_inference``, each with more words
where a region is a part of another.
"""

from __future__ import annotations

import re
from types import MethodType

__all__ = ["callable_name", "forward_of", "graph_name", "graph_of", "is_backward"]

_LONGEST = 40
"""Characters of a name: folders and events are called by it, and it stands in columns of tables."""
_KINDS = "forward|backward|inference"
_REGION = re.compile(rf"(?P<graph>.*?\d)(?:_(?P<kind>{_KINDS})(?:_.*)?)?")


def callable_name(model: object) -> str:
    """What a callable of the user's is called: by its own name, a module by its class, a method by its object's too."""
    own = getattr(model, "__name__", None) or type(model).__name__
    return f"{type(model.__self__).__name__}.{own}" if isinstance(model, MethodType) else str(own)


def graph_name(compiled: str, number: int) -> str:
    """The name of graph ``number`` (from 0) of the callable that is called ``compiled``: a Python identifier."""
    own = compiled.rpartition("<locals>.")[2].removesuffix(".forward")
    words = re.sub(r"\W+", "_", own, flags=re.ASCII).strip("_")[:_LONGEST].rstrip("_")
    words = re.sub(rf"(\d)_(?={_KINDS})", r"\1", words)  # a region's name says which part of it is the graph's
    name = words if words and not words[0].isdigit() else f"graph{words}"
    return f"{name}_{number}" if name[-1].isdigit() else f"{name}{number}"  # f10 is graph 10 of f, f1_0 graph 0 of f1


def graph_of(region: str) -> str:
    """The captured graph that a region is of, or belongs to as a part of it."""
    match = _REGION.fullmatch(region)
    return match["graph"] if match else region


def is_backward(region: str) -> bool:
    """Whether a region, or what it is a part of, computes gradients."""
    match = _REGION.fullmatch(region)
    return match is not None and match["kind"] == "backward"


def forward_of(region: str) -> str:
    """The forward whose backward a region is, or itself."""
    match = _REGION.fullmatch(region)
    if match is None or match["kind"] != "backward":
        return region
    return f"{match['graph']}_forward{region[match.end('kind') :]}"
