"""cuBLASLt called directly, for algorithms that torch does not take and epilogues of products that it does not offer.

The latter are GELU with what it was applied to, and its gradient: ``library_algorithms/gelu_operations.py`` specifies
them.

The library is the one that torch has loaded. What a call needs (descriptors, the algorithm) is prepared once for each
layout of operands; a call sets two addresses and launches. Where the library refuses, the plain form runs instead,
from then on for that layout, and ``refusals`` has the reason.

Numbers of attributes and epilogues and the result's structure are those of ``cublasLt.h`` of CUDA 12 and 13. Matrices
are column-major there: a row-major product is the product of the operands in the other order, whose vector for each
row is one for each column here.
"""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lamina.base.devices import kind_of
from lamina.library_algorithms.gelu_operations import plain, plain_backward
from lamina.runtime.torch_private import current_device, current_stream, is_capturing

__all__ = ["ALGORITHMS", "CublasLt", "Product", "Refused", "backward", "forward", "loaded"]


class Refused(Exception):
    """Why the library cannot be used, or not for these operands."""


ALGORITHMS = 8
"""How many algorithms the library is asked for."""

_NONE, _BIAS, _GELU_AUX_BIAS, _DGELU = 1, 4, 164, 192
"""Epilogues: nothing; the bias added; that kept too, and GELU of it; the product times GELU's derivative at what was
kept."""

_COMPUTE_32F, _REAL_32F = 68, 0
"""Values of ``cublasComputeType_t`` and ``cudaDataType`` for float32; another value computes in another type."""
_TYPES = {torch.float16: 2, torch.bfloat16: 14}
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _VECTOR, _AUX, _AUX_LEADING = 3, 4, 7, 8, 11, 12
"""Values of ``cublasLtMatmulDescAttributes_t``, as in cuBLAS 12 and 13."""
_MOST_WORKSPACE, _REDUCTIONS = 1, 3
"""Values of ``cublasLtMatmulPreferenceAttributes_t``: bytes of workspace, and allowed ways to reduce."""
_LEAST_ALIGNMENT = 5, 6, 7, 8
"""Attributes of a preference for the two operands and the result, which is given twice."""

_VERSIONS = range(120000, 140000)
_WORKSPACE = 32 << 20
"""Bytes of workspace offered to cuBLASLt; with less it does not propose algorithms that need more."""
_IN_FLOAT32 = 2
"""How parts of a sum may be added up: in the type that products are computed in."""

_ALIGNED = 16
"""What addresses are multiples of. Algorithms that want more are not asked for, so that a number means the same one
wherever memory begins.
"""
_MULTIPLE = 8
"""Elements of which the leading dimension of what GELU was applied to must be a multiple."""


class _Result(ctypes.Structure):
    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "Create": (c_void_p,),
    "MatmulDescCreate": (c_void_p, c_int, c_int),
    "MatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "MatrixLayoutCreate": (c_void_p, c_int, c_uint64, c_uint64, c_int64),
    "MatmulPreferenceCreate": (c_void_p,),
    "MatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "MatmulPreferenceDestroy": (c_void_p,),
    "MatmulAlgoGetHeuristic": (*((c_void_p,) * 7), c_int, c_void_p, c_void_p),
    "Matmul": (*((c_void_p,) * 14), c_size_t, c_void_p),
}


@dataclass(frozen=True, slots=True)
class Product:
    """``left @ right``, with a ``bias`` for each column if there is one: ``out`` is written.

    With ``kept`` there is GELU: with a bias too ``kept`` is written, what GELU is applied to; without, the product is
    GELU's gradient, and ``kept`` is read.
    """

    left: Tensor
    right: Tensor
    out: Tensor
    bias: Tensor | None
    kept: Tensor | None = None


@dataclass(slots=True)
class Prepared:
    """A product of one layout: its descriptor, those of operands and result, and the algorithm."""

    description: c_void_p
    layouts: tuple[c_void_p, c_void_p, c_void_p]
    result: _Result
    guard: threading.Lock = field(default_factory=threading.Lock)


