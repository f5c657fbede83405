"""Private torch names of the guard machine: functions that tell state, and tensors' memory, as read in 2.11 to 2.13."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["ASKED", "CALLED", "FLAGS", "HAS_MKLDNN", "STATES", "address_of", "functions_of_state", "negative"]

_LIBRARIES = ("libc10.so", "libtorch_cpu.so")
_CPU, _CUDA = 0, 1
"""``c10::DeviceType``."""

_AUTOGRAD = "_ZN3c1013AutogradState13get_tls_stateEv"
_Beginning = ctypes.c_longlong * 4
"""The beginning of autograd's state, of which one byte has the bit of inference mode."""

ASKED: tuple[tuple[str, str, int | str], ...] = (
    ("_ZN3c108GradMode10is_enabledEv", "byte", 0),
    (_AUTOGRAD, "first byte", "autograd"),
    ("_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv", "word", 0),
    ("_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", "word", 0),
    ("_ZN2at9functorch20getDynamicLayerStackEv", "span", 0),
    ("_ZN5torch3jit6tracer15getTracingStateEv", "first word", 0),
    ("_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", "byte", _CPU),
    ("_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", "byte", _CUDA),
    ("_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE", "byte", _CPU),
    ("_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE", "byte", _CUDA),
    ("_ZN2at8autocast25is_autocast_cache_enabledEv", "byte", 0),
    ("_ZN3c1031get_default_dtype_as_scalartypeEv", "byte", 0),
    ("_ZN2at15get_num_threadsEv", "word", 0),
    ("_ZNK2at7Context23deterministicAlgorithmsEv", "byte", "context"),
    ("_ZNK2at7Context14benchmarkCuDNNEv", "byte", "context"),
    ("_ZNK2at7Context18deterministicCuDNNEv", "byte", "context"),
    ("_ZNK2at7Context16userEnabledCuDNNEv", "byte", "context"),
)
"""Functions of torch's libraries that tell state, what of the answer counts, and what they are given.

Of autograd's state that is the byte with the bit of inference mode, whose place is found by experiment.
"""
CALLED: tuple[Callable[[], Any], ...] = (torch._C._get_float32_matmul_precision,)
"""Those that are called from Python, since they may raise."""
FLAGS: tuple[tuple[dict[str, Any], str, Any], ...] = (
    (vars(forward_ad), "_current_level", -1),
    (vars(torch.compiler), "_is_compiling_flag", False),
)
"""Variables of modules that tell state, and what they are in the ordinary one."""


def functions_of_state() -> list[tuple[int, int, str]] | None:
    """(address, argument, what counts) of each function of ``ASKED``; None if this torch lacks one."""
    folder = Path(torch.__file__).parent / "lib"
    found: list[tuple[int, int, str]] = []
    try:
        libraries = [ctypes.CDLL(str(folder / name)) for name in _LIBRARIES]
        context = _symbol(libraries, "_ZN2at13globalContextEv")
        told: int = ctypes.CFUNCTYPE(ctypes.c_void_p)(context)() or 0
        for name, how, argument in ASKED:
            address = _symbol(libraries, name)
            given = {"context": told, "autograd": _place_of_inference(address) if name == _AUTOGRAD else None}.get(
                str(argument), argument
            )
            if not isinstance(given, int):
                return None
            found.append((address, given, how))
    except (OSError, AttributeError):
        return None
    return found


def _place_of_inference(address: int) -> int | None:
    """The byte of autograd's state that changes with inference mode; None if it is not one."""
    state = ctypes.CFUNCTYPE(ctypes.c_void_p)(address)
    grad = torch.is_grad_enabled()
    kinds: list[set[bytes]] = []
    for inference in (False, True):
        kinds.append(set())
        for on in (False, True):
            with torch.inference_mode(inference), torch.set_grad_enabled(on):
                kinds[-1].add(ctypes.string_at(state() or 0, ctypes.sizeof(_Beginning)))
    torch.set_grad_enabled(grad)
    off, within = kinds
    places = [
        at for at in range(ctypes.sizeof(_Beginning)) if {one[at] for one in off}.isdisjoint(one[at] for one in within)
    ]
    return places[0] if len(places) == 1 else None


def _symbol(libraries: list[ctypes.CDLL], name: str) -> int:
    for library in libraries:
        with contextlib.suppress(AttributeError):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    raise AttributeError(name)


def address_of(tensor: torch.Tensor) -> int:
    """Where the tensor beneath a Python object is."""
    found: int = tensor._cdata
    return found


negative: Callable[[torch.Tensor], torch.Tensor] = torch._neg_view
"""A view of a tensor whose values are to be negated."""
HAS_MKLDNN: bool = torch._C._has_mkldnn
"""Whether tensors can be of that library's layout."""


class _Functions(TorchFunctionMode):
    """A function mode that does nothing."""


class _Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that does nothing."""


@contextlib.contextmanager
def _cast_to(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", dtype)
    try:
        yield
    finally:
        torch.set_autocast_dtype("cpu", before)


@contextlib.contextmanager
def _no_cache() -> Iterator[None]:
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(not before)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextlib.contextmanager
def _cast() -> Iterator[None]:
    before = torch.is_autocast_enabled("cpu")
    torch.set_autocast_enabled("cpu", not before)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cpu", before)


@contextlib.contextmanager
def _transformed() -> Iterator[None]:
    level = torch._C._functorch._vmap_increment_nesting(1, "error")
    try:
        yield
    finally:
        assert torch._C._functorch._vmap_decrement_nesting() == level


@contextlib.contextmanager
def _inference_alone() -> Iterator[None]:
    """Inference mode with gradients as they are."""
    grad = torch.is_grad_enabled()
    with torch.inference_mode(not torch.is_inference_mode_enabled()), torch.set_grad_enabled(grad):
        yield


@contextlib.contextmanager
def _other_grad_mode() -> Iterator[None]:
    with torch.set_grad_enabled(not torch.is_grad_enabled()):
        yield


STATES: tuple[Callable[[], contextlib.AbstractContextManager[Any]], ...] = (
    _other_grad_mode, torch.inference_mode, _inference_alone, _Functions, _Dispatch, _transformed, _cast, _no_cache,
    lambda: _cast_to(torch.float16 if torch.get_autocast_dtype("cpu") is torch.bfloat16 else torch.bfloat16),
)  # fmt: skip
"""Contexts of this thread's that the functions of ``ASKED`` have to see."""
