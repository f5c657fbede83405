"""Captured calls of which eager makes something else than tracing does: each is made once, with tensors made up for it.

Meta functions check less than the kernels behind them: mixed dtypes, dtypes without a kernel, a dimension out of range,
an ``out`` of another type. What tracing lets through would be compiled and compute something where eager raises. Some
tell another rank or other strides than the kernels give. Formulas of gradients are tried as well: some of them refuse
dtypes that the call takes.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from lamina.aot import eager_reasons
from lamina.aot.refused_numbers import fits_a_dtype
from lamina.aot.torch_private import (
    ENTER_AUTOCAST,
    EXIT_AUTOCAST,
    calling_state,
    dispatch_is_watched,
    is_torch_function,
    random_numbers_kept,
    saving_is_hooked,
    without_function_modes,
)
from lamina.aot.trial_operands import Given, Like, UnknownError, like_of, numbers_in, packed
from lamina.base.captured import argument, tensors
from lamina.base.reasons import Reason
from lamina.base.source import operation_name, source_of
from lamina.base.symbolic.torch_private import depends_on_data, is_fake

__all__ = ["order_in_eager", "other_in_eager", "other_kind_in_eager", "refused_in_eager", "trying"]

_UNTRIED = frozenset(
    str.split(
        "alias as_strided as_strided_ as_strided_scatter broadcast_tensors broadcast_to chunk clone contiguous detach"
        " empty_like expand expand_as flatten fractional_max_pool2d fractional_max_pool2d_with_indices"
        " fractional_max_pool3d fractional_max_pool3d_with_indices getattr getitem item ldl_solve lu_solve lu_unpack"
        " mT new_empty numpy ones_like ormqr permute reshape reshape_as resize_ resize_as_ segment_reduce select set_"
        " set_data size split split_with_sizes squeeze stack T t tensor_split to tolist transpose unbind unflatten"
        " unsqueeze view view_as zeros_like"
    )
)
"""Views, copies and constants, which meta functions check in full, and calls whose kernels trust integers in memory."""

_OTHER_KERNELS = frozenset(
    str.split("gru lstm multi_head_attention_forward rnn_relu rnn_tanh scaled_dot_product_attention")
)
"""Calls whose kernels, and with them the strides of results, depend on which operands require a gradient."""

_LARGE = (1e300, 2**62)
"""A float and an integer that few dtypes hold."""
_OF_NUMBERS = frozenset(
    str.split(
        "add addcdiv addcmul clamp clamp_max clamp_min div fill fill_diagonal floor_divide fmod full_like hardshrink"
        " hardtanh index_fill iadd idiv imul isub leaky_relu lerp masked_fill mul nan_to_num pow remainder rsub scatter"
        " setitem softshrink sub threshold where xlogy"
    )
)
"""Calls whose integers are values, not sizes or places."""
_SMALL = 32
"""Elements along a dimension from which a trial call uses a shorter one in its place; too small hides errors of
size.
"""
_MOST = 1 << 22
"""Elements of the operands of a call that is made in its own size, where a smaller one was refused."""
_ASKS = 4096
"""Calls whose answers are kept."""


def other_in_eager(gm: GraphModule) -> Reason | None:
    """Why the captured graph is eager's to run: a call on the CPU that raises there or gives another result, or None.

    A call is made with small sizes first; if it raises, with its own sizes and several contents. It counts as refused
    if it raises with all of them.
    """
    if dispatch_is_watched():
        return None
    with trying(), ExitStack() as stack:
        entered: dict[Node, Any] = {}
        stack.callback(lambda: [EXIT_AUTOCAST(mode) for mode in reversed(entered.values())])
        for node in gm.graph.nodes:
            if node.target is ENTER_AUTOCAST:
                entered[node] = ENTER_AUTOCAST(*node.args)
            elif node.target is EXIT_AUTOCAST and node.args[0] in entered:
                EXIT_AUTOCAST(entered.pop(node.args[0]))
            elif why := _differs(node):
                return why
    return None


def other_kind_in_eager(node: Node, laid_out: bool) -> bool:
    """Whether a captured call gives tensors of another type or rank in eager than tracing tells, or is ``laid_out``
    otherwise.
    """
    if dispatch_is_watched():
        return False
    with trying():
        why = _differs(node)
        if why is not None and why.code == eager_reasons.OTHER_IN_EAGER.number:
            why = _differs(node, differentiated=False)  # it may be its gradient that is refused
    other = {eager_reasons.OTHER_KIND.number, *([eager_reasons.MISPLACED_RESULT.number] if laid_out else [])}
    return why is not None and why.code in other


def refused_in_eager(node: Node) -> bool:
    """Whether eager refuses a captured call, which tracing takes."""
    if dispatch_is_watched():
        return False
    with trying():
        why = _differs(node, differentiated=False)
    return why is not None and why.code == eager_reasons.OTHER_IN_EAGER.number


@contextmanager
def trying() -> Iterator[None]:
    """Within it calls may be tried."""
    with torch.no_grad(), warnings.catch_warnings(), random_numbers_kept(), without_function_modes():
        warnings.simplefilter("ignore")
        yield


def order_in_eager(node: Node) -> tuple[int, ...] | None:
    """The dimensions of a call's one result in the order in which eager's memory holds them, where tracing tells
    another one; None too where that is not known. For use within ``trying``.
    """
    traced, given = tensors(node), _given(node, _places(node))
    if dispatch_is_watched() or given is None or len(traced) != 1 or not is_fake(traced[0]):
        return None
    if not _is_laid_out(node, given):
        return None
    answer = _answer(node.target, given, calling_state())
    if answer.refused or len(answer.results) != 1 or not answer.results[0].dense:
        return None
    (eager,) = answer.results
    why = _other_kind(node, traced[0], eager, True)
    return eager.order if why is not None and why.code == eager_reasons.MISPLACED_RESULT.number else None


def _places(node: Node) -> dict[Node, int]:
    return {operand: place for place, operand in enumerate(node.all_input_nodes)}


def _given(node: Node, places: dict[Node, int]) -> Given | None:
    """What a call is tried with, None if it is not tried."""
    name = operation_name(node.target)
    if node.op not in ("call_function", "call_method") or name in _UNTRIED or not node.all_input_nodes:
        return None
    if (node.op == "call_function" and not is_torch_function(node.target)) or _is_internal(name, node.target):
        return None
    try:
        given = Given((packed(node.args, places), packed(node.kwargs, places)), _wanted(node, places))
    except UnknownError:
        return None
    return given if given.likes else None


def _is_laid_out(node: Node, given: Given) -> bool:
    """Whether the strides of a call's results are those of the same call tried."""
    return operation_name(node.target) not in _OTHER_KERNELS and all(like.dense for like in given.likes)


