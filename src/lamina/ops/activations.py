"""Activation functions and their gradients."""

from __future__ import annotations

from lamina.ops.row import POINTWISE, Row, rows

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (
    *rows(
        POINTWISE,
        """
        relu6 hardtanh leaky_relu hardshrink softshrink threshold _prelu_kernel threshold_backward
        hardtanh_backward leaky_relu_backward _prelu_kernel_backward
        """,
        work=0.2,
    ),
    *rows(POINTWISE, "relu", work=0.2, exact=True),
    *rows(POINTWISE, "hardsigmoid hardswish hardswish_backward hardsigmoid_backward", work=0.5),
    *rows(
        POINTWISE,
        """
        silu elu celu selu glu sigmoid_backward elu_backward softplus_backward log_sigmoid_backward
        glu_backward
        """,
        work=4.0,
    ),
    *rows(POINTWISE, "softplus log_sigmoid_forward silu_backward", work=6.0),
    *rows(POINTWISE, "gelu mish gelu_backward mish_backward tanh_backward", work=12.0),
    *rows(
        POINTWISE,
        """
        log_sigmoid rrelu_with_noise_functional hardshrink_backward softshrink_backward
        rrelu_with_noise_backward
        """,
    ),
)
