"""Why a trace is known not to compute what its program does; names as read in torch 2.11 to 2.13."""

from __future__ import annotations

import builtins
import dis
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch._dynamo.utils import numpy_method_wrapper, numpy_operator_wrapper, numpy_to_tensor_wrapper
from torch._guards import TracingContext

from lamina.base.aliasing import tensors_written
from lamina.base.assumed_sizes import assumed_equal, assumed_size, assumed_step, wider_mask
from lamina.base.captured import is_custom_function
from lamina.capture.external_state import reads
from lamina.capture.external_state.torch_private import registered_names, translator, value_of
from lamina.capture.finalizers.torch_private import noticed_end
from lamina.capture.trace_notes.torch_private import calls_custom_function, classes_of_tensors, generators_left

__all__ = ["refused", "unseen_end"]


def refused(gm: torch.fx.GraphModule) -> str:
    """Why the graph being compiled is not what the program computes, as far as is known; "" if it is."""
    context, tx = TracingContext.try_get(), translator()
    if context is None or tx is None:
        return ""
    codes = reads.users_own(context.traced_code)
    whys = (
        "" if tx.one_graph else _assumed(gm, reads.names_read(codes)),
        _numpy_scalar(gm, tx, codes),
        _unknown_of_tensors(codes),
        _hidden_name(tx, reads.names_read(context.traced_code)),
        "" if tx.one_graph or not any(map(_draws_in_two_dtypes, gm.graph.nodes)) else _TWO_DTYPES,
        _derivative_lost(gm, tx, codes),
        unseen_end(),
        _own_operators(tx),
    )
    return next(filter(None, whys), "")


def _assumed(gm: torch.fx.GraphModule, names: frozenset[str]) -> str:
    """What the graph takes for granted of sizes that only data tell, "" if nothing; a program may check them itself."""
    why = assumed_size(gm, of_tensors=True) or wider_mask(gm)
    return why or ("" if "_check" in names else assumed_equal(gm) or assumed_step(gm))


def _numpy_scalar(gm: torch.fx.GraphModule, tx: Any, codes: Sequence[CodeType]) -> str:
    """NumPy gives a scalar where there is one number, and a trace an array without dimensions."""
    made = [n for n in gm.graph.nodes if _gives_scalar(n)]
    if made and _is_written_after(made, gm):
        return "an element of a NumPy array is a number of its own, and is captured as a view, which is written to"
    returned = not tx.one_graph and not set(gm.graph.output_node().all_input_nodes).isdisjoint(made)
    if returned:
        return "a number that NumPy computes is a scalar, and is captured as an array"
    if not reads.asks_for_type(codes):
        return ""
    given = [tx.f_locals.get(name) for name in tx.f_code.co_varnames[: tx.f_code.co_argcount]]
    held = [tx.f_globals.get(name) for name in reads.names_read(codes)]
    if made or any(isinstance(v, np.generic) for v in (*given, *held)):
        return "it asks for the type of a value and has a NumPy scalar, which is captured as an array"
    return ""


def _is_written_after(elements: Sequence[torch.fx.Node], gm: torch.fx.GraphModule) -> bool:
    """Whether the graph writes to anything after one of the ``elements`` was taken of an array."""
    names = ((n, getattr(n.target, "__name__", "")) for n in elements)
    taken = {n for n, name in names if name.removeprefix("wrapped_").strip("_") == "getitem"}
    seen = False
    for node in gm.graph.nodes:
        seen = seen or node in taken
        if seen and tensors_written(node):
            return True
    return False


_NUMPY = (numpy_to_tensor_wrapper, numpy_method_wrapper, numpy_operator_wrapper)
_KINDS_OF_ARRAYS = ("array", "asarray", "asanyarray", "zeros", "ones", "empty", "full", "reshape", "squeeze")


def _gives_scalar(node: torch.fx.Node) -> bool:
    """Whether NumPy gives a scalar for this call: one number, unless the function makes arrays of anything."""
    value = node.meta.get("example_value")
    if not isinstance(node.target, _NUMPY) or not isinstance(value, torch.Tensor) or value.dim() > 0:
        return False
    return node.target.__name__.removeprefix("wrapped_").removesuffix("_like") not in _KINDS_OF_ARRAYS


def _unknown_of_tensors(codes: Sequence[CodeType]) -> str:
    unknown = sorted(reads.names_read(codes) & {"_version", "output_nr", "retains_grad"})
    return f"it asks for {' and '.join(unknown)} of a tensor, of which a trace knows nothing" if unknown else ""


