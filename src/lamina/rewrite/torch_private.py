"""Every private torch name that the graph rewrites use, with the versions it was read in (2.11 to 2.13)."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true

__all__ = [
    "FLEX_ATTENTIONS",
    "INVOKE_SUBGRAPH",
    "SAFE_SOFTMAX",
    "SET_GRAD",
    "above_autograd_only",
    "autocast_enabled",
    "entered_autocast",
    "fake_mode_of",
    "has_fresh_symbols",
    "has_half_products",
    "ignoring_fresh_symbols",
    "is_alias",
    "one_operation",
    "outside_fake_mode",
    "plain_dispatch",
    "same_number",
    "same_size",
    "saves_its_result",
    "symbol_of",
    "tf32_convolutions",
]

SAFE_SOFTMAX = torch.ops.aten._safe_softmax.default
"""A softmax that gives zeros for a row of minus infinity, as attention does."""

FLEX_ATTENTIONS: dict[Any, int] = {
    torch.ops.higher_order.flex_attention: 4,
    torch.ops.higher_order.flex_attention_backward: 9,
}
"""Attention with functions of scores, and the place of the block mask among the arguments."""

INVOKE_SUBGRAPH = torch.ops.higher_order.invoke_subgraph
"""What a call of a region marked with ``torch.compiler.nested_compile_region`` is captured as."""

SET_GRAD = torch._C._set_grad_enabled
"""The call by which a captured graph switches gradients on and off."""

_ENTER_AUTOCAST = torch.amp.autocast_mode._enter_autocast


def same_size(a: int | torch.SymInt, b: int | torch.SymInt) -> bool:
    """Whether two sizes are the same expression. Adds no guard, so sizes that merely happen to agree are not."""
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(a.node.expr == b.node.expr)
    return not isinstance(a, torch.SymInt) and not isinstance(b, torch.SymInt) and a == b


def unlike_sizes(a: int | torch.SymInt, b: int | torch.SymInt) -> bool:
    """Whether two sizes differ whatever their symbols stand for. Adds no guard."""
    return statically_known_true(a != b)


def same_number(a: Any, b: Any) -> bool:
    """Whether two numbers, of which at least one is symbolic, are the same expression. Adds no guard."""
    return symbol_of(a) is not None and symbol_of(b) is not None and bool(symbol_of(a) == symbol_of(b))


def symbol_of(value: Any) -> Any:
    """The expression of a symbolic number; None for any other value."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.expr
    return None


def has_half_products(dtype: torch.dtype) -> bool:
    """Whether this processor multiplies matrices of bfloat16 or float16 with instructions of its own."""
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def above_autograd_only() -> contextlib.AbstractContextManager[Any]:
    """Inside, operations skip autograd and thus reach dispatch modes as they were called, not taken apart."""
    guard: contextlib.AbstractContextManager[Any] = torch._C._AutoDispatchBelowADInplaceOrView()
    return guard


def autocast_enabled() -> bool:
    """Whether autocast is on for any device."""
    return bool(torch._C._is_any_autocast_enabled())


def entered_autocast(node: Node) -> bool:
    """Whether a captured call switches autocast on."""
    if node.target is not _ENTER_AUTOCAST:
        return False
    return bool(node.args[2] if len(node.args) > 2 else node.kwargs.get("enabled", True))


def plain_dispatch() -> bool:
    """Whether no function transform and no dispatch mode is active."""
    return torch._C._functorch.peek_interpreter_stack() is None and torch._C._len_torch_dispatch_stack() == 0


def is_alias(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are of the same memory."""
    same: bool = torch._C._is_alias_of(a, b)  # type: ignore[attr-defined]
    return same


def outside_fake_mode() -> contextlib.AbstractContextManager[Any]:
    """Inside, tensors are made with memory and numbers, also in the middle of a capture."""
    real: contextlib.AbstractContextManager[Any] = unset_fake_temporarily()
    return real


@contextlib.contextmanager
def fake_mode_of(values: Sequence[Any]) -> Iterator[None]:
    """The FakeTensorMode of the first fake tensor among ``values``; a context that does nothing if there is none.

    Where sizes are symbols, calls are decomposed as they are in a capture: some kernels of torch want numbers.
    """
    fakes = [value for value in values if isinstance(value, FakeTensor)]
    if not fakes:
        yield
        return
    symbolic = any(value._has_symbolic_sizes_strides for value in fakes)
    with fakes[0].fake_mode, enable_python_dispatcher() if symbolic else contextlib.nullcontext():
        yield


def one_operation(target: Any, on_tensor: bool) -> bool:
    """Whether a captured call is one operation: a binding that torch generates for it, with nothing before or after.

    ``on_tensor``: the first argument is a tensor. Functions written in Python and indexing may be several operations.
    """
    if isinstance(target, OpOverload):
        return True
    if isinstance(target, str):
        return isinstance(getattr(torch.Tensor, target, None), types.MethodDescriptorType)
    if not isinstance(target, types.BuiltinFunctionType):
        return False
    if target.__module__ == "_operator":
        name = target.__name__.rstrip("_")
        method = getattr(torch.Tensor, f"__{name}__" if on_tensor else f"__r{name}__", None)
        return isinstance(method, types.MethodDescriptorType)
    return target.__module__ in _GENERATED


_GENERATED = ("torch", "torch._C._nn", "torch._C._linalg", "torch._C._special", "torch._C._fft")
"""The modules of functions that are generated from torch's table of operations."""


def has_fresh_symbols(value: Any) -> bool:
    """Whether the sizes of a fake tensor, or of several, depend on data."""
    return any(isinstance(x, torch.Tensor) and bool(free_unbacked_symbols(x)) for x in pytree.tree_leaves(value))


def ignoring_fresh_symbols(values: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """Inside, sizes that depend on data get symbols that nothing waits for, in the mode of the first fake tensor."""
    modes = [value.fake_mode for value in values if isinstance(value, FakeTensor)]
    if not modes or modes[0].shape_env is None:
        return contextlib.nullcontext()
    ignoring: contextlib.AbstractContextManager[Any] = modes[0].shape_env.ignore_fresh_unbacked_symbols()
    return ignoring


def tf32_convolutions() -> bool:
    """Whether torch lets cuDNN round the operands of float32 convolutions to TF32."""
    return bool(torch.backends.cudnn.conv.fp32_precision == "tf32")  # type: ignore[attr-defined]


def saves_its_result(value: torch.Tensor) -> bool:
    """Whether the gradient of the operation that gave a tensor asks for that; true where nothing tells."""
    node: Any = value.grad_fn
    return node is None or hasattr(node, "_saved_result")
