"""Bugs in rules and passes on graphs."""

from __future__ import annotations

from benchmarks.seeded.bug import Bug

__all__ = ["REWRITES"]

_EDGES = "tests/semantics/test_edges.py"
_RULES = "tests/rewrite/rules/test_rules.py"
_REWRITE = "src/lamina/rewrite"

REWRITES = (
    Bug(
        "logsumexp in half precision too",
        "dropped condition",
        f"{_REWRITE}/rules/softmax.py",
        'return match["x"].dtype in (torch.float32, torch.float64)',
        'return bool(match["x"].is_floating_point())',
        (f"{_RULES}::test_sums_of_exponentials_in_half_precision_stay",),
    ),
    Bug(
        "batch norm in an epilogue without eps",
        "eps dropped",
        f"{_REWRITE}/fold_norms.py",
        "call(aten.add.Tensor, _wide(call, norm.variance), norm.eps)",
        "_wide(call, norm.variance)",
        ("tests/rewrite/test_epilogues.py::test_a_norm_of_fixed_statistics_goes_into_the_weights",),
    ),
    Bug(
        "frozen batch norm without eps",
        "eps dropped",
        "src/lamina/freezing/folding.py",
        "call(aten.add.Tensor, variance, eps)",
        "variance",
        (f"{_EDGES}::test_a_folded_batch_norm_keeps_its_eps",),
    ),
    Bug(
        "shift before a factor is not scaled",
        "dropped factor",
        "src/lamina/freezing/folding.py",
        "shift = _times(call, self.shift, other.factor) if self.shift is not None else None",
        "shift = self.shift",
        ("tests/freezing/test_rules.py::test_functions_of_channels_are_in_the_weights",),
    ),
    Bug(
        "casts through a narrower type are joined",
        "dropped condition",
        f"{_REWRITE}/rules/chains.py",
        "return all(a >= b for a, b in zip(_BITS[wide]",
        "return any(a >= b for a, b in zip(_BITS[wide]",
        ("tests/rewrite/rules/test_chains.py",),
    ),
    Bug(
        "permutations joined in the wrong order",
        "wrong order",
        f"{_REWRITE}/rules/chains.py",
        "([first[d] for d in second],)",
        "([second[d] for d in first],)",
        ("tests/rewrite/rules/test_chains.py",),
    ),
    Bug(
        "gelu of tanh becomes the exact one",
        "wrong function",
        f"{_REWRITE}/rules/activations.py",
        'return F.gelu(x, approximate="tanh")',
        "return F.gelu(x)",
        (f"{_RULES}::test_both_sides_agree[gelu of tanh]",),
    ),
    Bug(
        "sign of the loss by logsumexp",
        "wrong sign",
        f"{_REWRITE}/rules/losses.py",
        "_difference, _negative_cross_entropy, name",
        "_difference, _cross_entropy, name",
        (f"{_RULES}::test_both_sides_agree[cross entropy of logsumexp, negative]",),
    ),
    Bug(
        "constants that are written to are computed beforehand",
        "missing mutation",
        f"{_REWRITE}/rules/constants.py",
        "            or _is_written(node)\n",
        "",
        ("tests/rewrite/rules/test_constants.py",),
    ),
    Bug(
        "adding zero is dropped for floats",
        "dropped guard",
        f"{_REWRITE}/passes.py",
        'if not row.signed_zero and (node.meta["val"].is_floating_point() or node.meta["val"].is_complex()):',
        'if not row.signed_zero and node.meta["val"].is_complex():',
        ("tests/rewrite/test_passes.py", "tests/rewrite/rules/test_tidying.py::test_a_negative_zero_keeps_its_sign"),
    ),
    Bug(
        "random calls are merged",
        "dropped guard",
        f"{_REWRITE}/passes.py",
        "return not is_custom(str(node.target)) and not node.is_impure()",
        "return not is_custom(str(node.target))",
        ("tests/rewrite/test_passes.py",),
    ),
    Bug(
        "numbers of different sign are equal",
        "flag missing in a key",
        f"{_REWRITE}/passes.py",
        "return (type(value), repr(value)) if isinstance(value, (float, complex)) else (type(value), value)",
        "return (type(value), value)",
        ("tests/rewrite/test_passes.py",),
    ),
    Bug(
        "factors whose product overflows are joined",
        "dropped condition",
        f"{_REWRITE}/numbers.py",
        "or not (min(sizes) >= 1 or 0 < max(sizes) <= 1):",
        "or False:",
        ("tests/rewrite/test_numbers.py",),
    ),
    Bug(
        "difference as a sum",
        "wrong sign",
        f"{_REWRITE}/canonical_arithmetic.py",
        "        alpha = -alpha\n",
        "        alpha = +alpha\n",
        ("tests/rewrite/test_engine.py", _RULES),
    ),
)
