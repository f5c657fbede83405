"""Which captured calls write to an operand, and which of them read each element where they write it."""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from lamina.base.overloads import overloads_named

__all__ = ["is_elementwise", "operands", "sets_a_part", "tensors_written", "writes_elementwise", "writes_first"]

_INPLACE = {getattr(operator, f"i{name}") for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")}
_INPLACE |= {getattr(operator, f"i{name}") for name in ("and", "or", "xor", "lshift", "rshift", "matmul", "concat")}
_INPLACE.add(operator.setitem)
_FUNCTIONS_OF_ARRAYS = frozenset(("copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask"))
_METHODS_OF_ARRAYS = frozenset(
    str.split(
        "setitem iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift irshift fill sort put "
        "partition"
    )
)
"""Functions of NumPy's that write to their first operand, and methods and operators that do."""
_KEYWORDS = {operator.and_, operator.or_, operator.not_, operator.is_}
"""Functions whose names end in an underscore since they would be keywords."""
_ELEMENTWISE = frozenset(
    str.split(
        "abs absolute add alpha_dropout arccos arccosh arcsin arcsinh arctan arctan2 arctanh copy copysign divide "
        "dropout eq fill fix floor_divide floordiv gcd ge gelu greater greater_equal gt hardswish heaviside lcm "
        "le less less_equal lshift lt masked_fill maximum minimum mish mod mul multiply ne neg negative not_equal "
        "relu6 rrelu rshift softplus sub subtract threshold truediv true_divide where xlogy xor zero and or"
    )
)
"""Of the operators that ATen does not tag as pointwise, or Python calls otherwise, those whose elements are apart."""


def _place_of_inplace(target: Any) -> int | None:
    """Which positional argument of a Python function is called "inplace"."""
    code = getattr(target, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    return names.index("inplace") if "inplace" in names else None


def writes_first(node: Node) -> bool:
    """Whether a captured call, by its name or arguments, writes to its first operand."""
    if node.kwargs.get("inplace"):
        return True
    place = _place_of_inplace(node.target)
    if place is not None and len(node.args) > place and node.args[place]:
        return True
    if node.target in _INPLACE:
        return True
    if node.target in _KEYWORDS:
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name.startswith("wrapped_"):
        return _writes_array(node.target, name)
    return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"


def _writes_array(target: Any, name: str) -> bool:
    """Whether what stands for a call of NumPy's in a captured graph, by this name, writes to its first operand."""
    plain = name.removeprefix("wrapped_")
    if type(target).__name__ == "numpy_to_tensor_wrapper":
        return plain in _FUNCTIONS_OF_ARRAYS
    return plain.strip("_") in _METHODS_OF_ARRAYS


def tensors_written(node: Node) -> list[Node]:
    """The tensors that a captured call writes to, one as often as it is written to."""
    if node.op not in ("call_function", "call_method"):
        return []
    found: list[Any] = []
    if node.args and writes_first(node):
        found += node.args[0] if isinstance(node.args[0], (list, tuple)) else [node.args[0]]
    out = node.kwargs.get("out")
    found += out if isinstance(out, (list, tuple)) else [out]
    return [one for one in found if isinstance(one, Node)]


def operands(node: Node) -> list[Node]:
    """The nodes among the arguments of a call, one as often as it is given."""
    found: list[Node] = []
    map_arg((node.args, node.kwargs), found.append)
    return found


def writes_elementwise(node: Node) -> bool:
    """Whether a captured call that writes to a tensor makes each element of operands' elements at its very place only.

    Others may have overwritten an element before they read it for another one, if the tensor is an operand as well;
    eager refuses most of those.
    """
    if node.target is operator.setitem or node.target == "__setitem__":
        return len(node.args) > 1 and sets_a_part(node.args[1])
    return is_elementwise(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", ""))


@functools.lru_cache(maxsize=1024)
def is_elementwise(name: str) -> bool:
    """The same by the name of a function or method of torch's, such as ``add_``, ``__iadd__`` or ``_foreach_add_``.

    Names that are not known are taken for others.
    """
    plain = name.removeprefix("_foreach_").strip("_")
    names = (plain, plain.removeprefix("i")) if name.startswith("__i") or hasattr(operator, name) else (plain,)
    return any(one in _ELEMENTWISE or _is_tagged(one) for one in names)


def _is_tagged(name: str) -> bool:
    return any(torch.Tag.pointwise in overload.tags for overload in overloads_named(name))


def sets_a_part(index: Any) -> bool:
    """Whether an assignment to what is at ``index`` copies to a view: numbers, slices, ``None`` and an ellipsis."""
    return all(_is_place(one) for one in (index if isinstance(index, tuple) else (index,)))


def _is_place(index: Any) -> bool:
    parts = (index.start, index.stop, index.step) if isinstance(index, slice) else (index,)
    return all(part is None or part is Ellipsis or type(part) is int for part in parts)
