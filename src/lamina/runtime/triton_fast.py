"""Shorter forms of functions for generated Triton kernels, where what is lost is hidden by a rounding to 16 bits.

Single instructions of the hardware are written as such: Triton's own forms of them also scale what is tiny or huge.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["fast_erf", "fast_exp", "fast_sigmoid", "fast_tanh", "keep", "small_quotient"]

_INTERPRETED = bool(triton.knobs.runtime.interpret)

if _INTERPRETED:

    @triton.jit
    def power_of_two(x):
        """2 to the power ``x``."""
        return tl.exp2(x)

    @triton.jit
    def inverse(x):
        """1 / ``x``."""
        return 1.0 / x
else:

    @triton.jit
    def power_of_two(x):
        """2 to the power ``x`` of float32; 0 below 1.2e-38."""
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )

    @triton.jit
    def inverse(x):
        """1 / ``x`` of float32, of which nothing but 0 and infinity is tiny or huge; relative error 2e-7."""
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def fast_exp(x):
    """Exponential by the hardware's base-2 exponential; relative error about 1e-6, 0 below 1.2e-38."""
    return power_of_two(x * 1.4426950408889634)


@triton.jit
def fast_sigmoid(x):
    """1 / (1 + exp(-x)) by the hardware's exponential."""
    return inverse(1.0 + power_of_two(x * -1.4426950408889634))


@triton.jit
def fast_tanh(x):
    """Hyperbolic tangent by the hardware's exponential, near zero by its series; relative error 2e-6."""
    large = 1.0 - 2.0 * inverse(power_of_two(x * 2.885390081777927) + 1.0)
    square = x * x
    series = x * (1.0 + square * (-0.33333333 + square * (0.13333333 - square * 0.053968254)))
    return tl.where(square < 0.04, series, large)


@triton.jit
def fast_erf(x):
    """Error function as a quotient of polynomials, fitted on 0 to 3.92; error 5e-7, exactly 1 in size from 4.1 on."""
    t = tl.minimum(tl.maximum(x, -4.1, tl.PropagateNan.ALL), 4.1, tl.PropagateNan.ALL)
    z = t * t
    p = z * 2.0500576738413656e-06 + 0.0002848826115950942
    p = (p * z + 0.003765678033232689) * z + 0.052748922258615494
    p = (p * z + 0.19040808081626892) * z + 1.1283791065216064
    q = z * 3.809139889199287e-05 + 0.0011625471524894238
    q = (q * z + 0.01496934611350298) * z + 0.11410976201295853
    q = (q * z + 0.5020775198936462) * z + 1.0
    made = t * p / q
    return tl.minimum(tl.maximum(made, -1.0, tl.PropagateNan.ALL), 1.0, tl.PropagateNan.ALL)


if _INTERPRETED:

    @triton.jit
    def small_quotient(a, b):
        """``a / b``: what is interpreted multiplies and adds with two roundings."""
        return a / b
else:

    @triton.jit
    def small_quotient(a, b):
        """``a / b`` of float32, rounded as a division rounds where it is neither tiny nor huge (2**-60 to 2**60).

        One division for each of ``b``, which are few, and four multiplications and additions for each of ``a``: the
        remainder, which is exact, corrects a quotient twice. Extreme divisors are scaled, so that neither their
        inverses nor the remainders leave the range of normal numbers.
        """
        size = tl.abs(b)
        factor = tl.where(size < 7.888609052210118e-31, 1.2676506002282294e30, 1.0)
        factor = tl.where(size > 1.2676506002282294e30, 7.888609052210118e-31, factor)
        divisor = b * factor
        inverse = tl.math.div_rn(tl.zeros_like(divisor) + 1.0, divisor)
        minus = divisor * -1.0
        given = a * factor
        guess = given * inverse
        rest = tl.fma(guess, minus, given)
        near = tl.fma(rest, inverse, guess)
        made = tl.fma(tl.fma(near, minus, given), inverse, near)
        return tl.where(tl.abs(rest) < float("inf"), made, guess)


if _INTERPRETED:

    @triton.jit
    def keep(x):
        """``x``: there are no registers to keep it in."""
        return x
else:

    @triton.jit
    def keep(x):
        """``x`` of 8 to 32 bits, of which nothing made before is known: it is held as it is, not as its conversions."""
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=True, pack=32 // x.dtype.primitive_bitwidth
        )
