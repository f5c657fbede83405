"""What torch (2.11 to 2.13) has under private names only and several packages use.

The classes of operators, the CPU's flash attention, and the symbols of sizes that depend on data.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from traceback import clear_frames
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._autograd import CreationMeta, _get_creation_meta, _set_creation_meta
from torch._guards import detect_fake_mode
from torch._library.custom_ops import CustomOpDef
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

__all__ = [
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "as_usual",
    "base_of",
    "boxed",
    "count_together",
    "counted_version",
    "cpu_attention",
    "cpu_attention_backward",
    "fresh_symbols_dropped",
    "how_made",
    "how_made_called",
    "is_boxed",
    "is_functional",
    "is_leaf",
    "is_view",
    "let_go",
    "makes_parts",
    "memory_of",
    "name_of_how_made",
    "note_how_made",
    "operator_of",
    "packet_of",
    "returns_arguments",
    "schema_of",
    "set_versions",
    "storage_of",
    "transforms_kept",
    "unseen_by_modes",
    "version_of",
    "versions_kept",
    "without_bases",
]

aten = torch.ops.aten

F = TypeVar("F", bound=Callable[..., Any])

counted_version: Callable[[Tensor], int] = attrgetter("_version")
"""How often a tensor's memory was written. Raises ``RuntimeError`` for an inference tensor; see ``version_of``."""


def schema_of(operator: Any) -> Any:
    """The name, the arguments and the results that an ``OpOverload`` declares; None for any other function."""
    return getattr(operator, "_schema", None)


def returns_arguments(operator: OpOverload) -> bool:
    """Whether an operator declares that a result is a view of an argument, or one that it wrote to."""
    return any(result.alias_info is not None for result in operator._schema.returns)


def is_functional(call: Any) -> bool:
    """Whether ``call`` is an operator of ``torch.ops`` or of ``torch.library`` that gives new tensors and no more.

    Its overloads, if it has several, all do where tensors are given: they write to nothing and draw no numbers, as they
    declare.
    """
    if type(call) is CustomOpDef:
        return is_functional(call._opoverload)
    if type(call) is OpOverloadPacket:
        packet: Any = call
        return all(_only_computes(getattr(packet, name), with_tensors=True) for name in packet.overloads())
    return type(call) is OpOverload and _only_computes(call)


def _only_computes(overload: OpOverload, with_tensors: bool = False) -> bool:
    """Whether an overload does; ``with_tensors``: or is for calls without a tensor, or with one as ``out``."""
    schema = overload._schema
    if with_tensors and (
        any(given.is_out for given in schema.arguments)
        or not any("Tensor" in str(given.type) for given in schema.arguments)
    ):
        return True
    if schema.is_mutable or returns_arguments(overload) or torch.Tag.nondeterministic_seeded in overload.tags:
        return False
    return bool(schema.returns) and all(str(result.type) == "Tensor" for result in schema.returns)


def operator_of(call: Any) -> Any:
    """The operator that ``torch.library.custom_op`` made for a function; any other value as it is."""
    return getattr(call, "_opoverload", call)


def packet_of(call: Any) -> Any:
    """The ``OpOverloadPacket`` of an ``OpOverload``; any other value as it is."""
    return getattr(call, "_overloadpacket", call)


def boxed(call: F) -> F:
    """``call``, marked as taking its inputs in one list, which AOTAutograd then hands over without copying it."""
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def is_boxed(call: Callable[..., Any]) -> bool:
    """Whether a function has the mark of ``boxed``."""
    return bool(getattr(call, "_boxed_call", False))


def base_of(tensor: Tensor) -> Tensor | None:
    """The tensor that autograd takes ``tensor`` for a view of."""
    return tensor._base


def is_leaf(tensor: Tensor) -> bool:
    """Whether a tensor has no history, asked so that it gets none: what ``Tensor.is_leaf`` says of all but stale views.

    The history of a view whose base was written to is made anew once ``is_leaf`` is asked for, and a write to the view
    that eager refuses before that goes on after it. Raises ``RuntimeError`` where autograd refuses to make it.
    """
    if not tensor.requires_grad:
        return True
    base = tensor._base
    if base is None or base.is_leaf or _get_creation_meta(tensor) != CreationMeta.DEFAULT:
        return tensor.is_leaf
    return False


def is_view(tensor: Tensor) -> bool:
    """Whether autograd takes a tensor for a view."""
    return tensor._is_view()


def cpu_attention(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """The result, and the logarithm of the sum of each row's exponentials."""
    found = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, scale=scale)
    return found[0], found[1]


