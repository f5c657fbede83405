"""Why an operation of the core, or an elementwise or reducing one, has no lowering rule: it is called in ATen."""

from __future__ import annotations

from types import MappingProxyType

__all__ = ["REASONS"]

_PRODUCT = "matrix products are faster in the vendor's library than in nests"
_ATTENTION = "attention is faster in the vendor's fused kernels than in nests"
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

_TENSOR_ENDS = ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")

_BY_REASON: dict[str, tuple[str, ...]] = {
    "the library applies the activation to its result at hand": (
        *("aten._addmm_activation.default", "aten.cudnn_convolution_relu.default"),
        *("aten.cudnn_convolution_add_relu.default", "lamina.convolution_relu.default"),
    ),
    _PRODUCT: (
        *("aten.baddbmm.default", "aten.addbmm.default"),
        *("aten.addmv.default", "lamina.mm_odd_rows.default"),
    ),
    _RANDOM: (
        *("aten.rand.default", "aten.randn.default", "aten.randperm.default", "aten.native_dropout.default"),
        *("aten.rrelu.default", "lamina.philox_seed.default"),
        *("lamina.rng_state.default", "lamina.set_rng_state.default"),
    ),
    _DATA: (
        *(
            "aten.nonzero.default",
            "aten.masked_select.default",
            "aten.repeat_interleave.Tensor",
            "aten._local_scalar_dense.default",
            "aten.masked_scatter.default",
        ),
        "aten.equal.default",
    ),
    _ORDER: (
        *("aten.sort.default", "aten.sort.stable", "aten.kthvalue.default", "aten.mode.default"),
        *("aten.median.default", "aten.median.dim", "aten.nanmedian.default", "aten.nanmedian.dim"),
        *("aten.searchsorted.Tensor", "aten.bucketize.Tensor"),
    ),
    "an input that several indices may reach is combined otherwise than by a sum": ("aten.index_reduce.default",),
    "each element reads at places that another tensor gives, several at a time": (
        *("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default", "aten.max_unpool2d.default"),
        *("aten.grid_sampler_2d_backward.default", "aten.grid_sampler_3d_backward.default"),
    ),
    "each element adds to several others with weights; ATen's kernel is parallel and took 0.76 of the time": (
        *(f"aten.upsample_{kind}_backward.default" for kind in ("linear1d", "bilinear2d", "trilinear3d")),
    ),
    "sixteen weighted elements for each result; ATen's kernel is vectorised": (
        *("aten.upsample_bicubic2d.default", "aten.upsample_bicubic2d_backward.default"),
    ),
    "complex numbers are left to the library": (
        *("aten.complex.default", "aten.view_as_real.default", "aten.view_as_complex.default", "aten.polar.default"),
    ),
    "the bits of a number read as another type": ("aten.view.dtype",),
    _ATTENTION: tuple(
        f"aten._scaled_dot_product_{kind}attention{rest}.default"
        for kind, rest in (
            *(("flash_", ""), ("flash_", "_backward"), ("flash_", "_for_cpu"), ("flash_", "_for_cpu_backward")),
            *(("efficient_", ""), ("efficient_", "_backward"), ("cudnn_", ""), ("cudnn_", "_backward")),
            *(("fused_", "_overrideable"), ("fused_", "_overrideable_backward")),
        )
    ),
    _FFT: ("aten._fft_c2r.default", "aten._fft_r2c.default"),
    _PLAIN_INTEGER: (
        *("aten.sym_is_contiguous.default", "aten.sym_numel.default", "aten.sym_size.int", "aten.sym_stride.int"),
        "aten.sym_storage_offset.default",
    ),
    _EXACT: ("aten.gcd.default", "aten.lcm.default"),
    "distances of all pairs use a matrix product": ("aten._cdist_forward.default", "aten._pdist_forward.default"),
    "bags are ragged: each row gathers another number of rows": ("aten._embedding_bag.default",),
    "complex numbers are left to the library, and on real ones this is a copy": (
        *("aten._conj_physical.default", "aten.conj_physical.default"),
    ),
    "a composite that tracing takes apart": (
        *("aten.adaptive_avg_pool1d.default", "aten.avg_pool1d.default"),
        *("aten.upsample_bilinear2d.vec", "aten.upsample_nearest2d.vec"),
        *("aten.float_power.Tensor_Tensor", "aten.float_power.Tensor_Scalar", "aten.float_power.Scalar"),
    ),
    "the ends are known only at run time": (
        *(f"aten.{name}.{ends}" for name in ("linspace", "logspace") for ends in _TENSOR_ENDS),
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
