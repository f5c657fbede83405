"""C++ text of types, literals, index expressions and scalar operations, for one element or a vector of them."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import c_float

import torch

from lamina.base.dtypes import DTYPES, torch_dtype
from lamina.ir.index import Atom, Div, Expr, Loaded, Mod

__all__ = [
    *("WIDENED", "SHORT", "cast", "compute", "element", "index_text", "literal", "scalar_type", "splat"),
    "vector_type",
]

SHORT = {
    "bool": "flag",
    "int8": "int8",
    "uint8": "uint8",
    "int16": "int16",
    "uint16": "uint16",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
}
"""Name of each element type in generated code; also the suffix of its memory operations."""

WIDENED = ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16")
"""Floats that are narrow in memory only."""

_VECTOR = {
    "bool": "vflag",
    "int8": "vi32",
    "uint8": "vi32",
    "int16": "vi32",
    "int32": "vi32",
    "int64": "vi64",
    "float8_e4m3fn": "vf32",
    "float8_e5m2": "vf32",
    "float16": "vf32",
    "bfloat16": "vf32",
    "float32": "vf32",
    "float64": "vf64",
}
_NARROW = ("int8", "uint8", "int16")


def element(dtype: str) -> str:
    """Type of an element in registers: narrower floats are widened to float."""
    return "f32" if dtype in WIDENED else SHORT[dtype]


def scalar_type(dtype: str) -> str:
    """C++ type of one value."""
    return "bool" if dtype == "bool" else element(dtype)


def vector_type(dtype: str) -> str | None:
    """C++ type of a vector of values, ``None`` for the rare types that are computed one by one."""
    return _VECTOR.get(dtype)


def splat(dtype: str, text: str) -> str:
    """A scalar repeated in every lane."""
    return f"splat_{element(dtype)}({text})"


def literal(value: float, dtype: str) -> str:
    """A constant of ``dtype`` as C++ source that gives exactly that value."""
    kind = DTYPES[dtype].kind
    if kind == "bool":
        return "true" if value else "false"
    if kind != "float":
        whole = int(value)
        whole = int(torch.tensor(whole).to(torch_dtype(dtype)).item()) if abs(whole) < 2**63 else whole
        if whole == -(2**63):
            return "INT64_MIN"
        text = str(whole)
        wide = dtype in ("int64", "uint64")
        return f"({SHORT[dtype]}){text}" if wide or dtype in _NARROW else text
    number = float(torch.tensor(float(value), dtype=torch.float64).to(torch_dtype(dtype)).item())
    single = "" if dtype == "float64" else "f"
    if number != number:
        return f'__builtin_nan{single}("")'
    if number in (float("inf"), float("-inf")):
        return f"{'-' if number < 0 else ''}__builtin_inf{single}()"
    return f"{_shortest(number, single)}{single}"


def _shortest(number: float, single: str) -> str:
    """The fewest digits that read back as the same float."""
    if not single:
        return repr(number)
    for digits in range(1, 10):
        text = f"{number:.{digits}g}"
        if c_float(float(text)).value == number:
            return text if any(c in text for c in ".e") else text + ".0"
    return repr(number)


def index_text(expr: Expr, names: Mapping[str, str]) -> str:
    """An index expression as C++ of type int64; ``names`` overrides how axes and loaded values are written."""

    def atom(a: Atom) -> str:
        if isinstance(a, Div | Mod):
            num, den = index_text(a.num, names), index_text(a.den, names)
            if a.num.nonnegative():
                return f"(({num}) {'/' if isinstance(a, Div) else '%'} ({den}))"
            return f"index_{'div' if isinstance(a, Div) else 'mod'}({num}, {den})"
        text = names.get(a.name, a.name)
        return f"(int64){text}" if isinstance(a, Loaded) else text

    if expr.is_int and abs(expr.const) >= 2**31:
        return f"(int64){expr.const}"
    return expr.text(atom)


def atomic(text: str) -> str:
    """The text, in parentheses unless it is a name or a number."""
    return text if text.isdigit() or text.isidentifier() else f"({text})"


# ---- casts ----------------------------------------------------------------------------------------------------------


def cast(value: str, source: str, target: str, vector: bool) -> str:
    """``value`` of dtype ``source`` converted to ``target``."""
    if source == target:
        return value
    return _cast_vector(value, source, target) if vector else _cast_scalar(value, source, target)


def _cast_scalar(value: str, source: str, target: str) -> str:
    floating = DTYPES[source].is_float
    if target in WIDENED:
        return f"round_{SHORT[target]}((f32){value})"
    if target == "bool":
        return f"({value} != 0)"
    if DTYPES[target].is_float or not floating:
        return f"({SHORT[target]}){value}" if element(source) != SHORT[target] else value
    return f"to_int<{SHORT[target]}>({value})"


def _cast_vector(value: str, source: str, target: str) -> str:
    have = _VECTOR[source]
    if target == "bool":
        return f"({value} != {splat(source, '0')})"
    if source == "bool":
        value, have = f"number({value})", "vi32"
    want = _VECTOR[target]
    text = value if have == want else f"to_{want}({value})"
    if target in WIDENED:
        return f"round_{SHORT[target]}({text})"
    if target in _NARROW and source != "bool":
        return f"wrap_{SHORT[target]}({text})"
    return text


# ---- operations -----------------------------------------------------------------------------------------------------

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
_LOGICAL = {"and": "&", "or": "|", "xor": "^", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
_INT_CALLS = {
    "floor_div": "floor_div",
    "trunc_div": "trunc_div",
    "div": "trunc_div",
    "mod": "floor_mod",
    "fmod": "fmod_int",
    "shl": "shift_left",
    "shr": "shift_right",
    "sign": "sign_of",
    "abs": "abs_int",
    "pow": "pow_int",
}
_FLOAT_CALLS = {
    "floor_div": "floor_div_float",
    "trunc_div": "trunc_div_float",
    "minimum": "minimum",
    "maximum": "maximum",
    "sign": "sign_of",
    "relu": "relu",
}
_UNCHANGED = ("identity", "floor", "ceil", "trunc", "round")


def compute(op: str, ins: list[str], kinds: list[str], dtype: str, vector: bool) -> str:
    """``op`` applied to operands ``ins`` of dtypes ``kinds``, giving ``dtype``; all vectors or all scalars."""
    if op == "cast":
        return cast(ins[0], kinds[0], dtype, vector)
    if op in ("bits", "from_bits"):
        return _bits(ins[0], kinds[0], dtype, vector)
    if op == "where":
        return f"select({', '.join(ins)})" if vector or kinds[1] != "bool" else f"({ins[0]} ? {ins[1]} : {ins[2]})"
    if op in ("and", "or", "xor", "not") and kinds[0] != "bool":
        flags = [cast(v, k, "bool", vector) for v, k in zip(ins, kinds, strict=True)]
        return cast(f"({_bool(op, flags, vector)})", "bool", dtype, vector)
    if kinds[0] == "bool":
        text = _bool(op, ins, vector)
        return text if dtype == "bool" else cast(f"({text})", "bool", dtype, vector)
    if DTYPES[kinds[0]].is_float:
        if dtype in WIDENED and op == "trunc_div":
            return f"trunc_(round_{SHORT[dtype]}({ins[0]} / {ins[1]}))"
        if dtype in WIDENED and op == "nextafter":
            raise NotImplementedError(f"nextafter of {dtype}")
        text = _float(op, ins, vector)
        exact = dtype not in WIDENED or op in ("identity", "neg", "opposite")
        return text if exact else f"round_{SHORT[dtype]}({text})"
    return _int(op, ins, kinds[0], vector)


def _bits(value: str, source: str, target: str, vector: bool) -> str:
    """The same bits as a number of another kind; floats of fewer than 32 bits are wider in registers."""
    if DTYPES[source].size < 4:
        raise NotImplementedError(f"the bits of {source} in a CPU's kernel")
    if source == target:
        return value
    if not vector:
        return f"bits_of<{SHORT[target]}>({value})"
    return f"bits_of_{_VECTOR[target]}({value})"


def _bool(op: str, ins: list[str], vector: bool) -> str:
    if op in ("not", "bitwise_not"):
        return f"~{ins[0]}" if vector else f"!{ins[0]}"
    if op in _UNCHANGED or op in ("abs", "relu"):
        return ins[0]
    if op in ("isnan", "isinf", "signbit"):
        return f"({ins[0]} & ~{ins[0]})" if vector else "false"
    sign = _LOGICAL.get(op) or {"add": "|", "maximum": "|", "mul": "&", "minimum": "&", "ne": "^"}.get(op)
    if sign is not None:
        return f"{ins[0]} {sign} {ins[1]}" if vector else f"(bool)({ins[0]} {sign} {ins[1]})"
    if op in _COMPARE:
        a, b = (f"number({v})" for v in ins) if vector else (f"(int){v}" for v in ins)
        return f"({a} {_INFIX[op]} {b})"
    raise NotImplementedError(f"{op} of bool")


def _float(op: str, ins: list[str], vector: bool) -> str:
    if op == "identity":
        return ins[0]
    if op == "neg":
        return f"-({ins[0]})" if ins[0].startswith("-") else f"-{ins[0]}"
    if op == "isnan":
        return f"{ins[0]} != {ins[0]}"
    if op in _INFIX:
        return f"{ins[0]} {_INFIX[op]} {ins[1]}"
    return f"{_FLOAT_CALLS.get(op, op + '_')}({', '.join(ins)})"


def _int(op: str, ins: list[str], dtype: str, vector: bool) -> str:
    if op in _UNCHANGED:
        return ins[0]
    if op in ("isnan", "isinf"):
        return f"({ins[0]} != {ins[0]})"
    zero = splat(dtype, "0") if vector else "0"
    if op == "signbit":
        return f"({ins[0]} < {zero})"
    if op in _COMPARE:
        return f"{ins[0]} {_INFIX[op]} {ins[1]}"
    if not vector:
        return _int_scalar(op, ins, dtype)
    if op == "neg":
        text = f"{zero} - {ins[0]}"
    elif op == "bitwise_not":
        text = f"~{ins[0]}"
    elif op in _LOGICAL:
        return f"{ins[0]} {_LOGICAL[op]} {ins[1]}"
    elif op in ("add", "sub", "mul"):
        text = f"{ins[0]} {_INFIX[op]} {ins[1]}"
    elif op in ("minimum", "maximum", "relu"):
        return f"{op}_int({', '.join(ins)})"
    elif op in ("fmin", "fmax"):
        return f"{'minimum' if op == 'fmin' else 'maximum'}_int({', '.join(ins)})"
    else:
        text = f"{_INT_CALLS[op]}({', '.join(ins)})"
    return f"wrap_{SHORT[dtype]}({text})" if dtype in _NARROW else text


def _int_scalar(op: str, ins: list[str], dtype: str) -> str:
    kind = SHORT[dtype]
    if op == "neg":
        return f"wrap_sub<{kind}>(0, {ins[0]})"
    if op == "bitwise_not":
        return f"({kind})~{ins[0]}"
    if op in _LOGICAL:
        return f"({kind})({ins[0]} {_LOGICAL[op]} {ins[1]})"
    if op in ("add", "sub", "mul"):
        return f"wrap_{op}<{kind}>({ins[0]}, {ins[1]})"
    if op in ("minimum", "maximum", "fmin", "fmax"):
        return f"{'minimum' if 'min' in op else 'maximum'}<{kind}>({ins[0]}, {ins[1]})"
    return f"{_INT_CALLS.get(op, op)}<{kind}>({', '.join(ins)})"
