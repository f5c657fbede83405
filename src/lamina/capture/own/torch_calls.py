"""Which calls of torch's a graph can hold, and how it holds them."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch

from lamina.base.devices import kind_of
from lamina.base.rounded_numbers import HALF_TYPES, rounds_numbers
from lamina.capture.own.torch_private import LEADING_OUT, SET_GRAD, is_plain

__all__ = [
    "BOUNDING",
    "IDENTITY",
    "LAYERS_OF_STEPS",
    "LEFT_OUT",
    "MOST_COPIED",
    "QUERIES",
    "cause_of_operands",
    "computes_in_floats",
    "computes_in_integers",
    "constant",
    "dtype_of_number",
    "dtype_that_refuses",
    "in_place",
    "is_constant",
    "name_of",
    "recordable",
    "takes_numbers",
    "target_of",
    "writes_to_list",
]

_QUERIES = (
    "shape dtype device layout ndim requires_grad is_cuda is_cpu is_sparse is_quantized is_meta is_nested "
    "itemsize size dim stride numel nelement element_size is_contiguous is_floating_point is_complex is_signed "
    "storage_offset is_conj is_neg is_inference get_device ndimension __len__ is_shared is_same_size"
)
QUERIES = frozenset(_QUERIES.split())
"""What a tensor that is not computed yet can tell."""

IDENTITY = frozenset(("__hash__",))
"""What asks for the object, whatever is in it."""

_LEFT_OUT = (
    "item tolist numpy data_ptr backward requires_grad_ retain_grad register_hook data grad grad_fn "
    "untyped_storage storage set_ resize_ __deepcopy__ __reduce_ex__ __setstate__ __repr__ __format__ __array__ "
    "share_memory_ pin_memory from_numpy frombuffer as_subclass detach_ to_sparse unique nonzero resize_as_ "
    "__dlpack__ __contains__ manual_seed seed register_post_accumulate_grad_hook names "
    "refine_names rename align_to is_set_to apply_ map_ __set__ __delete__ new cuda ipu xpu mtia vmap __iter__ "
    "to_dense to_mkldnn quantize_per_tensor lstm unique_consecutive"
)
LEFT_OUT = LEADING_OUT | frozenset(_LEFT_OUT.split())
"""What needs values, changes what a tensor is, or hands it to others."""

LAYERS_OF_STEPS = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))
"""Recurrent layers, whose calls compilers take apart into the steps of their sequences."""

_POINTWISE = (
    "add_ sub_ mul_ div_ neg_ abs_ relu_ clamp_ clamp_min_ clamp_max_ exp_ log_ sqrt_ rsqrt_ sigmoid_ tanh_ sin_ "
    "cos_ fill_ zero_ copy_ masked_fill_ pow_ square_ floor_ ceil_ round_ addcmul_ addcdiv_ lerp_ hardtanh_ "
    "leaky_relu_ elu_ silu_ index_add_ scatter_ scatter_add_ __setitem__ __iadd__ __isub__ __imul__ __itruediv__ "
    "index_copy_ index_fill_ index_put_ masked_scatter_ reciprocal_ expm1_ log1p_ log2_ log10_ erf_ tan_ trunc_ frac_ "
    "clip_ multiply_ divide_ subtract_ addmm_ addmv_ addbmm_ baddbmm_ tril_ triu_ relu6_ softplus_ celu_ selu_ mish_ "
    "hardswish_ hardsigmoid_ threshold_ nan_to_num_ logical_and_ logical_or_ logical_xor_ logical_not_ fmod_ remainder_"
)
_IN_PLACE = frozenset(_POINTWISE.split())
"""Writes that leave a tensor's size, dtype and strides what they are."""

