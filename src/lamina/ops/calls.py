"""Captured calls by name: what is known of a function, method or operator before there are overloads.

``operation_name`` (``base/source.py``) tells the name of a call. What is known of an overload is in its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

__all__ = ["FUNCTIONS", "HOLDS", "Function", "names"]

ANY = "any"
USUAL = "usual"
TRUTHS = "truths"
NUMBERS = "numbers"
FLOATS = "floats"

HOLDS: dict[str, str] = {
    ANY: "every dtype and all values: sizes alone may not fit, which tracing has seen",
    USUAL: "all values of usual dtypes: it makes constants, moves values or converts them",
    TRUTHS: "all truth values, whole numbers and floating-point numbers",
    NUMBERS: "all whole numbers and floating-point numbers",
    FLOATS: "all floating-point numbers",
}
"""Operands with which a call that tracing accepts raises nothing. Each says less than those before it."""


@dataclass(frozen=True, slots=True)
class Function:
    """What is known of captured calls named ``name``.

    - ``holds``: one of ``HOLDS``; "" where nothing is known, or where it may raise.
    - ``constant``: of constant operands it gives the same at every call: no random numbers, no writes.
    - ``filled``: the number of which its result is full, whatever the elements of the operand.
    - ``returns_operand``: it returns the operand itself, no copy, where there is nothing to do.
    - ``one_operation``: it is one operation of that name in every graph.
    - ``laid_out_as_sum``: eager lays its result out as that of all pointwise calls, where tracing, by the formula that
      it has there, may do otherwise.
    - ``operation``: the name in ATen of what it comes to, where that is another one.
    """

    name: str
    holds: str = ""
    constant: bool = False
    filled: int | None = None
    returns_operand: bool = False
    one_operation: bool = False
    laid_out_as_sum: bool = False
    operation: str = ""


def _functions(names: str, **facts: Any) -> Iterator[Function]:
    """Functions with the same ``facts``, fields of ``Function``; ``names`` are separated by blanks."""
    return (Function(name, **facts) for name in names.split())


_ALL: tuple[Function, ...] = (
    *_functions(
        """
        T _add_batch_dim _remove_batch_dim _unwrap_for_grad _wrap_for_grad broadcast_tensors chunk diagonal empty
        empty_like hsplit imag meshgrid moveaxis movedim narrow new_empty ravel reshape_as split split_with_sizes
        swapaxes swapdims tensor_split unbind unflatten unfold view_as view_as_real vsplit
        """,
        holds=ANY,
    ),
    *_functions(
        """
        alias broadcast_to detach expand expand_as getattr mT permute reshape select slice squeeze t transpose
        unsqueeze view
        """,
        holds=ANY,
        constant=True,
    ),
    *_functions("flatten real", holds=ANY, returns_operand=True),
    *_functions("contiguous", holds=ANY, returns_operand=True, constant=True),
    *_functions(
        """
        column_stack concat dstack fliplr flipud hstack linspace new_tensor roll rot90 tile tril_indices
        triu_indices vstack
        """,
        holds=USUAL,
    ),
    *_functions(
        """
        arange cat clone eye flip full full_like masked_fill new_full ones repeat scalar_tensor stack tensor tril
        triu where zeros
        """,
        holds=USUAL,
        constant=True,
    ),
    *_functions("atleast_1d atleast_2d atleast_3d double type_as", holds=USUAL, returns_operand=True),
    *_functions("new_zeros zeros_like", holds=USUAL, constant=True, filled=0),
    *_functions("new_ones ones_like", holds=USUAL, constant=True, filled=1),
    *_functions("bfloat16 bool half int long to", holds=USUAL, returns_operand=True, constant=True),
    *_functions("float", holds=USUAL, returns_operand=True, constant=True, operation="to"),
    *_functions("all any bitwise_xor count_nonzero isfinite isinf isnan nonzero prod sort xor", holds=TRUTHS),
    *_functions(
        "add bitwise_and bitwise_not bitwise_or cumsum eq ge gt le logical_not lt mul ne",
        holds=TRUTHS,
        constant=True,
    ),
    *_functions("logical_xor", holds=TRUTHS, laid_out_as_sum=True),
    *_functions("amax amin sum", holds=TRUTHS, one_operation=True),
    *_functions("logical_and logical_or", holds=TRUTHS, constant=True, laid_out_as_sum=True),
    *_functions("and_", holds=TRUTHS, constant=True, operation="bitwise_and"),
    *_functions("invert", holds=TRUTHS, constant=True, operation="bitwise_not"),
    *_functions("or_", holds=TRUTHS, constant=True, operation="bitwise_or"),
    *_functions("argmax argmin argsort clamp_max clamp_min cumprod isin max min relu sign square topk", holds=NUMBERS),
    *_functions("clamp diff maximum minimum neg rsub sub", holds=NUMBERS, constant=True),
    *_functions("abs", holds=NUMBERS, constant=True, one_operation=True),
    *_functions(
        """
        adaptive_avg_pool1d adaptive_avg_pool2d addbmm addmm addmv avg_pool1d avg_pool2d baddbmm batch_norm bmm conv1d
        conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d dot
        einsum instance_norm linear matmul max_pool1d max_pool2d mm mse_loss mv norm normalize
        scaled_dot_product_attention std
        """,
        holds=FLOATS,
    ),
    *_functions("outer", holds=FLOATS, constant=True),
    *_functions("logsumexp mean var", holds=FLOATS, one_operation=True),
    *_functions("rms_norm", holds=FLOATS, operation="_fused_rms_norm"),
    *_functions("pad", holds=FLOATS, operation="constant_pad_nd"),
    *_functions("group_norm", holds=FLOATS, operation="native_group_norm"),
    *_functions("layer_norm", holds=FLOATS, operation="native_layer_norm"),
    *_functions("dropout", holds=FLOATS, returns_operand=True),
    *_functions("log_softmax", holds=FLOATS, one_operation=True, operation="_log_softmax"),
    *_functions("softmax", holds=FLOATS, one_operation=True, operation="_softmax"),
    *_functions(
        """
        __and__ __eq__ __ge__ __gt__ __invert__ __le__ __lt__ __ne__ __or__ _to_copy _unsafe_view div floor getitem
        index not_ pow rsqrt sqrt
        """,
        constant=True,
    ),
    *_functions(
        """
        complex copysign floor_divide floordiv heaviside logaddexp logaddexp2 polar special_xlog1py special_xlogy
        xlogy
        """,
        laid_out_as_sum=True,
    ),
    *_functions("cos erf erfc gather gelu log1p sigmoid silu sin tanh", one_operation=True),
    *_functions(
        """
        alpha_dropout byte char conj conj_physical cpu cuda feature_alpha_dropout feature_dropout pos positive
        resolve_conj resolve_neg short sum_to_size
        """,
        returns_operand=True,
    ),
    *_functions("exp log", constant=True, one_operation=True),
    *_functions("truediv", constant=True, operation="div"),
    *_functions("type", returns_operand=True, constant=True),
)


def _assembled() -> Mapping[str, Function]:
    table = {function.name: function for function in _ALL}
    if len(table) < len(_ALL):
        raise ValueError("two entries for one name")
    return MappingProxyType(table)


FUNCTIONS: Mapping[str, Function] = _assembled()
"""Functions by name."""


def names(holds: Callable[[Function], bool]) -> frozenset[str]:
    """The names of the functions that meet a condition."""
    return frozenset(name for name, function in FUNCTIONS.items() if holds(function))
