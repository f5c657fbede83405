"""Matrix products and convolutions."""

from __future__ import annotations

from lamina.ops.row import ATTENTION, PRODUCT, Row, rows

__all__ = ["ROWS"]

_ATTENTION = "attention is faster in the vendor's fused kernels than in nests"
_CHOSEN = "a kernel of the library that was chosen among others"
_FASTER = "matrix products are faster in the vendor's library than in nests"

ROWS: tuple[Row, ...] = (
    *rows(
        ATTENTION,
        """
        _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
        _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
        _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
        _scaled_dot_product_fused_attention_overrideable
        _scaled_dot_product_fused_attention_overrideable_backward
        """,
        reason=_ATTENTION,
    ),
    *rows(PRODUCT, "convolution mv dot", quick=True),
    *rows(PRODUCT, "convolution_backward vdot lamina.convolution_relu"),
    *rows(
        PRODUCT,
        "_addmm_activation cudnn_convolution_relu cudnn_convolution_add_relu",
        reason="the library applies the activation to its result at hand",
    ),
    *rows(PRODUCT, "mm bmm", factors=0, quick=True, out=True),
    *rows(PRODUCT, "addmm", factors=1, quick=True, out=True),
    *rows(PRODUCT, "baddbmm", factors=1, quick=True, out=True, reason=_FASTER),
    *rows(PRODUCT, "addbmm addmv lamina.mm_odd_rows", reason=_FASTER),
    *rows(PRODUCT, "_cdist_forward _cdist_backward"),
    *rows(
        PRODUCT,
        "_pdist_forward",
        reason="distances of all pairs use a matrix product",
    ),
    *rows(PRODUCT, "lamina.mm_algorithm lamina.addmm_algorithm", out=True, reason=_CHOSEN),
    *rows(PRODUCT, "lamina.addmm_gelu lamina.mm_gelu_backward", reason=_CHOSEN),
    *rows(
        ATTENTION,
        "lamina.checked_attention lamina.checked_attention_forward lamina.checked_attention_backward",
        reason=_ATTENTION,
    ),
    *rows(
        ATTENTION,
        """
        lamina.fill_masked_rows lamina.fill_masked_rows_forward lamina.fill_masked_rows_backward
        lamina.fill_masked_rows_ lamina.fill_masked_rows_forward_ lamina.fill_masked_rows_backward_
        """,
        reason="rows of attention that a mask hides are put right by a kernel that is written by hand",
    ),
)