class CublasLt:
    """The library for one device. Raises ``Refused`` for a library of another version or without what is needed."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions: dict[str, Any] = {}
        try:
            library.cublasLtGetVersion.restype = c_size_t
            self.version: int = library.cublasLtGetVersion()
            for name, arguments in _ARGUMENTS.items():
                function = getattr(library, f"cublasLt{name}")
                function.argtypes, function.restype = arguments, c_int
                self._functions[name] = function
        except AttributeError as error:
            raise Refused(f"cuBLASLt lacks a function: {error}") from error
        if self.version not in _VERSIONS:
            raise Refused(f"cuBLASLt has version {self.version}")
        self.matmul, self._set = self._functions["Matmul"], self._functions["MatmulDescSetAttribute"]
        self.handle = c_void_p()
        self._call("Create", byref(self.handle))
        self.one, self.zero = c_float(1.0), c_float(0.0)
        self._prepared: dict[tuple[Any, ...], Prepared | str] = {}
        self._guard = threading.Lock()

    def multiply(self, product: Product, algorithm: int) -> None:
        """Write the product's result, on the current stream; ``algorithm`` counts those that the library proposes.

        Raises ``Refused``, and does nothing.
        """
        left, right, out, vector, kept = product.left, product.right, product.out, product.bias, product.kept
        assert kept is not None, "products without GELU are those of library_algorithms/cublas_products.py"
        addresses = [t.data_ptr() for t in (left, right, out, kept)]
        low = addresses[0] | addresses[1] | addresses[2] | addresses[3] | (0 if vector is None else vector.data_ptr())
        if low % _ALIGNED:
            raise Refused("an operand's address is no multiple of 16")
        layouts = tuple(None if t is None else _layout(t) for t in (left, right, out, vector, kept))
        key = (algorithm, layouts)
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepare(key, product, algorithm)
        if isinstance(prepared, str):
            raise Refused(prepared)
        result, (a, b, d) = prepared.result, prepared.layouts
        size = result.workspace
        space = torch.empty(size, dtype=torch.uint8, device=left.device) if size else None
        stream = current_stream(left.device.index) if kind_of(left).queued else 0
        with prepared.guard:
            self._point(prepared.description, product)
            status = self.matmul(
                *(self.handle, prepared.description, byref(self.one), addresses[1], a, addresses[0], b),
                *(byref(self.zero), addresses[2], d, addresses[2], d, byref(result)),
                *(None if space is None else space.data_ptr(), size, stream),
            )
        if status:
            self._prepared[key] = why = f"cublasLtMatmul gives status {status}"
            raise Refused(why)

    @property
    def refusals(self) -> list[str]:
        """Why layouts were refused."""
        return [found for found in self._prepared.values() if isinstance(found, str)]

    def _prepare(self, key: tuple[Any, ...], product: Product, algorithm: int) -> Prepared | str:
        """Take an algorithm for these layouts, or note why there is none."""
        with self._guard:
            if key not in self._prepared:
                try:
                    self._prepared[key] = self.prepared(product, algorithm)
                except Refused as refusal:
                    self._prepared[key] = str(refusal)
            return self._prepared[key]

    def prepared(self, product: Product, algorithm: int) -> Prepared:
        """What any product of this layout needs, at any addresses that are multiples of 16."""
        left, right, out, vector, kept = product.left, product.right, product.out, product.bias, product.kept
        if not out.is_contiguous():
            raise Refused("the result is not contiguous")
        if kept is not None and (kept.shape[1] % _MULTIPLE or _layout(out) != _layout(kept)):
            raise Refused(f"what GELU is applied to has shape {tuple(kept.shape)}, strides {kept.stride()}")
        others = [t for t in (left, right, vector) if t is not None]
        if out.dtype not in _TYPES or any((t.dtype, t.device) != (out.dtype, out.device) for t in others):
            raise Refused("the operands are not of one type of half precision on one GPU")
        if vector is not None and (vector.shape != (out.shape[1],) or vector.stride() != (1,)):
            raise Refused("the bias is not a dense vector")
        description = c_void_p()
        self._call("MatmulDescCreate", byref(description), _COMPUTE_32F, _REAL_32F)
        layouts = []
        for attribute, matrix in ((_TRANSPOSE_A, right), (_TRANSPOSE_B, left), (None, out)):
            transposed, rows, columns, leading = _column_major(matrix)
            layout = c_void_p()
            self._call("MatrixLayoutCreate", byref(layout), _TYPES[out.dtype], rows, columns, leading)
            layouts.append(layout)
            if attribute is not None:
                self._put(description, attribute, c_int32(transposed))
        plain, fused = (_NONE, _DGELU) if vector is None else (_BIAS, _GELU_AUX_BIAS)
        self._put(description, _EPILOGUE, c_uint32(plain if kept is None else fused))
        if kept is not None:
            self._put(description, _AUX_LEADING, c_int64(kept.shape[1]))
        self._point(description, product)
        a, b, d = layouts
        return Prepared(description, (a, b, d), self._proposed(description, (a, b, d, d), algorithm))

    def _proposed(self, description: c_void_p, layouts: tuple[c_void_p, ...], algorithm: int) -> _Result:
        """One of the algorithms that the library proposes for a description."""
        results, found = (_Result * ALGORITHMS)(), c_int()
        preference = c_void_p()
        self._call("MatmulPreferenceCreate", byref(preference))
        try:
            wanted: list[tuple[int, Any]] = [
                (_MOST_WORKSPACE, c_uint64(_WORKSPACE)),
                (_REDUCTIONS, c_uint32(_IN_FLOAT32)),
            ]
            wanted += [(n, c_uint32(_ALIGNED)) for n in _LEAST_ALIGNMENT]
            for attribute, value in wanted:
                size = ctypes.sizeof(value)
                self._call("MatmulPreferenceSetAttribute", preference, attribute, byref(value), size)
            asked = (self.handle, description, *layouts, preference)
            self._call("MatmulAlgoGetHeuristic", *asked, ALGORITHMS, byref(results), byref(found))
        finally:
            self._functions["MatmulPreferenceDestroy"](preference)
        usable = [results[k] for k in range(found.value) if results[k].state == 0]
        if algorithm >= len(usable):
            raise Refused(f"cuBLASLt has {len(usable)} algorithms for it")
        return usable[algorithm]

    def _point(self, description: c_void_p, product: Product) -> None:
        if product.bias is not None:
            self.point(description, product.bias.data_ptr())
        if product.kept is not None:
            self._put(description, _AUX, c_void_p(product.kept.data_ptr()))

    def point(self, description: c_void_p, bias: int) -> None:
        """Have the product add the bias at this address."""
        self._put(description, _VECTOR, c_void_p(bias))

    def _put(self, description: c_void_p, attribute: int, value: Any) -> None:
        status = self._set(description, attribute, byref(value), ctypes.sizeof(value))
        if status:
            raise Refused(f"cublasLtMatmulDescSetAttribute({attribute}) gives status {status}")

    def _call(self, name: str, *arguments: Any) -> None:
        if status := self._functions[name](*arguments):
            raise Refused(f"cublasLt{name} gives status {status}")


def _layout(t: Tensor) -> tuple[Any, ...]:
    return t.dtype, t.get_device(), t.shape, t.stride()


def _column_major(matrix: Tensor) -> tuple[bool, int, int, int]:
    """How the memory of a row-major matrix reads column-major: whether transposed once more, rows, columns, and the
    distance of columns.
    """
    (rows, columns), (down, across) = matrix.shape, matrix.stride()
    if across == 1 and down >= columns:
        return False, columns, rows, down
    if down == 1 and across >= rows:
        return True, rows, columns, across
    raise Refused(f"strides {matrix.stride()} of shape {tuple(matrix.shape)}")


_LOADED: dict[int, CublasLt | str] = {}
"""By GPU of the machine."""
_GUARD = threading.Lock()


def loaded(device: int) -> CublasLt:
    """The library that torch has loaded, ready for this GPU. Raises ``Refused`` where it is not to be had."""
    found = _LOADED.get(device)
    if found is None:
        if is_capturing():
            raise Refused("the stream is recording a CUDA graph")
        with _GUARD:
            found = _LOADED[device] = _LOADED.get(device) or _opened(device)
    if isinstance(found, str):
        raise Refused(found)
    return found


def _opened(device: int) -> CublasLt | str:
    """The library, or why it is not to be had."""
    name = f"libcublasLt.so.{str(torch.version.cuda).partition('.')[0]}"
    try:
        library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except (OSError, AttributeError) as error:  # AttributeError: a system without RTLD_NOLOAD
        return f"{name} is not loaded: {error}"
    try:
        with torch.cuda.device(device):
            return CublasLt(library)
    except Refused as refusal:
        return str(refusal)


def forward(bias: Tensor, left: Tensor, right: Tensor, algorithm: int) -> tuple[Tensor, Tensor]:
    """``lamina::addmm_gelu`` by the library. Raises ``Refused``."""
    out, kept = left.new_empty(left.shape[0], right.shape[1]), left.new_empty(left.shape[0], right.shape[1])
    _of(left).multiply(Product(left, right, out, bias, kept), algorithm)
    return out, kept


def backward(left: Tensor, right: Tensor, kept: Tensor, algorithm: int) -> Tensor:
    """``lamina::mm_gelu_backward`` by the library. Raises ``Refused``."""
    out = left.new_empty(left.shape[0], right.shape[1])
    _of(left).multiply(Product(left, right, out, None, kept), algorithm)
    return out


def _of(operand: Tensor) -> CublasLt:
    if operand.device.index != current_device():
        raise Refused("another GPU is the current one")
    return loaded(operand.device.index)


@torch.library.impl("lamina::addmm_gelu", "CUDA")
def _forward(bias: Tensor, left: Tensor, right: Tensor, algorithm: int) -> tuple[Tensor, Tensor]:
    try:
        return forward(bias, left, right, algorithm)
    except Refused:
        return plain(bias, left, right)


@torch.library.impl("lamina::mm_gelu_backward", "CUDA")
def _backward(left: Tensor, right: Tensor, kept: Tensor, algorithm: int) -> Tensor:
    try:
        return backward(left, right, kept, algorithm)
    except Refused:
        return plain_backward(left, right, kept)