def cpu_attention_backward(
    tangent: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logarithm: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values."""
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    found = backward(tangent, query, key, value, out, logarithm, 0.0, causal, scale=scale)
    return found[0], found[1], found[2]


@contextlib.contextmanager
def fresh_symbols_dropped(values: Sequence[Any]) -> Iterator[list[Any]]:
    """Tracing inside, on the fake tensors ``values``, leaves no symbols for the next tracer to account for.

    An operation whose size depends on data makes a symbol each time it is computed with fake tensors, and torch expects
    the tracer then active to find all of them in the result. Gives the list that receives such symbols at the end.
    """
    mode = detect_fake_mode(list(values))
    environment = None if mode is None else mode.shape_env
    made: list[Any] = []
    if environment is None:
        yield made
        return
    lists = (environment.pending_fresh_unbacked_symbols, environment.ignorable_fresh_unbacked_symbols)
    before = [list(symbols) for symbols in lists]
    try:
        yield made
    finally:
        made.extend(s for symbols, old in zip(lists, before, strict=True) for s in symbols if s not in old)
        for symbols, old in zip(lists, before, strict=True):
            symbols[:] = old


def storage_of(tensor: Tensor) -> int:
    """What tells the memory of a tensor with strides from that of others, as long as it is alive."""
    return int(tensor.untyped_storage()._cdata)


def version_of(tensor: Tensor) -> int:
    """How often the tensor's memory was written, as autograd counts it; an inference tensor does not count."""
    return 0 if tensor.is_inference() else tensor._version


@contextlib.contextmanager
def unseen_by_modes() -> Iterator[None]:
    """No mode of the caller's, for functions of torch or for operations, sees what is called inside."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


def set_versions(tensors: Sequence[Tensor], versions: Sequence[int]) -> None:
    """Let autograd take each tensor for one whose memory was written so many times; see ``version_of``."""
    counting = [(t, version) for t, version in zip(tensors, versions, strict=True) if not t.is_inference()]
    torch._C._autograd._unsafe_set_version_counter(
        tuple(t for t, _ in counting), tuple(version for _, version in counting)
    )


@contextlib.contextmanager
def versions_kept(tensors: Iterable[object]) -> Iterator[None]:
    """Inside, writes raise no version of the tensors among these: whoever calls knows which it is to raise."""
    counting = [t for t in tensors if isinstance(t, Tensor)]
    before = [version_of(t) for t in counting]
    try:
        yield
    finally:
        set_versions(counting, before)


@contextlib.contextmanager
def transforms_kept() -> Iterator[None]:
    """Function transforms that are entered inside are left, with all that they switch in this thread.

    One that raises halfway may leave its level, autograd's keys of the dispatcher excluded (no operation has a history
    then, nor raises a version), and hooks on saved tensors forbidden. What is caught inside is to be ``let_go`` there.
    """
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    why = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
    with torch._C._PreserveDispatchKeyGuard():
        try:
            yield
        finally:
            torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
            if torch._C._autograd._saved_tensors_hooks_get_disabled_error_message() != why:
                if why is None:
                    torch._C._autograd._saved_tensors_hooks_enable()
                else:
                    torch._C._autograd._saved_tensors_hooks_disable(why)


def let_go(error: BaseException | None) -> None:
    """Let all go that the frames hold in which ``error``, and what it came of, were raised.

    Torch prints tensors behind a guard in a variable, which sets the dispatcher's keys back when it goes: a frame of an
    error that is kept longer than the transform in which it was raised brings back the keys of that transform.
    """
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def count_together(one: Tensor, other: Tensor) -> bool:
    """Whether a write to one of two tensors raises the version of the other, too."""
    if one is other or one.is_inference() or other.is_inference():
        return True
    before, known = other._version, one._version
    torch.autograd.graph.increment_version(one)
    together = other._version != before
    set_versions([one], [known])
    return together


def how_made(view: Tensor) -> Any:
    """How a view came to be: by a call with several results, or where gradients are off.

    Autograd refuses writes with a gradient to such a view.
    """
    return _get_creation_meta(view)


def name_of_how_made(how: Any) -> str:
    """A name for one of the ways of ``how_made``."""
    return str(how.name)


def how_made_called(name: str) -> Any:
    """The way of ``how_made`` that has a name. Raises ``KeyError`` where none has."""
    return CreationMeta.__members__[name]


def as_usual(view: Tensor) -> bool:
    """Whether a view was made by a call with one result where gradients are on; see ``how_made``."""
    return bool(how_made(view) == CreationMeta.DEFAULT)


def makes_parts(how: object) -> bool:
    """Whether a view that was made so is one of several results of a call; see ``how_made``."""
    return bool(how == CreationMeta.MULTI_OUTPUT_NODE)


def note_how_made(view: Tensor, how: Any) -> None:
    """Let autograd take ``view`` for one that was made so; see ``how_made``."""
    _set_creation_meta(view, how)


def memory_of(values: Iterable[Any]) -> frozenset[int]:
    """What tells the memory of tensors among ``values`` from that of others."""
    return frozenset(storage_of(v) for v in values if isinstance(v, Tensor) and v.layout is torch.strided)


def without_bases(values: Iterable[Any], known: frozenset[int]) -> list[Any]:
    """``values``, the results of a graph that autograd did not see, with tensors that are views of nothing inside it.

    What is a view of a tensor inside the graph is one to autograd, which lets nobody write to the view that a custom
    function returns, nor to what shares its memory. Views of the inputs, whose memory is ``known``, stay what they are,
    and so share their versions. Values in one memory share theirs as well.
    """
    values = list(values)
    own = Counter(storage_of(v) for v in values if isinstance(v, Tensor) and v.layout is torch.strided)
    made: dict[int, Tensor] = {}
    for value in values:
        if isinstance(value, Tensor) and id(value) not in made and _has_base(value, known):
            made[id(value)] = value.data if own[storage_of(value)] == 1 else value.detach()
    return [made.get(id(value), value) for value in values]


def _has_base(value: Tensor, known: frozenset[int]) -> bool:
    if not value._is_view() or value.is_inference() or value.layout is not torch.strided:
        return False
    return storage_of(value) not in known
