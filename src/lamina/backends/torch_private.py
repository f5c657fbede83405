"""Every private torch name that backends use, with the versions it was read in (2.11 to 2.13)."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._dynamo.backends.registry import list_backends, lookup_backend
from torch._dynamo.source import ConstantSource
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._higher_order_ops.flex_attention import _permute_strides
from torch._inductor import list_mode_options, list_options
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import profiler
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
    free_symbols,
    free_unbacked_symbols,
)
from torch.utils._python_dispatch import _disable_current_modes

from lamina.lower.sizes import LIMITS

__all__ = [
    "FLEX_ATTENTION",
    "IS_ON",
    "PROFILER",
    "Special",
    "as_number",
    "beside_tracing",
    "has_data_sizes",
    "inductor_modes",
    "inductor_options",
    "laid_out_like",
    "number_symbol",
    "outside_of_tracing",
    "places_as_indices",
    "symbolic_trace",
    "symbols_in",
    "takes_one_list",
    "torch_backend",
    "torch_backend_names",
    "traced_apart",
]

FLEX_ATTENTION = torch.ops.higher_order.flex_attention


PROFILER: Mapping[str, Any] = vars(profiler)
"""``PROFILER[IS_ON]`` says whether a profiler of torch's is on. It is asked at each call, and takes 10 ns."""
IS_ON = "_is_profiler_enabled"


def torch_backend_names(without: Sequence[str] = ()) -> list[str]:
    """The names that ``torch.compile(backend=...)`` takes, less those with one of the tags of ``without``."""
    return sorted(list_backends(exclude_tags=tuple(without)))


def torch_backend(name: str) -> Callable[..., Any]:
    """The function behind a name that torch.compile knows."""
    found: Callable[..., Any] = lookup_backend(name)
    return found


def inductor_modes() -> list[str]:
    """The modes that Inductor has."""
    return list(list_mode_options())


def inductor_options() -> list[str]:
    """The names of Inductor's options."""
    return list(list_options())


@contextlib.contextmanager
def traced_apart(example_inputs: Sequence[Any]) -> Iterator[None]:
    """A compilation inside another one: what it notes of the graph it traces does not reach the outer one."""
    mode = detect_fake_mode([x for x in example_inputs if isinstance(x, torch.Tensor)])
    with tracing(None if mode is None else TracingContext(mode)):
        yield


@contextlib.contextmanager
def beside_tracing() -> Iterator[None]:
    """A graph is traced, rewritten and compiled beside the one that AOTAutograd works on."""
    with _disable_current_modes(), tracing(None), torch.no_grad():
        yield


@contextlib.contextmanager
def outside_of_tracing() -> Iterator[None]:
    """Operations make real tensors, though AOTAutograd, which calls the compiler, works on fake ones."""
    with _disable_current_modes(), torch.no_grad():
        yield


def takes_one_list(compiled: Callable[..., Any]) -> bool:
    """Whether a compiled graph takes its inputs in one list.

    AOTAutograd marks such functions, and copies the mark to wrappers of them that take each input by itself.
    """
    if not getattr(compiled, "_boxed_call", False):
        return False
    while hasattr(compiled, "_torchdynamo_orig_callable"):
        compiled = compiled._torchdynamo_orig_callable
    parameters = inspect.signature(compiled, follow_wrapped=False).parameters.values()
    return all(p.kind is not inspect.Parameter.VAR_POSITIONAL for p in parameters)


def symbols_in(value: Any) -> set[Any]:
    """The symbols of a symbolic number, of a fake tensor's sizes, strides and offset, or of several such values."""
    if isinstance(value, (tuple, list)):
        return set().union(*map(symbols_in, value))
    symbolic = isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool))
    return set(free_symbols(value)) if symbolic else set()


def number_symbol(value: Any) -> Any:
    """The symbol or limit (see ``LIMITS``) that a symbolic integer or float is; else None."""
    if not isinstance(value, (torch.SymInt, torch.SymFloat)):
        return None
    expression = value.node.expr
    return expression if expression.is_symbol or type(expression).__name__ in LIMITS else None


def as_number(expression: Any, like: Any) -> torch.SymInt:
    """``expression`` as a symbolic integer of the environment that the sizes in ``like`` are of."""
    if isinstance(like, (torch.Tensor, tuple, list)):
        parts = [*like.shape, *like.stride(), like.storage_offset()] if isinstance(like, torch.Tensor) else like
        numbers = [n for n in parts if isinstance(n, (torch.SymInt, torch.Tensor, tuple, list)) and symbols_in(n)]
        return as_number(expression, numbers[0])
    return torch.SymInt(SymNode(expression, like.node.shape_env, int, None))  # type: ignore[no-untyped-call]


def places_as_indices() -> contextlib.AbstractContextManager[Any]:
    """Within it ``x[i]`` with a tensor ``i`` without dimensions is a gather, as ``flex_attention`` takes it."""
    return TransformGetItemToIndex()


class Special(Exception):
    """A graph that was traced with examples holds only for some sizes. Says for which."""


def symbolic_trace(
    function: Callable[..., Any],
    examples: Sequence[tuple[int, int | None] | tuple[torch.Tensor, tuple[int, ...]]],
    rules: Mapping[Any, Callable[..., Any]],
) -> GraphModule:
    """``function`` as a graph of ATen operations, taken apart by ``rules``.

    Its arguments are integers, each with the least that it may be, and tensors with the dimensions of theirs that may
    have any size from 2 on; equal sizes among those are one symbol. Raises ``Special`` if the graph holds for fewer.
    """
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    given: list[Any] = []
    for place, (example, free) in enumerate(examples):
        source = ConstantSource(f"input{place}")
        if isinstance(example, int):
            symbol = env.create_symbol(example, source, dynamic_dim=DimDynamic.DYNAMIC, positive=None)
            number = env.create_symintnode(symbol, hint=example, source=source)
            assert not isinstance(free, int) or number >= free
            given.append(number)
            continue
        assert isinstance(free, tuple)
        sizes = [DimDynamic.DUCK if dim in free else DimDynamic.STATIC for dim in range(example.dim())]
        context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
        given.append(mode.from_tensor(example, source=source, symbolic_context=context))
    known = len(env.guards)
    with mode:
        made = make_fx(function, decomposition_table=dict(rules))(*given)
    if len(env.guards) > known:
        raise Special(f"{env.guards[-1].expr} was assumed")
    return made


def has_data_sizes(value: torch.Tensor) -> bool:
    """Whether a size of a fake tensor is one that only data tell, and so may be 0 or 1."""
    return bool(free_unbacked_symbols(value))


def laid_out_like(out: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """``out``, contiguous, in the order of strides that eager's attention takes from its queries."""
    found: torch.Tensor = _permute_strides(out, query.stride())
    return found
