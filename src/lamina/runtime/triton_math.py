"""What generated Triton kernels call: scalar functions with eager's meaning, random numbers, exact reductions.

``libdevice`` is CUDA's library of accurate functions; in Triton's interpreter, which has no such library, torch's
functions stand in for it. Shorter forms of some are in ``triton_fast``, quotients and roots in ``triton_quotients``.
"""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice as _libdevice
from triton.runtime import interpreter

__all__ = [
    *("digamma", "float_floor_div", "float_mod"),
    *("int_floor_div", "int_mod", "int_pow", "libdevice", "max_over", "maximum", "meet", "min_over", "minimum"),
    *("multiply", "philox", "round_to_bits", "scan_logaddexp", "scan_max", "scan_min"),
    *("shift_left", "shift_right", "to_e4m3", "to_e5m2", "uniform", "uniform_quads"),
]

_INTERPRETED = bool(triton.knobs.runtime.interpret)

_TORCH_NAMES = {"rint": "round", "pow": "pow", "fmod": "fmod", "expm1": "expm1", "rsqrt": "rsqrt"}


def _by_torch(name):
    """A function of interpreted tensors that torch computes."""
    known = _TORCH_NAMES.get(name, name)
    function = getattr(torch, known, None) or getattr(torch.special, known)

    def call(*args):
        arrays = [torch.from_numpy(a.handle.data.copy()) for a in args]
        result = function(*arrays).numpy().astype(arrays[0].numpy().dtype)
        shaped = max(args, key=lambda a: a.handle.data.size)
        return tl.core.tensor(interpreter.TensorHandle(result, args[0].dtype), shaped.type)

    return call


class _Interpreted:
    """The library's functions of interpreted tensors, by name."""

    def __getattr__(self, name):
        return _by_torch(name)


libdevice = _Interpreted() if _INTERPRETED else _libdevice


@triton.jit
def int_floor_div(a, b):
    """Integer quotient rounded down."""
    q = a // b
    r = a - q * b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)


@triton.jit
def int_mod(a, b):
    """Integer remainder with the sign of the divisor."""
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def float_mod(a, b):
    """Remainder with the sign of the divisor."""
    r = libdevice.fmod(a, b)
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def float_floor_div(a, b):
    """Quotient rounded down, computed from the remainder so that it is exact, as Python does."""
    r = libdevice.fmod(a, b)
    q = (a - r) / b
    q = tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1.0, q)
    whole = tl.floor(q)
    whole = tl.where(q - whole > 0.5, whole + 1.0, whole)
    whole = tl.where(q == 0.0, (a / b) * 0.0, whole)
    return tl.where(b == 0.0, a / b, whole)


@triton.jit
def int_pow(a, b):
    """Integer power by repeated squaring; a negative exponent gives 0 unless the base is 1 or -1."""
    result = a * 0 + 1
    base = a
    power = b
    for _ in tl.static_range(63):
        result = tl.where((power & 1) != 0, result * base, result)
        base = base * base
        power = power >> 1
    inverse = tl.where(a == 1, a, tl.where(a == -1, tl.where((b & 1) != 0, a, a * a), a * 0))
    return tl.where(b < 0, inverse, result)


@triton.jit
def shift_left(a, b, BITS: tl.constexpr):
    """Shift that gives 0 for a negative distance and from the width on."""
    inside = (b >= 0) & (b < BITS)
    return tl.where(inside, a << tl.where(inside, b, b * 0), a * 0)


@triton.jit
def shift_right(a, b, BITS: tl.constexpr):
    """Arithmetic shift; a negative distance and one from the width on leave the sign."""
    return a >> tl.where((b >= 0) & (b < BITS), b, b * 0 + (BITS - 1))


@triton.jit
def maximum(a, b):
    """The larger one; NaN if either is."""
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def minimum(a, b):
    """The smaller one; NaN if either is."""
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def multiply(a, b):
    """Product, for reductions."""
    return a * b


