"""What it costs to save a value for the backward pass and what to compute it again.

The unit is the time to move one byte between memory and a core. On a CPU core that moves 10 GB/s one vector
instruction over eight floats is worth about a fifth of a byte an element, an exponential four, a tanh or erf twelve;
on a GPU arithmetic is a tenth of that beside its memory.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from lamina.base.symbolic.torch_private import hint
from lamina.base.thin_products import thin_dimension
from lamina.base.torch_private import OpOverload

__all__ = ["CostModel", "OpClass", "bytes_of", "class_of", "classify", "operation_name"]


@dataclass(frozen=True, slots=True)
class OpClass:
    """How an operation can be computed again.

    ``kind``: "view" (no work), "pointwise" (work on each element of the result), "reduction" (reads its whole input,
    ``work`` on each element of that), "symbol" (integers), "library" (never computed again), "random" (the same,
    and tied to its place in the program). ``work`` is in byte times an element, on a CPU.
    """

    kind: str
    work: float = 0.0


_VIEWS = """
_conj _neg_view _reshape_alias _unsafe_view alias as_strided chunk detach diagonal expand lift lift_fresh
movedim narrow numpy_T permute select slice split split_with_sizes squeeze t transpose unbind unfold
unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze view view_as_complex view_as_real expand_as view_as
reshape flatten unflatten
"""
_POINTWISE: dict[float, str] = {
    0.2: """
abs add bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp clamp_max
clamp_min clone copy eq floor fmax fmin ge gt hardtanh heaviside isinf isnan le leaky_relu lerp logical_and logical_not
logical_or logical_xor lt masked_fill maximum minimum mul ne neg positive relu round rsub sgn sign signbit square sub
threshold threshold_backward trunc where _to_copy to hardtanh_backward leaky_relu_backward relu6 addcmul frac
deg2rad rad2deg isneginf isposinf fill zero select_scatter slice_scatter diagonal_scatter _prelu_kernel
_prelu_kernel_backward native_dropout_backward lift_fresh_copy hardshrink softshrink contiguous type_as nan_to_num
copysign
""",
    0.5: """
arange empty empty_like empty_strided full full_like linspace new_empty new_full new_ones new_zeros ones ones_like
scalar_tensor zeros zeros_like eye tril triu hardsigmoid hardswish hardsigmoid_backward hardswish_backward
""",
    1.0: """
div reciprocal sqrt rsqrt remainder fmod addcdiv floor_divide cat constant_pad_nd stack flip roll repeat philox_uniform
one_hot select_backward slice_backward diagonal_backward diag_embed pixel_shuffle pixel_unshuffle channel_shuffle
repeat_interleave reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d
""",
    2.0: "embedding gather index index_select take_along_dim take",
    4.0: """
exp exp2 sigmoid sigmoid_backward silu elu elu_backward celu selu hypot glu glu_backward logit_backward
log_sigmoid_backward softplus_backward
""",
    6.0: """
log log2 log10 log1p expm1 softplus logit log_sigmoid_forward sin cos logaddexp logaddexp2
silu_backward xlogy special_xlog1py special_entr sinc addr
""",
    12.0: """
tanh tanh_backward erf erfc gelu gelu_backward mish mish_backward pow tan asin acos atan atan2 sinh cosh asinh acosh
atanh erfinv
""",
}
_REDUCTIONS: dict[float, str] = {
    0.3: """
all amax amin any argmax argmin count_nonzero max mean min prod sum aminmax nansum nll_loss_forward nll_loss2d_forward
nll_loss_backward nll_loss2d_backward _log_softmax_backward_data
""",
    0.8: """