def _hidden_name(tx: Any, read: frozenset[str]) -> str:
    for variable in tx.output.variable_tracker_cache.values():
        for name in registered_names(variable, read):
            if name in vars(value_of(variable)):
                kind = type(value_of(variable)).__qualname__
                return f"an attribute {name} hides what is registered under this name in a module of class {kind}"
    return ""


_TWO_DTYPES = "torch.normal of tensors of two dtypes gives that of the first, and is captured as if it were promoted"
_TRANSFORMS = frozenset({"_grad_increment_nesting", "_vmap_increment_nesting", "_jvp_increment_nesting"})


def _derivative_lost(gm: torch.fx.GraphModule, tx: Any, codes: Sequence[CodeType]) -> str:
    """Custom autograd functions whose derivative is another one in the graph."""
    names = {getattr(n.target, "__name__", "") for n in gm.graph.nodes}
    if not names.isdisjoint(_TRANSFORMS) and calls_custom_function(tx.output):
        return "a custom autograd function within a transform of torch.func is captured without its derivative"
    if "set_materialize_grads" in reads.names_read(codes) and any(map(_gives_several, gm.graph.nodes)):
        return "a custom autograd function asks for gradients that are not there as None, and is captured with zeros"
    return ""


def unseen_end() -> str:
    """Why the trace that ends now is wrong: something ends while the program runs that the trace leaves alive, or "".

    That is a generator that was left within ``try`` or ``with``, and an object whose end is noticed.
    """
    tx = translator()
    for code, names in () if tx is None else generators_left(tx.output):
        if _acts_when_closed(code, names):
            return f"the generator {code.co_name} is left before it ends, within try or with"
    return "" if tx is None else noticed_end(tx)


def _acts_when_closed(code: CodeType, names: Mapping[str, Any]) -> bool:
    """Whether a handler of a generator may take the exception that closes it; ``names`` are its globals.

    One for other exceptions, as that of ``collections.abc.Sequence.__iter__`` for an ``IndexError``, raises it again.
    """
    steps = list(dis.get_instructions(code))
    place = {step.offset: at for at, step in enumerate(steps)}
    for at, step in enumerate(steps):
        if step.opname != "PUSH_EXC_INFO":
            continue
        at += 1
        while steps[at].opname != "RERAISE":
            kinds = []
            while steps[at].opname == "LOAD_GLOBAL":
                kinds.append(names.get(steps[at].argval, getattr(builtins, steps[at].argval, None)))
                at += 1
            at += steps[at].opname == "BUILD_TUPLE"
            if steps[at].opname != "CHECK_EXC_MATCH" or not all(map(_is_ordinary, kinds)):
                return True
            at = place[steps[at + 1].argval]
    return False


def _is_ordinary(kind: object) -> bool:
    """Whether it is a class of exceptions that what closes a generator is none of."""
    return isinstance(kind, type) and issubclass(kind, Exception)


_BINARY = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "xor", "or")
_OTHERS = (
    *("neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge"),
    *("len", "getitem", "setitem", "iter", "contains", "bool"),
)
_METHODS = {f"__{before}{name}__" for name in _BINARY for before in ("", "r", "i")} | {f"__{n}__" for n in _OTHERS}


def _own_operators(tx: Any) -> str:
    """Operators that a class of tensors defines itself, for which a trace takes those of plain tensors."""
    for kind in classes_of_tensors(tx.output):
        for one in kind.__mro__[: kind.__mro__.index(torch.Tensor)]:
            own = sorted(_METHODS & set(vars(one)))
            if own and not one.__module__.startswith("torch."):
                return f"tensors of class {kind.__qualname__} have a method {own[0]} of their own, which is not traced"
    return ""


def _gives_several(node: torch.fx.Node) -> bool:
    """Whether ``node`` calls a custom autograd function with more than one result."""
    values = node.meta.get("example_value")
    return is_custom_function(node) and isinstance(values, (tuple, list)) and len(values) > 1


def _draws_in_two_dtypes(node: torch.fx.Node) -> bool:
    if node.target is not torch.normal or node.kwargs.get("out") is not None:
        return False
    values = [n.meta.get("example_value") for n in node.all_input_nodes]
    return len({v.dtype for v in values if isinstance(v, torch.Tensor)}) > 1