def _is_laid_out_again(node: Node) -> bool:
    """Whether only copies in formats of their own read a call's result."""
    return bool(node.users) and all(
        user.target == "clone" and user.kwargs.get("memory_format") not in (None, torch.preserve_format)
        for user in node.users
    )


def _differs(node: Node, differentiated: bool = True) -> Reason | None:
    """In what eager differs from tracing for a call; None if in nothing that was seen, and where it is not asked.

    It is ``differentiated`` as well where its results have gradients.
    """
    places = _places(node)
    given = _given(node, places)
    if given is None:
        return None
    if not differentiated:
        given = replace(given, wanted=frozenset())
    answer = _answer(node.target, given, calling_state())
    if answer.refused:
        return eager_reasons.OTHER_IN_EAGER(place=source_of(node), error=answer.refused)
    if why := _beyond(node, given, places):
        return why
    traced = tensors(node)
    if len(traced) != len(answer.results):
        return None
    laid_out = _is_laid_out(node, given) and not _is_laid_out_again(node)
    for one, eager in zip(traced, answer.results, strict=True):
        if is_fake(one) and one.layout is torch.strided and (why := _other_kind(node, one, eager, laid_out)):
            return why
    return None


def _beyond(node: Node, given: Given, places: dict[Node, int]) -> Reason | None:
    """Why a call is eager's to make: it refuses numbers that its dtypes do not hold, and one that varies is such a one.

    One that is none is guarded to be none.
    """
    of_numbers = operation_name(node.target).strip("_") in _OF_NUMBERS
    kinds = (torch.SymInt, torch.SymFloat) if of_numbers else (torch.SymFloat,)
    numbers = [one for one in places if isinstance(argument(one), kinds)]
    varying = {one: _LARGE[isinstance(argument(one), torch.SymInt)] for one in numbers}
    if not varying:
        return None
    large = map_arg((node.args, node.kwargs), lambda one: varying.get(one, one))
    arguments = (packed(large[0], places), packed(large[1], places))
    refused = _answer(node.target, replace(given, arguments=arguments), calling_state()).refused
    if "without overflow" not in refused:
        return None
    dtypes = {like.dtype for like in given.likes} | {result.dtype for result in tensors(node)}
    if all(fits_a_dtype(argument(one), dtype) for one in varying for dtype in dtypes):
        return None
    return eager_reasons.OTHER_IN_EAGER(place=source_of(node), error=refused)