@triton.jit
def _largest(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _smallest(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


def _by_numpy(name):
    """A reduction of interpreted tensors by numpy, whose max and min propagate NaN."""
    method = f"a{name}"

    def call(x, axis=None, keep_dims=False):
        axis = axis.value if hasattr(axis, "value") else axis
        value = torch.from_numpy(x.handle.data.copy())
        if axis is None:
            value = value.reshape(-1)
        data = getattr(torch, method)(value, dim=axis or 0, keepdim=keep_dims).numpy()
        scalar = axis is None or not data.shape
        kind = x.dtype if scalar else tl.block_type(x.dtype, list(data.shape))
        return tl.core.tensor(interpreter.TensorHandle(data.reshape(1) if scalar else data, x.dtype), kind)

    return call


if _INTERPRETED:
    max_over, min_over = _by_numpy("max"), _by_numpy("min")
else:

    @triton.jit
    def max_over(x, axis: tl.constexpr = None, keep_dims: tl.constexpr = False):
        """Largest along an axis (of everything without one); NaN if there is any."""
        return tl.reduce(x, axis, _largest, keep_dims=keep_dims)

    @triton.jit
    def min_over(x, axis: tl.constexpr = None, keep_dims: tl.constexpr = False):
        """Smallest along an axis (of everything without one); NaN if there is any."""
        return tl.reduce(x, axis, _smallest, keep_dims=keep_dims)


if _INTERPRETED:

    @triton.jit
    def meet(programs: tl.constexpr):
        """Nothing: interpreted programs run one after the other."""
else:

    @triton.jit
    def meet(programs: tl.constexpr):
        """Wait for the other programs of the cluster, of which there are ``programs``, and see what they wrote."""
        tl.inline_asm_elementwise(
            "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; mov.u32 $0, $1;",
            "=r,r",
            [tl.program_id(0)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def scan_max(a, b):
    """Running maximum; NaN stays."""
    return maximum(a, b)


@triton.jit
def scan_min(a, b):
    """Running minimum; NaN stays."""
    return minimum(a, b)


@triton.jit
def scan_logaddexp(a, b):
    """log(exp(a) + exp(b)); infinities of one sign stay themselves."""
    high = maximum(a, b)
    low = tl.where(a > b, b, a)
    both = high + libdevice.log1p(libdevice.exp(low - high))
    return tl.where((high == low) & (tl.abs(high) == float("inf")), high, both)


@triton.jit
def round_to_bits(x):
    """``x``, at most 2**21 in size, rounded to the nearest whole number: an int32 whose low 16 bits are its own.

    Half-way values go to the even neighbour; NaN gives 0.
    """
    return tl.where(x == x, (x + 12582912.0).to(tl.int32, bitcast=True), 0)


@triton.jit
def digamma(x):
    """Derivative of lgamma: reflection below 0, recurrence up to 10, then the asymptotic series."""
    below = x < 0.0
    whole = tl.floor(x) == x
    # The nearest whole number is taken away exactly; next to a pole pi times the rest is then as exact as the rest.
    # Pi is written out: a name for it would be a float32 in Triton.
    fraction = x - tl.floor(x + 0.5)
    reflected = 3.141592653589793 / libdevice.tan(3.141592653589793 * fraction)
    y = tl.where(below, 1.0 - x, x)
    total = (y != y).to(y.dtype)
    for _ in tl.static_range(10):
        small = y < 10.0
        total = tl.where(small, total - 1.0 / y, total)
        y = tl.where(small, y + 1.0, y)
    z = 1.0 / (y * y)
    series = z * (
        8.33333333333333333333e-2
        - z
        * (
            8.33333333333333333333e-3
            - z
            * (
                3.96825396825396825397e-3
                - z
                * (
                    4.16666666666666666667e-3
                    - z * (7.57575757575757575758e-3 - z * (2.10927960927960927961e-2 - z * 8.33333333333333333333e-2))
                )
            )
        )
    )
    value = libdevice.log(y) - 0.5 / y - series + total
    value = tl.where(below, value - reflected, value)
    value = tl.where(below & whole, x * 0.0 + float("nan"), value)
    return tl.where(x == 0.0, -1.0 / x, value)


def _eight_bits(to, held):
    """A conversion of interpreted float32 tensors by torch: the interpreter's own loses carries into the exponent."""

    def call(x, largest=None):
        data = torch.from_numpy(x.handle.data.copy()).to(to).view(torch.uint8).numpy()
        kind = tl.block_type(held, list(x.shape)) if x.shape else held
        return tl.core.tensor(interpreter.TensorHandle(data, held), kind)

    return call


if _INTERPRETED:
    to_e4m3 = _eight_bits(torch.float8_e4m3fn, tl.float8e4nv)
    to_e5m2 = _eight_bits(torch.float8_e5m2, tl.float8e5)
else:

    @triton.jit
    def to_e4m3(x, largest):
        """float32 to float8_e4m3fn; what does not fit becomes ``largest`` with its sign, as eager makes it."""
        beyond = tl.where(x < 0.0, -largest, largest)
        return tl.where(tl.abs(x) > 464.0, beyond, x).to(tl.float8e4nv)

    @triton.jit
    def to_e5m2(x):
        """float32 to float8_e5m2; what does not fit becomes infinite, as in eager."""
        large = tl.where(x < 0.0, float("-inf"), float("inf"))
        return tl.where(tl.abs(x) >= 61440.0, large, x).to(tl.float8e5)


@triton.jit
def philox(seed, stream, block):
    """The four 32-bit words of Philox4x32-10: key ``seed`` (64 bits), counter ``(block, stream)``."""
    zero = block * 0
    c0 = block.to(tl.uint32)
    c1 = (block.to(tl.int64) >> 32).to(tl.uint32)
    c2 = (zero + stream).to(tl.uint32)
    c3 = zero.to(tl.uint32)
    key0 = seed.to(tl.uint32)
    key1 = (seed >> 32).to(tl.uint32)
    m0 = tl.full((), 0xD2511F53, tl.uint32)
    m1 = tl.full((), 0xCD9E8D57, tl.uint32)
    w0 = tl.full((), 0x9E3779B9, tl.uint32)
    w1 = tl.full((), 0xBB67AE85, tl.uint32)
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(c0, m0), c0 * m0
        high1, low1 = tl.umulhi(c2, m1), c2 * m1
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0 = key0 + w0
        key1 = key1 + w1
    return c0, c1, c2, c3


@triton.jit
def uniform(seed, stream, index):
    """Uniform float32 numbers in [0, 1): word ``index % 4`` of block ``index // 4``."""
    c0, c1, c2, c3 = philox(seed, stream, index >> 2)
    lane = index & 3
    word = tl.where(lane < 2, tl.where(lane == 0, c0, c1), tl.where(lane == 2, c2, c3))
    return (word >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def uniform_quads(seed, stream, block):
    """The four numbers of each block, side by side along the last dimension: a quarter of the work of ``uniform``."""
    c0, c1, c2, c3 = philox(seed, stream, block)
    word = tl.interleave(tl.interleave(c0, c2), tl.interleave(c1, c3))
    return (word >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08
