"""Why an operation of the core, or an elementwise or reducing one, has no lowering rule: it is called in ATen."""

from __future__ import annotations

from types import MappingProxyType

__all__ = ["REASONS"]

_PRODUCT = "matrix products are faster in the vendor's library than in nests"
_CONVOLUTION = "convolutions are faster in the vendor's library than in nests"
_RANDOM = "draws from eager's generator in eager's order"
_SPECIAL = "a special function too rare and too long for kernels; ATen has the series"
_DATA = "the size of the result, or its value as a Python number, depends on data"
_ORDER = "sorting and selection are not loops over independent elements"
_FFT = "Fourier transforms are complex and have their own library"
_PLAIN_INTEGER = "a property of a tensor as a Python number; lowering reads it off the graph"
_EXACT = "the algorithm is a loop of data-dependent length on integers"

_POLYNOMIALS = tuple(
    f"aten.special_{family}.{overload}"
    for family in (
        *(f"chebyshev_polynomial_{k}" for k in "tuvw"),
        *(f"shifted_chebyshev_polynomial_{k}" for k in "tuvw"),
        *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
    )
    for overload in ("default", "x_scalar", "n_scalar")
)

_BY_REASON: dict[str, tuple[str, ...]] = {
    _PRODUCT: ("aten.mm.default", "aten.bmm.default", "aten.addmm.default"),
    _CONVOLUTION: ("aten.convolution.default", "aten.convolution_backward.default"),
    _RANDOM: (
        *("aten.rand.default", "aten.randn.default", "aten.randperm.default", "aten.native_dropout.default"),
        *("aten.rrelu.default", "lamina.philox_seed.default"),
    ),
    _DATA: (
        *("aten.nonzero.default", "aten._local_scalar_dense.default", "aten.masked_scatter.default"),
        "aten.equal.default",
    ),
    _ORDER: ("aten.sort.default", "aten.topk.default"),
    _FFT: ("aten._fft_c2r.default", "aten._fft_r2c.default"),
    _PLAIN_INTEGER: (
        *("aten.sym_is_contiguous.default", "aten.sym_numel.default", "aten.sym_size.int", "aten.sym_stride.int"),
        "aten.sym_storage_offset.default",
    ),
    _EXACT: ("aten.gcd.default", "aten.lcm.default"),
    "distances of all pairs use a matrix product": ("aten._cdist_forward.default", "aten._pdist_forward.default"),
    "bags are ragged: each row gathers another number of rows": ("aten._embedding_bag.default",),
    "eager raises RuntimeError for inputs outside [0, 1], which a kernel does not check": (
        "aten.binary_cross_entropy.default",
    ),
    "complex numbers are left to the library, and on real ones this is a copy": (
        *("aten._conj_physical.default", "aten.conj_physical.default"),
    ),
    "a composite that tracing takes apart": (
        *("aten.float_power.Tensor_Tensor", "aten.float_power.Tensor_Scalar", "aten.float_power.Scalar"),
    ),
    "two results of different types from the bits of a number": ("aten.frexp.Tensor",),
    "part of a sharded vector norm; nothing but distributed tensors calls it": ("aten.linalg__powsum.default",),
    _SPECIAL: (
        *("aten.i0.default", "aten.igamma.default", "aten.igammac.default", "aten.mvlgamma.default"),
        *("aten.polygamma.default", "aten.special_airy_ai.default", "aten.special_erfcx.default"),
        *(f"aten.special_bessel_{k}.default" for k in ("j0", "j1", "y0", "y1")),
        *(f"aten.special_modified_bessel_{k}.default" for k in ("i0", "i1", "k0", "k1")),
        *(f"aten.special_scaled_modified_bessel_{k}.default" for k in ("k0", "k1")),
        *("aten.special_i0e.default", "aten.special_i1.default", "aten.special_i1e.default"),
        *("aten.special_ndtri.default", "aten.special_log_ndtr.default", "aten.special_spherical_bessel_j0.default"),
        *(f"aten.special_zeta.{overload}" for overload in ("default", "other_scalar", "self_scalar")),
        *_POLYNOMIALS,
    ),
}

REASONS: MappingProxyType[str, str] = MappingProxyType({op: why for why, ops in _BY_REASON.items() for op in ops})
"""Operation ("aten.mm.default") to reason."""
