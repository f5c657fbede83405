"""Bugs in the lowering of single operations and in decompositions."""

from __future__ import annotations

from benchmarks.seeded.bug import Bug

__all__ = ["LOWERINGS"]

_EDGES = "tests/semantics/test_edges.py"
_OPS = "tests/lower/test_opinfo.py"
_MEANING = "tests/lower/test_semantics.py"
_LOWER = "src/lamina/lower"

LOWERINGS = (
    Bug(
        "negative zeros are sorted before positive ones",
        "lost order of equal elements",
        f"{_LOWER}/sorted_rows.py",
        "ordered = self.b.where(negative_zero, 0, ordered)",
        "ordered = self.b.where(negative_zero, -1, ordered)",
        ("tests/lower/test_sorting.py::test_types_and_lengths_in_the_interpreter",),
    ),
    Bug(
        "variance with correction above n is not clamped",
        "dropped clamp",
        f"{_LOWER}/moments.py",
        '- correction).op("maximum", 0.0)',
        "- correction)",
        (f"{_EDGES}::test_variances_with_more_taken_off_than_there_are",),
    ),
    Bug(
        "mean divides by all elements",
        "wrong count",
        f"{_LOWER}/reduction.py",
        'over(b, "sum", v, dims) / count(b, [x.shape[d] for d in dims], v.dtype)',
        'over(b, "sum", v, dims) / count(b, x.shape, v.dtype)',
        (f"{_MEANING}::test_means_count_what_is_summed",),
    ),
    Bug(
        "nansum keeps NaN",
        "wrong condition",
        f"{_LOWER}/reduction.py",
        'b.where(v.op("isnan"), 0, v)',
        'b.where(v.op("isinf"), 0, v)',
        (f"{_MEANING}::test_sums_without_nan",),
    ),
    Bug(
        "sum of integers in the type of its operand",
        "wrong promotion",
        f"{_LOWER}/reduction.py",
        'reduced_dims(x, dim), opmath(out.dtype), lambda b, v, d: over(b, "sum", v, d))',
        'reduced_dims(x, dim), opmath(x.dtype), lambda b, v, d: over(b, "sum", v, d))',
        (f"{_MEANING}::test_sums_of_integers_do_not_wrap_around",),
    ),
    Bug(
        "norm of negative infinite order is a maximum",
        "wrong operation",
        f"{_LOWER}/vector_norms.py",
        'return over(b, "min", size, dims)',
        'return over(b, "max", size, dims)',
        (f"{_MEANING}::test_orders_of_norms",),
    ),
    Bug(
        "softshrink's gradient at its edge",
        "wrong bound",
        "src/lamina/ops/gradients.py",
        "(v >= -lambd) & (v <= lambd), 0.0, g)",
        "(v > -lambd) & (v < lambd), 0.0, g)",
        (f"{_MEANING}::test_gradients_of_shrinking_at_their_edges",),
    ),
    Bug(
        "threshold's gradient at its edge",
        "wrong bound",
        "src/lamina/ops/gradients.py",
        "where(v <= threshold, 0, g)",
        "where(v < threshold, 0, g)",
        (f"{_EDGES}::test_gradients_at_the_ends_of_intervals",),
    ),
    Bug(
        "hardsigmoid's gradient at its edge",
        "wrong bound",
        "src/lamina/ops/gradients.py",
        "where((v > -3.0) & (v < 3.0), g * _SIXTH, 0.0)",
        "where((v >= -3.0) & (v <= 3.0), g * _SIXTH, 0.0)",
        (f"{_EDGES}::test_gradients_at_the_ends_of_intervals",),
    ),
    Bug(
        "sign in silu's gradient",
        "sign in a gradient",
        "src/lamina/ops/gradients.py",
        "return g * s * (v * (1.0 - s) + 1.0)",
        "return g * s * (1.0 - v * (1.0 - s))",
        (f"{_OPS}::test_gradients[nn.functional.silu]",),
    ),
    Bug(
        "sign in gelu's gradient",
        "sign in a gradient",
        "src/lamina/ops/gradients.py",
        "return g * (cdf + v * density)",
        "return g * (cdf - v * density)",
        (f"{_OPS}::test_gradients[nn.functional.gelu]",),
    ),
    Bug(
        "layer norm without eps",
        "eps dropped",
        f"{_LOWER}/norms.py",
        '(variance + eps).op("rsqrt")',
        'variance.op("rsqrt")',
        ("tests/lower/test_norms.py::test_layer_norm",),
    ),
    Bug(
        "gradient of a mean loss is not divided",
        "dropped factor",
        f"{_LOWER}/losses.py",
        "g = g / count(b, out.shape, kin)",
        "g = g + 0.0",
        ("tests/lower/test_norms.py::test_losses_with_gradients",),
    ),
    Bug(
        "gradient of cross entropy at an ignored class",
        "dropped condition",
        f"{_LOWER}/nll_loss.py",
        'here = t.equals(b.index(b.axes[dim])) & t.op("ne", ignore)',
        "here = t.equals(b.index(b.axes[dim]))",
        (f"{_MEANING}::test_an_ignored_class_has_no_gradient",),
    ),
    Bug(
        "gradient of an embedding at its padding row",
        "dropped guard",
        f"{_LOWER}/indexing.py",
        "    if padding >= 0:\n        counted = counted",
        "    if padding > 0:\n        counted = counted",
        ("tests/lower/test_indexing.py::test_embedding_and_its_gradient",),
    ),
    Bug(
        "roll in the wrong direction",
        "wrong sign",
        f"{_LOWER}/indexing.py",
        "[turn % n for turn, n in",
        "[-turn % n for turn, n in",
        ("tests/lower/test_indexing.py::test_samples[roll-torch.float32]",),
    ),
    Bug(
        "negative indices count one off",
        "off-by-one bound",
        f"{_LOWER}/positions.py",
        "index = b.where(index < 0, index + _size(b, size), index)",
        "index = b.where(index < 0, index + _size(b, size) - 1, index)",
        ("tests/lower/test_indexing.py::test_every_form_of_indexing",),
    ),
    Bug(
        "diagonal with its offset on the other side",
        "wrong stride",
        f"{_LOWER}/views.py",
        "dim1: along + max(-offset, 0), dim2: along + max(offset, 0)",
        "dim1: along + max(offset, 0), dim2: along + max(-offset, 0)",
        ("tests/lower/test_views.py::test_diagonals_begin_at_their_offset",),
    ),
    Bug(
        "reflection repeats the edge",
        "off-by-one bound",
        f"{_LOWER}/padding.py",
        "_rank, _reflected, 1)",
        "_rank, _reflected, 0)",
        ("tests/lower/test_padding.py::test_modes",),
    ),
    Bug(
        "all dropouts of a graph share one mask",
        "shared random numbers",
        "src/lamina/decomp/streams.py",
        "return entry[0], entry[1] - 1",
        "return entry[0], 0",
        (f"{_EDGES}::test_dropouts_of_one_graph_draw_apart",),
    ),
    Bug(
        "gradient of dropout without its mask",
        "dropped condition",
        "src/lamina/decomp/dropout.py",
        "return grad * mask * scale",
        "return grad * scale",
        ("tests/aot/test_partition.py::test_dropout_gradient_uses_the_forwards_mask",),
    ),
)
