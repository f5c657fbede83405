"""What a backend is: a frozen value with a compile function and the facts that decide what it is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.backends.device import DeviceOf
from lamina.base.identity import place_of
from lamina.base.passes import Passes
from lamina.base.rule import NestRule, Rule
from lamina.errors import BackendFailed, BadArgument

__all__ = ["GRAPHS", "Backend", "Compiled", "Supports", "accepted", "tensors_of"]

Compiled = Callable[..., Any]
"""A compiled graph: takes the graph's inputs and returns its outputs in a tuple or list (a single one may be bare)."""

Supports = Callable[[Node], "bool | str"]
"""Says of one call in a graph whether a backend takes it: True, False, or why not."""

GRAPHS = ("aten", "torch")

_MEMBERS: tuple[tuple[str, tuple[type, ...], str], ...] = (
    ("devices", (str,), 'pass types of devices, such as ("cpu",)'),
    ("dtypes", (torch.dtype,), "pass dtypes, such as (torch.float32,)"),
    ("takes", (str,), "pass names of options"),
    ("requires", (str,), "pass names of packages"),
    ("rules", (Rule, NestRule), "make rules with lamina.extend.rule or nest_rule"),
)
"""Fields that hold several values: what each of them must be, and what to do."""


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to run a graph.

    ``compile(gm, example_inputs)`` returns a callable; it may also take any of the keywords ``name`` (of the graph),
    ``kind`` ("inference", "forward" or "backward"), ``options`` and ``record``. With ``graph`` "aten" it is given
    functional ATen graphs, every node with ``meta["val"]``: one for inference, or the forward and the backward that
    ahead-of-time autograd made, so that it need not know of gradients. With "torch" it is given the graph of torch
    calls as captured, and differentiates and mutates as the graph says. ``example_inputs`` are fake tensors and sizes.
    A ``compile`` that raises ``NotImplementedError`` declines the graph.

    The facts: types of ``devices`` and ``dtypes`` it takes (empty: all), whether it takes graphs made for ``training``
    and graphs with ``dynamic`` sizes, and ``supports``, asked of every call. What a backend does not take is split
    off and run by ``fallback`` (a backend or its name), with a ``Decision`` that gives the reason. ``writes`` says
    that it takes graphs that end in ``aten.copy_`` into inputs; otherwise those copies are made outside.

    ``candidates(gm, example_inputs)`` returns other backends for the same graph; in the modes "max-autotune..." all
    are compiled and timed at the first call, and the fastest stays. ``save(compiled)`` gives bytes, from which
    ``load(data, gm, example_inputs)`` makes an equal callable: with both, compiled graphs are kept in the cache, under
    a key that holds ``version``. ``takes`` names those of Lamina's options for kernels (and "mode") that it heeds,
    ``requires`` the packages that must be installed. ``passes`` and ``rules`` go before those of the options.

    A backend replaces either all stages from a functional graph to a callable, by ``compile``, or the last of them
    only: ``kernels(program, options)`` gives the ``Device`` that plans, writes, builds and loads the kernels of a graph
    that Lamina lowers and fuses.
    """

    name: str
    compile: Callable[..., Compiled] | None = None
    graph: str = "aten"
    devices: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()
    training: bool = True
    dynamic: bool = True
    supports: Supports | None = None
    fallback: Backend | str = "eager"
    writes: bool = False
    candidates: Callable[[GraphModule, Sequence[Any]], Sequence[Backend]] | None = None
    save: Callable[[Compiled], bytes] | None = None
    load: Callable[[bytes, GraphModule, Sequence[Any]], Compiled] | None = None
    version: str = ""
    takes: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    passes: Passes = field(default_factory=Passes)
    rules: tuple[Rule | NestRule, ...] = ()
    kernels: DeviceOf | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise BadArgument(f"a backend's name is {self.name!r}", remedy="pass a word")
        if self.kernels is None and not callable(self.compile):
            raise BadArgument(
                f"the compile of backend {self.name!r} is a {type(self.compile).__name__}",
                remedy="pass a function (gm, example_inputs) -> callable",
            )
        if self.kernels is not None and (self.compile is not None or not callable(self.kernels)):
            raise BadArgument(
                f"backend {self.name!r} has both compile and kernels, or kernels that cannot be called",
                remedy="give one of them: kernels gives the device whose stages follow Lamina's own",
            )
        if not isinstance(self.version, str):
            raise BadArgument(
                f"the version of backend {self.name!r} is {self.version!r}", remedy=f'pass a text: "{self.version}"'
            )
        if self.graph not in GRAPHS:
            raise BadArgument(f"the graph of backend {self.name!r} is {self.graph!r}", remedy='use "aten" or "torch"')
        for name in ("devices", "dtypes", "takes", "requires", "rules"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise BadArgument(
                    f"{name} of backend {self.name!r} is the string {value!r}", remedy=f"pass a tuple: ({value!r},)"
                )
            if not isinstance(value, (tuple, list, set, frozenset)):
                raise BadArgument(f"{name} of backend {self.name!r} is {value!r}", remedy="pass a tuple")
            object.__setattr__(self, name, tuple(value))
        self._check_fields()
        if (self.save is None) != (self.load is None):
            raise BadArgument(f"backend {self.name!r} has one of save and load", remedy="give both, or neither")

    def _check_fields(self) -> None:
        for name, kinds, remedy in _MEMBERS:
            for one in getattr(self, name):
                if not isinstance(one, kinds):
                    raise BadArgument(f"{name} of backend {self.name!r} holds {one!r}", remedy=remedy)
        for name in ("supports", "candidates", "save", "load"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise BadArgument(f"{name} of backend {self.name!r} is {value!r}", remedy="pass a function")
        for name in ("training", "dynamic", "writes"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise BadArgument(f"{name} of backend {self.name!r} is {value!r}", remedy="pass True or False")
        if not isinstance(self.passes, Passes):
            raise BadArgument(f"passes of backend {self.name!r} is {self.passes!r}", remedy="pass a Passes")
        fallback: object = self.fallback
        if not isinstance(fallback, (str, Backend)):
            remedy = "pass a Backend or its name"
            raise BadArgument(f"fallback of backend {self.name!r} is {fallback!r}", remedy=remedy)

    def replace(self, **changes: Any) -> Backend:
        """The same backend with some fields changed."""
        return replace(self, **changes)

    def refuses_graph(self, gm: GraphModule, kind: str) -> str:
        """Why no part of a graph of ``kind`` is for this backend; "" when it may be."""
        if kind in ("forward", "backward") and not self.training:
            return f"{self.name} does not train"
        if not self.dynamic and any(_is_symbolic(node.meta.get("val")) for node in gm.graph.nodes):
            return f"{self.name} needs sizes that are known when it compiles"
        return ""

    def refuses(self, node: Node) -> str:
        """Why one call is not for this backend; "" when it is."""
        if self.devices or self.dtypes:
            for tensor in tensors_of(node, *node.all_input_nodes):
                if self.devices and tensor.device.type not in self.devices:
                    return f"a tensor on {tensor.device.type}"
                if self.dtypes and tensor.dtype not in self.dtypes:
                    return f"a tensor of {tensor.dtype}"
        if self.supports is None:
            return ""
        try:
            answer: object = self.supports(node)
        except Exception as error:
            raise self._failed(node, f"raised {type(error).__name__}: {error}") from error
        if isinstance(answer, str):
            return answer
        if answer is None:
            raise self._failed(node, "returned None")
        return "" if answer else f"{node.target} is not supported"

    def _failed(self, node: Node, what: str) -> BackendFailed:
        return BackendFailed(
            f"supports of backend {self.name!r} {what} for node {node.name!r}, a call of {node.target}",
            where=place_of(self.supports),
            remedy="return True, False or the reason why not, for every call",
        )

    @property
    def takes_all(self) -> bool:
        """Whether no graph needs to be looked at call by call."""
        return not (self.devices or self.dtypes or self.supports)


def accepted(function: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """Those of the ``offered`` keywords that ``function`` takes."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # built in, without a signature
        return {}
    return {name: value for name, value in offered.items() if name in parameters}


def tensors_of(*nodes: Node) -> list[torch.Tensor]:
    """The fake tensors that stand for the values of ``nodes``."""
    found: list[torch.Tensor] = []
    for node in nodes:
        value = node.meta.get("val")
        several = value if isinstance(value, (tuple, list)) else (value,)
        found += [one for one in several if isinstance(one, torch.Tensor)]
    return found


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_is_symbolic(one) for one in value)
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in (*value.shape, *value.stride()))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
