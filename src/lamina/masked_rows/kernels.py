"""Kernels for attention's rows whose keys are all masked: what ``masked_rows/operations.py`` specifies, on a GPU.

A program reads 16 rows of the mask, or the factors of a head's rows, and leaves if no row is masked: a few microseconds
beside the library's kernel. Where some are, their weights are made from the mask in registers, a block at a time, and
multiplied on the tensor cores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from lamina.base.user_warnings import warn_user
from lamina.masked_rows.operations import MASKED, fill_backward_, fill_forward_, rows_of
from lamina.runtime.cuda_driver import CudaKernel, Driver
from lamina.runtime.cuda_host import launch_failed
from lamina.runtime.torch_private import current_stream
from lamina.runtime.triton_build import TritonBuild, TritonUnit
from lamina.runtime.triton_pool import TritonError

__all__ = ["fill", "fill_backward", "fill_forward", "kernels_of", "masked_rows", "serve_masked_rows"]

_FILL = """\
import triton
import triton.language as tl


@triton.jit
def fill(
    out, logarithm, mask, value, rows,
    ob, oh, oq, lb, lh, lq, mb, mh, mq, vb, vh, vk,
    batches, heads, masks, queries, keys, features,
):
    blocks = tl.cdiv(queries, 16)
    place = tl.program_id(0) // blocks
    b, h = place // masks, place % masks
    q = tl.program_id(0) % blocks * 16 + tl.arange(0, 16)
    inside = q < queries
    base = mask + b * mb + h * mh + q[:, None] * mq
    highest = tl.full([16, {span}], float("-inf"), tl.float32)
    for first in range(0, keys, {span}):
        k = first + tl.arange(0, {span})
        there = inside[:, None] & (k < keys)[None, :]
        highest = tl.maximum(highest, tl.load(base + k[None, :], mask=there, other=float("-inf")).to(tl.float32))
    level = tl.max(highest, 1)
    masked = inside & (level <= {masked})
    factor = tl.zeros([16], tl.float32)
    if tl.max(masked.to(tl.int32), 0) > 0:
        total = tl.zeros([16], tl.float32)
        for first in range(0, keys, 64):
            k = first + tl.arange(0, 64)
            there = masked[:, None] & (k < keys)[None, :]
            seen = tl.load(base + k[None, :], mask=there, other=float("-inf")).to(tl.float32)
            total += tl.sum(tl.exp(seen - level[:, None]), 1)
        factor = tl.where(masked, 1.0 / total, 0.0)
        d = tl.arange(0, {width})
        for shared in range(0, batches * heads):
            vb_, vh_ = b + shared // heads, h + shared % heads
            mixed = tl.zeros([16, {width}], tl.float32)
            for first in range(0, keys, 64):
                k = first + tl.arange(0, 64)
                there = masked[:, None] & (k < keys)[None, :]
                seen = tl.load(base + k[None, :], mask=there, other=float("-inf")).to(tl.float32)
                weights = tl.where(masked[:, None], tl.exp(seen - level[:, None]) * factor[:, None], 0.0)
                read = (k < keys)[:, None] & (d < features)[None, :]
                v = tl.load(value + vb_ * vb + vh_ * vh + k[:, None] * vk + d[None, :], mask=read, other=0.0)
                mixed += tl.dot(weights.to(v.dtype), v)
            at = out + vb_ * ob + vh_ * oh + q[:, None] * oq + d[None, :]
            tl.store(at, mixed.to(out.dtype.element_ty), mask=masked[:, None] & (d < features)[None, :])
{logarithm}
{rows}
"""
_LOGARITHM = (
    "            tl.store(logarithm + vb_ * lb + vh_ * lh + q * lq,"
    ' tl.full([16], float("inf"), tl.float32), mask=masked)'
)
_ROWS = """\
    tl.store(rows + place * queries + q, tl.where(masked, level, 0.0), mask=inside)
    tl.store(rows + (tl.num_programs(0) // blocks + place) * queries + q, factor, mask=inside)
"""

_ADD = """\
import triton
import triton.language as tl


@triton.jit
def add(
    gradient, mask, rows, tangent,
    gb, gh, gk, mb, mh, mq, tb, th, tq, rb, rh,
    heads, places, queries, keys, features,
):
    b, h = tl.program_id(0) // heads, tl.program_id(0) % heads
    levels = rows + b * rb + h * rh
    factors = levels + places * queries
    some = 0
    for first in range(0, queries, 1024):
        q = first + tl.arange(0, 1024)
        found = tl.load(factors + q, mask=q < queries, other=0.0) != 0.0
        some = tl.maximum(some, tl.max(found.to(tl.int32), 0))
    if some > 0:
        d = tl.arange(0, {width})
        for place in range(tl.program_id(1) * 64, keys, tl.num_programs(1) * 64):
            k = place + tl.arange(0, 64)
            added = tl.zeros([64, {width}], tl.float32)
            for first in range(0, queries, 32):
                q = first + tl.arange(0, 32)
                factor = tl.load(factors + q, mask=q < queries, other=0.0)
                masked = factor != 0.0
                if tl.max(masked.to(tl.int32), 0) > 0:
                    level = tl.load(levels + q, mask=masked, other=0.0)
                    there = masked[None, :] & (k < keys)[:, None]
                    seen = tl.load(
                        mask + b * mb + h * mh + q[None, :] * mq + k[:, None], mask=there, other=float("-inf")
                    ).to(tl.float32)
                    weights = tl.where(masked[None, :], tl.exp(seen - level[None, :]) * factor[None, :], 0.0)
                    read = masked[:, None] & (d < features)[None, :]
                    t = tl.load(tangent + b * tb + h * th + q[:, None] * tq + d[None, :], mask=read, other=0.0)
                    added += tl.dot(weights.to(t.dtype), t)
            at = gradient + b * gb + h * gh + k[:, None] * gk + d[None, :]
            written = (k < keys)[:, None] & (d < features)[None, :]
            before = tl.load(at, mask=written, other=0.0).to(tl.float32)
            tl.store(at, (before + added).to(gradient.dtype.element_ty), mask=written)
"""

_SPAN = 1024
"""Keys of a row that are read at a time to see whether it is masked."""
_PROGRAMS = 256
"""About as many programs see whether there is anything to add; where heads are fewer, several share the keys of one."""
_WIDEST = 256
"""Features of a head that the kernels hold in registers at most; wider heads are left to ATen."""
_TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
_PARAMETERS = {
    "fill": (
        *("out", "logarithm", "mask", "value", "rows"),
        *("ob", "oh", "oq", "lb", "lh", "lq", "mb", "mh", "mq", "vb", "vh", "vk"),
        *("batches", "heads", "masks", "queries", "keys", "features"),
    ),
    "add": (
        *("gradient", "mask", "rows", "tangent"),
        *("gb", "gh", "gk", "mb", "mh", "mq", "tb", "th", "tq", "rb", "rh"),
        *("heads", "places", "queries", "keys", "features"),
    ),
}
_POINTERS = {"out": "", "logarithm": "*fp32", "mask": "", "value": "", "rows": "*fp32", "gradient": "", "tangent": ""}
_SIZES = ("batches", "heads", "masks", "places", "queries", "keys", "features")
_ALIGNED = ("mask", "mb", "mh", "mq", "keys")
"""Multiples of 16 in the variant that reads the mask 16 bytes at a time."""


@dataclass(frozen=True, slots=True)
class _Variant:
    """One of the two kernels: for heads of ``width`` features; ``trained``: with what the backward needs."""

    name: str
    dtype: torch.dtype
    width: int
    trained: bool
    aligned: bool

    def unit(self) -> TritonUnit:
        if self.name == "fill":
            more = {"logarithm": _LOGARITHM, "rows": _ROWS} if self.trained else {"logarithm": "", "rows": ""}
            text = _FILL.format(span=_SPAN, masked=MASKED, width=self.width, **more)
        else:
            text = _ADD.format(width=self.width)
        parameters = _PARAMETERS[self.name]
        types = tuple(
            _POINTERS[p] or _TYPES[self.dtype] if p in _POINTERS else "i32" if p in _SIZES else "i64"
            for p in parameters
        )
        aligned = tuple(i for i, p in enumerate(parameters) if p in _ALIGNED) if self.aligned else ()
        name = f"masked_rows_{self.name}_{self.width}_{self.trained}_{self.aligned}_{types[0][1:]}"
        return TritonUnit(name, self.name, text, parameters, types, aligned, 8, 2)


def kernels_of(op: str, dtype: torch.dtype, features: int) -> list[TritonUnit]:
    """What a call of ``op`` ("lamina.fill_masked_rows_.default") launches, most likely."""
    name = "add" if op.startswith("lamina.fill_masked_rows_backward_") else "fill"
    trained = not op.startswith("lamina.fill_masked_rows_.")
    return [_Variant(name, dtype, _width(features), trained, True).unit()]


def _width(features: int) -> int:
    return max(16, 1 << (features - 1).bit_length())


Build = Callable[[Sequence[TritonUnit]], TritonBuild]


class _Server:
    """Compiles and loads the kernels for one GPU."""

    def __init__(self, device: int, build: Build, driver: Callable[[], Driver]) -> None:
        self.device, self.build, self.driver = device, build, driver
        self._loaded: dict[_Variant, CudaKernel | None] = {}
        self._guard = threading.Lock()

    def kernel(self, variant: _Variant) -> CudaKernel | None:
        """The kernel; None, after a warning, where it cannot be had."""
        if variant in self._loaded:
            return self._loaded[variant]
        with self._guard:
            if variant not in self._loaded:
                self._loaded[variant] = self._load(variant)
            return self._loaded[variant]

    def _load(self, variant: _Variant) -> CudaKernel | None:
        unit = variant.unit()
        built = self.build([unit])
        try:
            if unit.name in built.errors:
                raise built.errors[unit.name]
            return self.driver().load(built.cubins[unit.name], self.device)
        except TritonError as error:
            warn_user(f"lamina puts masked rows of attention right by torch's functions: {error.what}")
            return None


_SERVERS: dict[int, _Server] = {}
"""By GPU of the machine."""


def serve_masked_rows(device: int, build: Build, driver: Callable[[], Driver]) -> None:
    """Have the operations of ``masked_rows/operations.py`` run as kernels on this GPU, built and loaded by these."""
    if device not in _SERVERS:
        _SERVERS[device] = _Server(device, build, driver)


Layout = tuple[torch.dtype, Sequence[int], Sequence[int]]
"""Dtype, shape and strides of a tensor."""


def _layout(tensor: Tensor) -> Layout:
    return tensor.dtype, tensor.shape, tensor.stride()


@dataclass(frozen=True, slots=True)
class _Launch:
    """What a launch takes but the addresses: the kernel for any mask and, if the layout allows, for an aligned one."""

    any: _Variant
    aligned: _Variant | None
    programs: tuple[int, int]
    numbers: tuple[int, ...]


def _launched(plan: _Launch | None, mask: Tensor, addresses: Sequence[int]) -> bool:
    """Launch a kernel, if there is one for these tensors."""
    server = _SERVERS.get(mask.device.index or 0)
    if plan is None or server is None:
        return False
    variant = plan.aligned if plan.aligned is not None and mask.data_ptr() % 16 == 0 else plan.any
    kernel = server.kernel(variant)
    if kernel is None:
        return False
    code = kernel.launch(current_stream(server.device), *plan.programs, 1, *addresses, *plan.numbers)
    if code:
        launch_failed(kernel.name, code)
    return True


def _launch(
    name: str, trained: bool, programs: tuple[int, int], numbers: tuple[int, ...], mask: Layout, *others: Layout
) -> _Launch | None:
    """The launch for tensors laid out so; None if the kernels do not take them."""
    dtype, shape, stride = mask
    features = others[0][1][-1]
    if features > _WIDEST or dtype not in _TYPES or any(d != dtype or len(n) != 4 for d, n, _ in others):
        return None
    if any(s[-1] != 1 and n[-1] > 1 for _, n, s in (mask, *others)):
        return None
    general = _Variant(name, dtype, _width(features), trained, False)
    aligned = all(n % 16 == 0 for n in (*_steps(shape, stride), shape[-1]))
    return _Launch(general, replace(general, aligned=True) if aligned else None, programs, numbers)


def _steps(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Elements from one batch, head and row to the next; none where there is only one."""
    return tuple(0 if n == 1 else s for n, s in zip(shape[:3], stride[:3], strict=True))


@lru_cache(maxsize=1024)
def _filling(out: Layout, logarithm: Sequence[int] | None, mask: Layout, value: Layout) -> _Launch | None:
    """The launch of ``fill``; ``logarithm`` are the strides of that."""
    (_, (batch, heads, queries, features), _), (_, (masks, masked_heads, _, keys), _) = out, mask
    logarithms = (0, 0, 0) if logarithm is None else _steps(out[1], logarithm)
    shared = (batch // masks, heads // masked_heads, masked_heads, queries, keys, features)
    numbers = (*_steps(*out[1:]), *logarithms, *_steps(*mask[1:]), *_steps(*value[1:]), *shared)
    programs = -(-queries // 16) * masks * masked_heads
    return _launch("fill", logarithm is not None, (programs, 1), numbers, mask, out, value)


@lru_cache(maxsize=1024)
def _adding(gradient: Layout, mask: Layout, tangent: Layout) -> _Launch | None:
    """The launch of ``add``."""
    (_, (batch, heads, keys, features), _), queries = gradient, tangent[1][-2]
    masks, masked_heads = mask[1][:2]
    places = (0 if masks == 1 else masked_heads * queries, 0 if masked_heads == 1 else queries)
    sizes = (heads, masks * masked_heads, queries, keys, features)
    numbers = (*_steps(*gradient[1:]), *_steps(*mask[1:]), *_steps(*tangent[1:]), *places, *sizes)
    shares = max(1, min(-(-keys // 64), _PROGRAMS // max(batch * heads, 1)))
    return _launch("add", True, (batch * heads, shares), numbers, mask, gradient, tangent)


def fill_forward(out: Tensor, logarithm: Tensor | None, mask: Tensor, value: Tensor) -> Tensor | None:
    """Put masked rows of ``out`` right; those of ``logarithm`` too where it is given, and give levels and factors."""
    plan = _filling(_layout(out), None if logarithm is None else logarithm.stride(), _layout(mask), _layout(value))
    rows = None if logarithm is None else rows_of(out, mask)
    unused = out.data_ptr()
    logarithms = unused if logarithm is None else logarithm.data_ptr()
    addresses = (unused, logarithms, mask.data_ptr(), value.data_ptr(), unused if rows is None else rows.data_ptr())
    return rows if _launched(plan, mask, addresses) else fill_forward_(out, logarithm, mask, value)


def fill(out: Tensor, mask: Tensor, value: Tensor) -> None:
    """Put masked rows of ``out`` right."""
    fill_forward(out, None, mask, value)


def fill_backward(gradient: Tensor, mask: Tensor, rows: Tensor, tangent: Tensor) -> None:
    """Add to the values' gradient what flows back to them from masked rows."""
    if tangent.stride(-1) != 1:
        tangent = tangent.contiguous()
    plan = _adding(_layout(gradient), _layout(mask), _layout(tangent))
    addresses = (gradient.data_ptr(), mask.data_ptr(), rows.data_ptr(), tangent.data_ptr())
    if not _launched(plan, mask, addresses):
        fill_backward_(gradient, mask, rows, tangent)


_FUNCTIONS: dict[str, Callable[..., Tensor | None]] = {
    "fill_masked_rows_": fill,
    "fill_masked_rows_forward_": fill_forward,
    "fill_masked_rows_backward_": fill_backward,
}


def masked_rows(op: str) -> Callable[..., Tensor | None]:
    """The function of ``op`` ("lamina.fill_masked_rows_.default") on a GPU, without the dispatcher around it."""
    return _FUNCTIONS[op.split(".")[1]]


for _name, _function in _FUNCTIONS.items():
    torch.library.impl(f"lamina::{_name}", "CUDA", _function)
