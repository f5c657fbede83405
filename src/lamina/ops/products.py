"""Matrix products and convolutions."""

from __future__ import annotations

from lamina.ops.row import ATTENTION, PRODUCT, Row, rows

__all__ = ["ROWS"]

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
        reason="attention is faster in the vendor's fused kernels than in nests",
    ),
    *rows(PRODUCT, "convolution convolution_backward mm addmm bmm mv dot vdot"),
    *rows(
        PRODUCT,
        "_addmm_activation cudnn_convolution_relu cudnn_convolution_add_relu lamina.convolution_relu",
        reason="the library applies the activation to its result at hand",
    ),
    *rows(
        PRODUCT,
        "baddbmm addbmm addmv lamina.mm_odd_rows",
        reason="matrix products are faster in the vendor's library than in nests",
    ),
    *rows(
        PRODUCT,
        "_cdist_forward _pdist_forward",
        reason="distances of all pairs use a matrix product",
    ),
)