std std_mean var var_mean norm linalg_vector_norm native_layer_norm native_group_norm _fused_rms_norm
native_layer_norm_backward native_group_norm_backward native_batch_norm_backward _fused_rms_norm_backward
""",
    5.0: "_softmax_backward_data _safe_softmax _softmax _log_softmax logsumexp cumsum cumprod",
}


def _table() -> dict[str, OpClass]:
    table = {name: OpClass("view") for name in _VIEWS.split()}
    for work, names in _POINTWISE.items():
        table.update((name, OpClass("pointwise", work)) for name in names.split())
    for work, names in _REDUCTIONS.items():
        table.update((name, OpClass("reduction", work)) for name in names.split())
    table["clone"] = OpClass("pointwise", 0.2)
    return table


_CLASSES = _table()
_LIBRARY, _RANDOM, _VIEW, _SYMBOL = OpClass("library"), OpClass("random"), OpClass("view"), OpClass("symbol")
_THIN_SUM, _THIN_REDUCTION = OpClass("pointwise", 3.2), OpClass("reduction", 3.2)
_NAMESPACES = ("aten", "prims", "lamina")


def operation_name(node: Node) -> str:
    """The schema name of the operation: ``add`` for ``torch.ops.aten.add.Tensor``; else the printed target."""
    schema = getattr(node.target, "_schema", None)
    return str(node.target) if schema is None else str(schema.name).partition("::")[2]


def classify(node: Node) -> OpClass:
    """The class of a call or attribute; a thing without a row is a library call."""
    if node.op == "get_attr" or node.target is operator.getitem:
        return _VIEW
    if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)):
        return _SYMBOL
    target = node.target
    if not isinstance(target, OpOverload):
        return _LIBRARY
    if torch.Tag.nondeterministic_seeded in target.tags:
        return _RANDOM
    if target.namespace not in _NAMESPACES or target._schema.is_mutable:
        return _LIBRARY
    if (small := thin_dimension(node)) is not None:
        return _THIN_SUM if small == "inner" else _THIN_REDUCTION
    return _CLASSES.get(target._schema.name.partition("::")[2], _LIBRARY)


def class_of(name: str) -> OpClass:
    """The class of the operation with this name of ATen's; a thing without a row is a library call."""
    return _CLASSES.get(name, _LIBRARY)


def _elements(value: torch.Tensor) -> int:
    count = 1
    for size in value.shape:
        count *= hint(size)
    return count


def bytes_of(value: Any) -> int:
    """Bytes of a tensor, or of all tensors in a tuple; likely sizes where they are symbols, 8 for a scalar."""
    if isinstance(value, torch.Tensor):
        return _elements(value) * value.element_size()
    if isinstance(value, (tuple, list)):
        return sum(bytes_of(item) for item in value if item is not None)
    return 8


@dataclass(frozen=True, slots=True)
class CostModel:
    """Weights of one kind of device. ``arithmetic`` scales the work, ``hold`` is the price of a byte kept allocated.

    ``packs``: what is saved is packed in fewer bytes where that loses nothing.
    """

    arithmetic: float
    hold: float
    packs: bool

    @classmethod
    def of(cls, device: str) -> CostModel:
        """The model for a device type ("cpu", "cuda")."""
        return cls(1.0, 0.5, False) if device == "cpu" else cls(0.1, 0.5, device == "cuda")

    def recompute(self, node: Node, kind: OpClass) -> float:
        """Computing ``node`` again inside a fused backward kernel, its inputs being at hand."""
        value = node.meta.get("val")
        if kind.kind == "pointwise":
            return self._elements_out(value) * kind.work * self.arithmetic
        if kind.kind == "reduction":
            read = [n.meta.get("val") for n in node.all_input_nodes]
            elements = sum(_elements(v) for v in read if isinstance(v, torch.Tensor))
            return sum(bytes_of(v) for v in read) + elements * kind.work * self.arithmetic
        return 0.0

    def save(self, size: int, *, written: bool, kept: bool) -> float:
        """Keeping ``size`` bytes: one read in the backward, a write and the memory unless those happen anyway."""
        return size * (1.0 + (0.0 if written else 1.0) + (0.0 if kept else self.hold))

    def _elements_out(self, value: Any) -> int:
        if isinstance(value, torch.Tensor):
            return _elements(value)
        return sum(_elements(v) for v in value if isinstance(v, torch.Tensor)) if isinstance(value, tuple) else 1
