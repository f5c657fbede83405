"""Bugs in generated C++ and Triton code."""

from __future__ import annotations

from benchmarks.seeded.bug import Bug

__all__ = ["KERNELS"]

_EDGES = "tests/semantics/test_edges.py"
_DTYPES = "tests/semantics/test_dtypes.py"
_NESTS = "tests/codegen/triton/test_kernels.py::test_nest"
_CPP = "src/lamina/codegen/cpp"
_TRITON = "src/lamina/codegen/triton"

KERNELS = (
    Bug(
        "maximum starts at the smallest number",
        "wrong identity",
        f"{_CPP}/accumulate.py",
        "return f\"{'-' if low else ''}__builtin_inf{single}()\"",
        "return f\"{'-' if low else ''}3.4e38{single}\"",
        (f"{_EDGES}::test_extremes_of_infinities",),
    ),
    Bug(
        "products start at zero",
        "wrong identity",
        f"{_CPP}/accumulate.py",
        'return "true" if self.dtype == "bool" else "1"',
        'return "true" if self.dtype == "bool" else "0"',
        ("tests/semantics/test_small_kernels.py::test_products",),
    ),
    Bug(
        "rows of half a vector are taken for whole ones",
        "remainder mask",
        f"{_CPP}/strips.py",
        "even = extent.is_int and extent.const % self._lanes == 0 and",
        "even = extent.is_int and extent.const % 4 == 0 and",
        ("tests/semantics/test_small_kernels.py::test_rows_and_columns",),
    ),
    Bug(
        "pieces of a row are taken for whole vectors",
        "remainder mask",
        f"{_CPP}/strips.py",
        'even = "_even" if whole and (high - low) % self._lanes == 0 else ""',
        'even = "_even" if whole else ""',
        ("tests/semantics/test_small_kernels.py::test_pieces_of_rows",),
    ),
    Bug(
        "column sums drop the rows beyond a multiple of four",
        "off-by-one bound",
        f"{_CPP}/row_blocks.py",
        "{at} < {end}; ++{at}) {rows}(",
        "{at} < {end} - 1; ++{at}) {rows}(",
        ("tests/semantics/test_small_kernels.py::test_sums_of_columns",),
    ),
    Bug(
        "remainder of negative integers",
        "wrong operation",
        f"{_CPP}/expressions.py",
        '"mod": "floor_mod",',
        '"mod": "fmod_int",',
        (f"{_DTYPES}::test_floor_division_of_negative_integers",),
    ),
    Bug(
        "narrow integers do not wrap",
        "wrong promotion",
        f"{_CPP}/expressions.py",
        'return f"wrap_{SHORT[dtype]}({text})" if dtype in _NARROW else text',
        "return text",
        ("tests/semantics/test_small_kernels.py::test_narrow_integers_wrap_before_they_are_compared_and_divided",),
    ),
    Bug(
        "half precision is not rounded after each operation",
        "dropped rounding",
        f"{_CPP}/expressions.py",
        'return text if exact else f"round_{SHORT[dtype]}({text})"',
        "return text",
        ("tests/codegen/test_expressions.py",),
    ),
    Bug(
        "places over several axes",
        "wrong stride",
        f"{_CPP}/best_places.py",
        'text = axis if not text else f"({text}) * ({index_text(self.facts.extent[axis], {})}) + {axis}"',
        'text = axis if not text else f"({text}) + {axis}"',
        ("tests/codegen/test_first_of_equals.py", "tests/semantics/test_small_kernels.py::test_places_of_equals"),
    ),
    Bug(
        "of equal values the last counts",
        "wrong tie",
        f"{_CPP}/include/accumulate.h",
        "select(same, select(i < at, i, at), at)",
        "select(same, select(i > at, i, at), at)",
        ("tests/semantics/test_small_kernels.py::test_places_of_equals",),
    ),
    Bug(
        "points beyond the end are reduced (Triton)",
        "remainder mask",
        f"{_TRITON}/reductions.py",
        "return f\"tl.where({' & '.join(masks)}, {value}, {fill})\"",
        "return value",
        (f"{_NESTS}[softmax_7_77_0]", f"{_NESTS}[reductions_row_float32]"),
    ),
    Bug(
        "maximum starts at zero (Triton)",
        "wrong identity",
        f"{_TRITON}/types.py",
        '    if op in ("max", "argmax"):\n        return lowest(dtype)\n',
        '    if op in ("max", "argmax"):\n        return "0.0" if kind(dtype) == "float" else "0"\n',
        (f"{_NESTS}[softmax_7_77_0]", f"{_NESTS}[reductions_row_float32]", f"{_NESTS}[scan_max_0]"),
    ),
    Bug(
        "accesses beyond the end (Triton)",
        "remainder mask",
        f"{_TRITON}/memory.py",
        "        masks = self.facts.inside(span)\n        masks += [self",
        "        masks: list[str] = []\n        masks += [self",
        (f"{_NESTS}[pointwise_padded]", f"{_NESTS}[pointwise_strided]", f"{_NESTS}[norm_7_77]"),
    ),
    Bug(
        "padding without its number (Triton)",
        "dropped fill",
        f"{_TRITON}/memory.py",
        'text += f", other={literal(eqn.fill, eqn.dtype)}"',
        'text += ", other=0"',
        (f"{_NESTS}[padding]", f"{_NESTS}[padding_int8]", f"{_NESTS}[padding_bf16]", f"{_NESTS}[pooling]"),
    ),
    Bug(
        "every program adds what one should (Triton)",
        "dropped guard",
        f"{_TRITON}/memory.py",
        'return [f"({facts.lines[k]}_pid == 0)" for k in alone]',
        "return [] if alone else []",
        (
            "tests/codegen/triton/test_kernels.py::test_what_lacks_an_axis_of_the_grid_is_stored_once",
            f"{_NESTS}[scatter_add]",
            f"{_NESTS}[histogram]",
        ),
    ),
    Bug(
        "reversed scans carry the wrong end (Triton)",
        "wrong bound",
        f"{_TRITON}/scans.py",
        "edge = 0 if eqn.reverse else facts.blocks[k].size - 1",
        "edge = facts.blocks[k].size - 1",
        ("tests/codegen/triton/test_kernels.py::test_a_scan_along_a_loop_carries_its_end",),
    ),
    Bug(
        "moments without the distance of the means (Triton)",
        "dropped term",
        f"{_TRITON}/reductions.py",
        ' + {name}_n * {name}_d * {name}_d"',
        '"',
        (f"{_NESTS}[norm_2_9000]", f"{_NESTS}[reductions_long]"),
    ),
    Bug(
        "of equals any counts (Triton)",
        "wrong tie",
        f"{_TRITON}/reductions.py",
        'better += f" | (({same}) & ({place} < {name}_at))"',
        'better += ""',
        (
            "tests/codegen/triton/test_plans.py::test_of_equals_the_first_counts_where_loops_go_in_another_order",
            f"{_NESTS}[reductions_ends_float32]",
        ),
    ),
    Bug(
        "fmin gives NaN (Triton)",
        "wrong NaN",
        f"{_TRITON}/expressions.py",
        '"fmin": f"tl.where(({a} < {b}) | ({b} != {b}), {a}, {b})",',
        '"fmin": f"tl.where({a} < {b}, {a}, {b})",',
        ("tests/codegen/triton/test_ops.py::test_operations[float32]",),
    ),
    Bug(
        "memory is written over before all of it was read",
        "early buffer reuse",
        "src/lamina/codegen/reuse.py",
        "if not _made_of_all(nest, stores[0], names[0]):",
        "if not stores:",
        ("tests/codegen/test_host_cuda.py::test_random_results_that_take_over_memory",),
    ),
)
