"""The same program in double precision: module, inputs and the dtypes that the program names."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lamina.base.devices import kind_of

__all__ = ["apart", "copied", "doubled", "in_double", "mapped"]

WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """``value`` with every leaf of its nested tuples, lists and mappings replaced by ``function(leaf)``."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(item, function) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(mapped(item, function) for item in value)
    if isinstance(value, Mapping) and type(value) is dict:
        return {key: mapped(item, function) for key, item in value.items()}
    return function(value)


def apart(leaf: Any) -> Any:
    """A copy of an object, where one can be made; modules and functions stay, tensors are ``copied`` elsewhere."""
    if isinstance(leaf, (Tensor, nn.Module)) or callable(leaf):
        return leaf
    try:
        return copy.deepcopy(leaf)
    except Exception:
        return leaf


def copied(value: Any, *, wide: bool = False) -> Any:
    """Fresh copies of all tensors in ``value``: same strides, same aliasing among them, same gradient flags.

    Each becomes a leaf. With ``wide`` the floating and complex ones become float64 and complex128.
    """
    whole: dict[int, Tensor] = {}
    storages: dict[tuple[int, torch.dtype], Tensor] = {}

    def copy_of(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in whole:
            dtype = WIDE.get(leaf.dtype, leaf.dtype) if wide else leaf.dtype
            whole[id(leaf)] = _copy(leaf.detach(), dtype, storages).requires_grad_(leaf.requires_grad)
        return whole[id(leaf)]

    return mapped(value, copy_of)


def _copy(tensor: Tensor, dtype: torch.dtype, storages: dict[tuple[int, torch.dtype], Tensor]) -> Tensor:
    if tensor.layout is not torch.strided or not kind_of(tensor).stored:
        return tensor.to(dtype, copy=True)
    storage = tensor.untyped_storage()
    count = storage.nbytes() // tensor.element_size()
    if count == tensor.numel() and storage.data_ptr() not in {pointer for pointer, _ in storages}:
        fresh = tensor.to(dtype, copy=True)
        if fresh.stride() == tensor.stride():
            storages[storage.data_ptr(), tensor.dtype] = fresh.as_strided((count,), (1,), 0)
            return fresh
    key = (storage.data_ptr(), tensor.dtype)
    if key not in storages:
        storages[key] = tensor.as_strided((count,), (1,), 0).to(dtype, copy=True)
    return storages[key].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def doubled(module: nn.Module) -> nn.Module:
    """A deep copy of ``module`` whose floating and complex parameters and buffers are in double precision."""
    wide = copy.deepcopy(module)
    for parameter in wide.parameters():
        parameter.data = parameter.data.to(WIDE.get(parameter.dtype, parameter.dtype))
        parameter.grad = None
    for owner in wide.modules():
        for name, buffer in owner.named_buffers(recurse=False):
            setattr(owner, name, buffer.to(WIDE.get(buffer.dtype, buffer.dtype)))
    return wide


class _WideDtypes(TorchFunctionMode):
    """Reads every narrower floating dtype that a program names as the double one."""

    CASTS = (Tensor.float, Tensor.half, Tensor.bfloat16)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in self.CASTS:
            return Tensor.double(*args)
        return func(*mapped(args, _widened), **mapped(dict(kwargs or {}), _widened))


def _widened(leaf: Any) -> Any:
    return WIDE.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf


@contextmanager
def in_double() -> Iterator[None]:
    """Inside, factories make float64 by default and a named float16, bfloat16 or float32 means float64.

    A program that computes a norm "in float32 whatever the model's dtype" would else round the reference.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _WideDtypes():
            yield
    finally:
        torch.set_default_dtype(before)