def _other_kind(node: Node, traced: Tensor, eager: Like, laid_out: bool) -> Reason | None:
    """In what a traced result differs from eager's, whose sizes may be smaller; ``laid_out``: in strides as well."""
    if traced.dtype != eager.dtype or traced.dim() != len(eager.shape):
        return eager_reasons.OTHER_KIND(
            place=source_of(node),
            eager=f"{eager.dtype} of {len(eager.shape)} dimensions",
            traced=f"{traced.dtype} of {traced.dim()}",
        )
    if not laid_out or any(depends_on_data(n) for n in (*traced.shape, *traced.stride())):
        return None
    ours = like_of(0, traced)
    if 0 in (*traced.stride(), *eager.shape):
        return None
    traced_order, order = ([i for i in like.order if ours.shape[i] > 1] for like in (ours, eager))
    return None if traced_order == order else eager_reasons.MISPLACED_RESULT(place=source_of(node))


def _wanted(node: Node, places: dict[Node, int]) -> frozenset[int]:
    """The places of the operands that a call's results have a gradient for."""
    if not any(result.requires_grad for result in tensors(node)) or saving_is_hooked(True) is not None:
        return frozenset()
    operands = ((place, operand.meta.get("example_value")) for operand, place in places.items())
    return frozenset(place for place, value in operands if isinstance(value, Tensor) and value.requires_grad)


def _is_internal(name: str, target: Any) -> bool:
    in_python = getattr(target, "__module__", None) == torch.nn.functional.__name__  # its names are those of overloads
    return name.startswith("_") and not name.startswith("__") and not in_python


@dataclass(frozen=True, slots=True)
class _Answer:
    """What eager makes of a call: why it is ``refused``, or else what its tensors are like, of whatever sizes."""

    refused: str = ""
    results: tuple[Like, ...] = ()


@functools.lru_cache(_ASKS)
def _answer(target: Any, given: Given, state: Any) -> _Answer:
    """What eager makes of a call within that ``state``, which is the present one."""
    likes = given.likes
    smaller = _smaller([like.shape for like in likes])
    problem, results = _tried(target, given, "ones", smaller)
    if problem is None:
        return _Answer("", results)
    if sum(math.prod(like.shape) for like in likes) > _MOST:
        if not _whatever_the_sizes(problem, given, smaller):
            return _Answer()
        sizes = smaller
    else:
        sizes = {}
    for fill in ("ones", "zeros", "identity"):
        problem, results = _tried(target, given, fill, sizes)
        if problem is None or isinstance(problem, LinAlgError):  # which only values raise
            return _Answer("", results)
    return _Answer(f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}")


def _whatever_the_sizes(problem: Exception, given: Given, smaller: dict[int, int]) -> bool:
    """Whether what a call with ``smaller`` sizes raised is not for a place that the operands themselves have."""
    if isinstance(problem, IndexError) and "imension out of range" not in str(problem):
        ranks = max(len(like.shape) for like in given.likes)
        return all(-ranks <= number < ranks or number in smaller for number in numbers_in(given.arguments))
    return isinstance(problem, (NotImplementedError, IndexError))


def _smaller(shapes: Sequence[tuple[int, ...]]) -> dict[int, int]:
    """A small size for each large one, distinct for distinct ones: in their ratios, or else multiples of 32 as such."""
    large = sorted({n for shape in shapes for n in shape if n > _SMALL})
    common = math.gcd(*large) // 8
    if common > 1:
        return {n: n // common for n in large}
    return {n: _SMALL * (k + 1) if n % _SMALL == 0 else _SMALL + 1 + 2 * k for k, n in enumerate(large)}


def _tried(target: Any, given: Given, fill: str, sizes: dict[int, int]) -> tuple[Exception | None, tuple[Like, ...]]:
    """What a call raises, and what its results are like."""
    args, kwargs = given.made(fill, sizes)
    try:
        results = _called(target, args, kwargs)
        if given.wanted:
            _differentiated(target, given, fill, sizes)
    except Exception as problem:
        return problem, ()
    return None, tuple(like_of(0, one) for one in results if one.layout is torch.strided)


def _called(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    value = getattr(args[0], target)(*args[1:], **kwargs) if isinstance(target, str) else target(*args, **kwargs)
    return [one for one in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(one, Tensor)]


def _differentiated(target: Any, given: Given, fill: str, sizes: dict[int, int]) -> None:
    """Make the call with gradients and compute them; operands have a history, since it may write to them."""
    leaves: list[Tensor] = []

    def with_history(place: int, tensor: Tensor) -> Tensor:
        if place not in given.wanted:
            return tensor
        leaves.append(tensor.requires_grad_())
        return tensor.clone()

    with torch.enable_grad():
        args, kwargs = given.made(fill, sizes, with_history)
        results = [one for one in _called(target, args, kwargs) if one.requires_grad]
        if results:
            torch.autograd.grad(results, leaves, [torch.ones_like(one) for one in results], allow_unused=True)
