"""Every private torch name that the lowering tests use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import _dispatch_get_all_op_names, _jit_get_all_schemas
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

__all__ = ["FakeTensorMode", "OpInfo", "defined_operations", "op_db", "tagged_operations", "traced"]


def traced(fn: Callable[..., Any], args: Sequence[torch.Tensor], symbolic: bool = False) -> GraphModule:
    """The functional ATen graph of ``fn``, without decompositions; with ``symbolic`` every size is a symbol.

    A function of tensors that require gradients may call ``autograd.grad``.
    """
    mode = "symbolic" if symbolic else "fake"
    inner = fn
    if any(a.requires_grad for a in args):
        inner = make_fx(lambda *given: fn(*given), tracing_mode=mode)(*args)
    detached = [a.detach() for a in args]
    gm = make_fx(lambda *given: functionalize(inner)(*given), tracing_mode=mode)(*detached)
    if any(_mutates(node) for node in gm.graph.nodes):  # composites are taken apart below functionalization
        gm = make_fx(lambda *given: functionalize(gm)(*given), tracing_mode=mode)(*detached)
    gm.graph.eliminate_dead_code()
    return gm


def _mutates(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable and node.target is not torch.ops.aten.copy_.default


def tagged_operations(tag: str) -> list[str]:
    """Functional ATen overloads ("aten.add.Tensor") that torch marks with the tag of that name.

    Not those that name dimensions: tracing resolves names, and torch 2.13 no longer marks them.
    """
    wanted = getattr(torch.Tag, tag)
    names = sorted({s.name.removeprefix("aten::") for s in _jit_get_all_schemas() if s.name.startswith("aten::")})
    found: list[str] = []
    for name in names:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            op = getattr(packet, overload)
            named = "name" in overload.lower() or any("Dimname" in str(a.type) for a in op._schema.arguments)
            if wanted in op.tags and not op._schema.is_mutable and "out" not in overload and not named:
                found.append(str(op))
    return found


def defined_operations(space: str) -> list[str]:
    """The overloads of a namespace that torch's dispatcher knows, as "space.name.overload"."""
    names = (name.replace("::", ".") for name in _dispatch_get_all_op_names() if name.startswith(f"{space}::"))
    return [name if name.count(".") == 2 else f"{name}.default" for name in names]
