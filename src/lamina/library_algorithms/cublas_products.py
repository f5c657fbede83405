"""Matrix products by one of the algorithms that cuBLASLt proposes: those of ``product_operations.py``, on a GPU.

What a call needs is prepared once for each layout of operands; a call gives it addresses and launches. The library is
asked for algorithms that take operands at any multiple of 16, so that what a number means does not depend on where
memory happens to begin. Where the library refuses, torch's own product runs.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from ctypes import byref
from typing import Any

import torch
from torch import Tensor

from lamina.base.bounded import remember
from lamina.base.devices import kind_of
from lamina.library_algorithms.cublas_lt import CublasLt, Product, Refused, loaded
from lamina.runtime.torch_private import current_device, current_stream

__all__ = ["library_product", "multiply"]

_ALIGNED = 16
"""Bytes to which operands are aligned where an algorithm was chosen for aligned ones."""


class _Ready:
    """A product of one layout by one algorithm; raises ``Refused`` if the library has no such.

    ``run`` launches it on the current stream, given the addresses of both factors and the result; ``failure`` says why
    that failed once. ``bias`` is the address of the bias that the descriptor has.
    """

    def __init__(self, lt: CublasLt, product: Product, algorithm: int) -> None:
        self.lt, self.prepared = lt, lt.prepared(product, algorithm)
        self.guard = threading.Lock()
        self.bias, self.failure = 0, ""
        a, b, d = self.prepared.layouts
        one, zero, chosen = byref(lt.one), byref(lt.zero), byref(self.prepared.result)
        space, device = self.prepared.result.workspace, product.left.device
        description, handle, matmul = self.prepared.description, lt.handle, lt.matmul
        self.device = device.index if kind_of(device).queued else None
        stream = functools.partial(current_stream, device.index) if kind_of(device).queued else int

        def run(left: int, right: int, out: int) -> int:
            memory = torch.empty(space, dtype=torch.uint8, device=device) if space else None
            status: int = matmul(
                *(handle, description, one, right, a, left, b, zero, out, d, out, d, chosen),
                *(None if memory is None else memory.data_ptr(), space, stream()),
            )
            return status

        self.run = run


_READY: dict[tuple[Any, ...], _Ready | str] = {}
"""By layout of the operands."""
_MOST_READY = 4096
"""Layouts: sizes that change from call to call give a new one each time."""
_GUARD = threading.Lock()


def multiply(bias: Tensor | None, left: Tensor, right: Tensor, algorithm: int, out: Tensor) -> None:
    """Write ``left @ right``, plus a bias for each column, by this algorithm. Raises ``Refused``, and does nothing."""
    _launch(_prepared(bias, left, right, algorithm, out), bias, left, right, out)


def _prepared(bias: Tensor | None, left: Tensor, right: Tensor, algorithm: int, out: Tensor) -> _Ready | str:
    """What launches products of this layout, or why there is nothing that does."""
    key: tuple[Any, ...] = (
        *(left.get_device(), algorithm, left.dtype, left.shape, left.stride()),
        *(right.dtype, right.shape, right.stride(), out.dtype, out.shape, out.stride()),
        None if bias is None else (bias.dtype, bias.shape, bias.stride()),
    )
    ready = _READY.get(key)
    if ready is None:
        lt = loaded(key[0])
        with _GUARD:
            try:
                ready = _READY.get(key) or _Ready(lt, Product(left, right, out, bias, None), algorithm)
            except Refused as refusal:
                ready = str(refusal)
            remember(_READY, key, ready, _MOST_READY)
    return ready


def _launch(ready: _Ready | str, bias: Tensor | None, left: Tensor, right: Tensor, out: Tensor) -> None:
    if isinstance(ready, str) or ready.failure:
        raise Refused(ready if isinstance(ready, str) else ready.failure)
    if ready.device is not None and ready.device != current_device():
        raise Refused("another GPU is the current one")
    a, b, d = left.data_ptr(), right.data_ptr(), out.data_ptr()
    vector = 0 if bias is None else bias.data_ptr()
    if (a | b | d | vector) % _ALIGNED:
        raise Refused("an operand's address is no multiple of 16")
    if bias is None:
        status = ready.run(a, b, d)
    else:
        with ready.guard:
            if vector != ready.bias:
                ready.lt.point(ready.prepared.description, vector)
                ready.bias = vector
            status = ready.run(a, b, d)
    if status:
        ready.failure = f"cublasLtMatmul gives status {status}"
        raise Refused(ready.failure)


def library_product(op: str, call: str) -> Callable[..., Tensor]:
    """What writes the results of one library call of a plan, and has its name, ``call``.

    ``op`` is "lamina.mm_algorithm.default" or "lamina.addmm_algorithm.default". All its operands must have the layout
    of the first ones, which is not looked at again.
    """
    ready: _Ready | str | None = None

    def write(bias: Tensor | None, left: Tensor, right: Tensor, algorithm: int, out: Tensor) -> Tensor:
        nonlocal ready
        try:
            if ready is None:
                ready = _prepared(bias, left, right, algorithm, out)
            _launch(ready, bias, left, right, out)
            return out
        except Refused:
            return torch.mm(left, right, out=out) if bias is None else torch.addmm(bias, left, right, out=out)

    def mm(left: Tensor, right: Tensor, algorithm: int, *, out: Tensor) -> Tensor:
        return write(None, left, right, algorithm, out)

    def addmm(bias: Tensor, left: Tensor, right: Tensor, algorithm: int, *, out: Tensor) -> Tensor:
        return write(bias, left, right, algorithm, out)

    known: dict[str, Callable[..., Tensor]] = {"mm_algorithm": mm, "addmm_algorithm": addmm}
    found = known[op.split(".")[1]]
    found.__name__ = found.__qualname__ = call
    return found