_OPERATORS: dict[str, Any] = {
    "__getitem__": operator.getitem,
    "__setitem__": operator.setitem,
    "__and__": operator.and_,
    "__or__": operator.or_,
    "__xor__": operator.xor,
    "__invert__": operator.invert,
    "__eq__": operator.eq,
    "__ne__": operator.ne,
}
_OF_NUMBERS = frozenset(("tensor", "scalar_tensor"))
"""Functions that copy numbers, which they ask tensors for."""
MOST_COPIED = 64
"""Numbers that one call in a graph copies; containers and objects of a deep copy that is interpreted; steps of a
recurrent layer that are compiled."""
_PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter)
_CONSTANTS = (
    int,
    float,
    bool,
    complex,
    str,
    type(None),
    type(...),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


_WITH_NUMBERS = (
    "add sub mul div true_divide rsub lt le gt ge eq ne clamp clamp_min clamp_max where full_like masked_fill fill_ "
    "lerp addcmul addcdiv addcmul_ addcdiv_ "
    "add_ sub_ mul_ div_ __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __iadd__ "
    "__isub__ __imul__ __itruediv__ __lt__ __le__ __gt__ __ge__ __eq__ __ne__"
)
_TAKE_NUMBERS = frozenset(_WITH_NUMBERS.split())
"""Functions of torch's whose results look the same whatever a float is that they are given."""


_OF_LISTS = frozenset(("_foreach_add_", "_foreach_mul_", "_foreach_add", "_foreach_mul"))
"""Those of lists of tensors, for one float."""


def takes_numbers(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a graph may hold a call for all values of the floats that are its arguments."""
    parts = (*args, *kwargs.values())
    if name_of(function) in _OF_LISTS:
        return all(_is_list_of(torch.Tensor, part) for part in parts if isinstance(part, (list, tuple, dict)))
    return name_of(function) in _TAKE_NUMBERS and not any(isinstance(part, (list, tuple, dict)) for part in parts)


def _is_list_of(kind: type, value: Any) -> bool:
    return type(value) in (list, tuple) and all(isinstance(part, kind) for part in value)


def dtype_of_number(number: float, kwargs: dict[str, Any]) -> torch.dtype | None:
    """What ``torch.tensor(number, **kwargs)`` makes a number in memory of the CPU, without a gradient; None otherwise.

    It is one to which a tensor of torch.float64 that has the number is converted in the same way.
    """
    dtype, device = kwargs.get("dtype"), kwargs.get("device")
    usual = torch.int64 if type(number) is int else torch.get_default_dtype()
    found = usual if dtype is None else dtype
    place = str(torch.get_default_device() if device is None else device)
    placed = kind_of(place).host and ":" not in place
    known = found in (torch.float32, torch.float64) or (found is torch.int64 and type(number) is int)
    return found if known and placed and kwargs.keys() <= {"dtype", "device"} else None


def computes_in_floats(*parts: Any) -> bool:
    """Whether a call that is given ``parts`` gives the same for an integer as for the float that has its value."""
    parts = _taken_apart(parts)
    dtypes = {part.dtype for part in parts if isinstance(part, torch.Tensor) and part.dtype is not torch.bool}
    dtypes.update(part for part in parts if type(part) is torch.dtype)
    return bool(dtypes) and all(dtype.is_floating_point for dtype in dtypes)


def _taken_apart(parts: Iterable[Any]) -> tuple[Any, ...]:
    """Arguments with what is in lists and tuples in their place."""
    return tuple(one for part in parts for one in (part if isinstance(part, (list, tuple)) else (part,)))


BOUNDING = frozenset(("clamp", "clamp_min", "clamp_max"))
"""Those of them for which a number that is NaN may be no bound, in torch 2.11, and a tensor that is one is."""
_REFUSING = frozenset(
    (
        "clamp",
        "clamp_min",
        "clamp_max",
        "where",
        "full_like",
        "masked_fill",
        "fill_",
        "lerp",
        "addcmul",
        "addcdiv",
        "addcmul_",
        "addcdiv_",
    )
)
_PROMOTING = frozenset(("clamp", "clamp_min", "clamp_max", "where"))
"""Those of them that make integers beside a float floats of the default type."""


def dtype_that_refuses(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.dtype | None] | None:
    """The type to which a call converts its numbers, and raises or gives infinities for those that it cannot hold; None
    if it does so for none.

    Of several it is the one that holds least; None in its place stands for a type of other numbers than floats.
    """
    parts = _taken_apart((*args, *kwargs.values()))
    found = {part.dtype for part in parts if isinstance(part, torch.Tensor) and part.dtype is not torch.bool}
    if name_of(function) not in _REFUSING and "alpha" not in kwargs:
        return (min(found, key=_most),) if rounds_numbers(name_of(function)) and found <= HALF_TYPES and found else None
    found.update(part for part in parts if type(part) is torch.dtype)
    others = {dtype for dtype in found if not dtype.is_floating_point}
    if name_of(function) in _PROMOTING and not any(dtype.is_complex for dtype in others):
        found = found - others or {torch.get_default_dtype()}
        found |= {torch.get_default_dtype()} if others else set()
    elif others or not found:
        return (None,)
    return None if found == {torch.float64} else (min(found, key=_most),)


def _most(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).max


_OF_INTEGERS = frozenset(
    (
        "add", "sub", "mul", "lt", "le", "gt", "ge", "eq", "ne", "add_", "sub_", "mul_", "__add__", "__radd__",
        "__sub__", "__rsub__", "__mul__", "__rmul__", "__iadd__", "__isub__", "__imul__", "__lt__", "__le__", "__gt__",
        "__ge__", "__eq__", "__ne__",
    )
)  # fmt: skip


def computes_in_integers(function: Any, *parts: Any) -> bool:
    """Whether a call gives the same for an integer as for a tensor of torch.int64 without dimensions that has it."""
    if name_of(function) not in _OF_INTEGERS or len(parts) != 2:
        return False
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    return len(tensors) == 1 and tensors[0].dtype is torch.int64 and tensors[0].dim() > 0


def name_of(function: Any) -> str:
    """The name of a function of torch's, or of the property that it gets."""
    name: str = getattr(function, "__name__", "")
    if name == "__get__":
        return getattr(getattr(function, "__self__", None), "__name__", "")
    return name


def in_place(function: Any) -> bool:
    """Whether a function of torch's writes to its first argument."""
    name = name_of(function)
    return (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE


def writes_to_list(function: Any) -> bool:
    """Whether a function of torch's writes to each tensor of a list, its first argument."""
    name = name_of(function)
    return name.startswith("_foreach_") and name.endswith("_")


def recordable(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], pending: type) -> bool:
    """Whether a graph may hold a call, as far as the function and the kinds of its arguments tell."""
    name = name_of(function)
    if name in LEFT_OUT or kwargs.get("out") is not None or kwargs.get("generator") is not None:
        return False
    if name in _OF_NUMBERS and not _are_numbers([*args, *kwargs.values()]):
        return False
    if writes_to_list(function):
        return bool(args) and _are_apart(args[0]) and _known([*args, *kwargs.values()], pending)
    if name in LAYERS_OF_STEPS and not _is_short(args, pending):
        return False
    if in_place(function) and not (name in _IN_PLACE and args and type(args[0]) in (pending, *_PLAIN_CLASSES)):
        return False
    return _known([*args, *kwargs.values()], pending)


def _are_apart(values: Any) -> bool:
    """Whether these are tensors, each of which is there once."""
    if type(values) not in (list, tuple) or not all(isinstance(value, torch.Tensor) for value in values):
        return False
    return len({*map(id, values)}) == len(values)


def _is_short(args: tuple[Any, ...], pending: Any) -> bool:
    """Whether a recurrent layer is trained, and on so few steps that it is worth while to compile them one by one."""
    if len(args) != 9 or type(args[2]) is not list or not torch.is_grad_enabled():
        return False
    x = args[0]._fake if type(args[0]) is pending else args[0]
    layers, two_ways, rows_first = args[4], args[7], args[8]
    steps: int = x.shape[1 if rows_first else 0] if len(x.shape) == 3 else x.shape[0]
    wanted = x.requires_grad or any(weight.requires_grad for weight in args[2])
    return wanted and steps * layers * (2 if two_ways else 1) <= MOST_COPIED


def _are_numbers(values: list[Any]) -> bool:
    """Whether nothing among the arguments of a call is a tensor, nor are there too many numbers for a graph."""
    flat = list(values)
    for value in flat:
        if isinstance(value, torch.Tensor) or len(flat) > MOST_COPIED:
            return False
        if type(value) in (list, tuple):
            flat.extend(value)
    return True


def _known(values: list[Any], pending: type) -> bool:
    for value in values:
        kind = type(value)
        if kind is pending or kind in _CONSTANTS:
            continue
        if kind in _PLAIN_CLASSES:
            if not is_plain(value):
                return False
        elif kind in (list, tuple, torch.Size):
            if not _known(list(value), pending):
                return False
        elif kind is slice:
            if not _known([value.start, value.stop, value.step], pending):
                return False
        elif kind is dict:
            if not all(type(key) is str for key in value) or not _known(list(value.values()), pending):
                return False
        else:
            return False
    return True


def cause_of_operands(operands: Iterable[torch.Tensor]) -> str:
    """What kind of operand keeps a call from being recorded: "sparse", "nested", "quantised", or "" for others."""
    for operand in operands:
        if type(operand) not in _PLAIN_CLASSES:
            continue
        if operand.is_nested:
            return "nested"
        if str(operand.layout).startswith("torch.sparse"):
            return "sparse"
        if operand.is_quantized:
            return "quantised"
    return ""


def is_constant(value: Any) -> bool:
    """Whether a graph holds ``value`` as it is."""
    return type(value) in _CONSTANTS


def constant(value: Any) -> Any:
    """What tells one constant of a graph from all others: -0.0 from 0.0, True from 1."""
    if type(value) in (float, complex):
        return type(value), repr(value)
    return type(value), value


def target_of(function: Any) -> tuple[str, Any]:
    """How a graph holds a call: its kind of node and the target."""
    name: str = getattr(function, "__name__", "")
    if name == "__get__":
        return "call_function", getattr
    if function is SET_GRAD:
        return "call_function", function
    if name in _OPERATORS and getattr(function, "__objclass__", None) is not None:
        return "call_function", _OPERATORS[name]
    owner = getattr(function, "__qualname__", "").partition(".")[0]
    if owner in ("Tensor", "TensorBase"):
        return "call_method", name
    return "call_function", function
