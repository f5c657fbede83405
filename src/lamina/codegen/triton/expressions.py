"""Scalar operations as Triton expressions with eager's meaning: NaN, signed zero, integer division, wrap-around."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lamina.base.dtypes import DTYPES, LARGEST_E4M3
from lamina.codegen.triton.source import UnsupportedKernel
from lamina.codegen.triton.types import HALVES, kind, lifted, literal, typed
from lamina.ir.loops import Compute
from lamina.ir.ops import OPS

__all__ = ["cast_text", "compute_text", "constant_text", "in_float"]

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
}
_LOGIC = {"and": "&", "or": "|", "xor": "^"}
_BOOLEAN = {
    "add": "{0} | {1}",
    "mul": "{0} & {1}",
    "maximum": "{0} | {1}",
    "minimum": "{0} & {1}",
    "lt": "~{0} & {1}",
    "gt": "{0} & ~{1}",
    "le": "~{0} | {1}",
    "ge": "{0} | ~{1}",
    "bitwise_not": "~{0}",
    "isnan": "{0} & ~{0}",
    "isinf": "{0} & ~{0}",
    "signbit": "{0} & ~{0}",
    "abs": "{0}",
    "fmax": "{0} | {1}",
    "fmin": "{0} & {1}",
}
_ROUNDINGS = ("floor", "ceil", "trunc", "round")
_LIBDEVICE = {op.name: op.libdevice for op in OPS.values() if op.libdevice}
_FAST = {"erf": "fast_erf", "exp": "fast_exp", "tanh": "fast_tanh", "sigmoid": "fast_sigmoid"}


def constant_text(value: float, dtype: str) -> str:
    """A literal as a scalar of its dtype."""
    held = lifted(dtype)
    made = f"tl.full((), {literal(value, dtype)}, {typed(held)})"
    return made if held == dtype else f"{made}.to({typed(dtype)})"


def in_float(text: str, dtype: str) -> str:
    """The value in the dtype it is computed in."""
    return f"{text}.to(tl.float32)" if dtype in HALVES else text


def cast_text(text: str, source: str, to: str) -> str:
    """Conversion between element types, the way eager converts."""
    if source == to:
        return text
    if to == "bool":
        return f"{in_float(text, source)} != 0"
    if to in ("float8_e4m3fn", "float8_e5m2"):
        wide = text if source == "float32" else f"{text}.to(tl.float32)"
        if to == "float8_e4m3fn":
            return f"to_e4m3({wide}, {literal(LARGEST_E4M3, 'float32')})"
        return f"to_e5m2({wide})"
    value = in_float(text, source)
    if to in HALVES and source != "float32":
        value = f"{text}.to(tl.float32)"
    if kind(source) == "float" and kind(to) in ("int", "uint") and DTYPES[to].size < 4:
        value = f"{value}.to(tl.int32)"
    return f"{value}.to({typed(to)})" if value != f"{text}.to({typed(to)})" else value


def compute_text(
    eqn: Compute, dtypes: Sequence[str], name: Callable[[int], str], plain: Callable[[int], str | None], fast: bool
) -> str:
    """The expression of a scalar operation.

    ``name(k)`` is operand ``k`` as a value, ``plain(k)`` its literal where it is a constant that an infix operator may
    take. ``fast`` allows the hardware's approximations.
    """
    first = dtypes[-1]
    if eqn.op == "identity":
        return name(0)
    if eqn.op == "where":
        return f"tl.where({name(0)}, {name(1)}, {name(2)})"
    if eqn.op == "cast":
        return cast_text(name(0), dtypes[0], eqn.dtype)
    if eqn.op in ("bits", "from_bits"):
        return f"{name(0)}.to({typed(eqn.dtype)}, bitcast=True)"
    ins = [in_float(name(k), first) for k in range(len(dtypes))]
    if eqn.op in _INFIX and kind(first) != "bool":
        ins = [text if (given := plain(k)) is None else given for k, text in enumerate(ins)]
    text = _text(eqn.op, ins, first, fast)
    if eqn.dtype == "bool" or first not in HALVES:
        return text
    return f"({text}).to({typed(eqn.dtype)})"


def _text(op: str, ins: list[str], dtype: str, fast: bool) -> str:
    made = kind(dtype)
    if made == "complex":
        raise UnsupportedKernel("complex numbers")
    if made == "bool" and op in _BOOLEAN:
        return _BOOLEAN[op].format(*ins)
    if op == "not":
        return f"~{ins[0]}"
    if op in _LOGIC:
        return f"{ins[0]} {_LOGIC[op]} {ins[1]}"
    if op in _INFIX:
        return f"{ins[0]} {_INFIX[op]} {ins[1]}"
    if made == "float":
        return _float_text(op, ins, dtype, fast)
    return _int_text(op, ins, dtype)


def _float_text(op: str, ins: list[str], dtype: str, fast: bool) -> str:
    held = lifted(dtype)
    single = held == "float32"
    if fast and single and op in _FAST:
        return f"{_FAST[op]}({ins[0]})"
    if op == "div":
        return f"{ins[0]} / {ins[1]}" if fast else _quotient(ins[0], ins[1], held)
    if op == "sqrt":
        return f"exact_root({ins[0]})" if single else f"libdevice.sqrt({ins[0]})"
    if op in ("floor", "ceil"):
        return f"tl.{op}({ins[0]})"
    if op in _LIBDEVICE:
        return f"libdevice.{_LIBDEVICE[op]}({', '.join(ins)})"
    if op in ("maximum", "minimum") and single:
        return f"tl.{op}({ins[0]}, {ins[1]}, propagate_nan=tl.PropagateNan.ALL)"
    bits, sign, rest = (
        ("tl.int32", "-2147483648", "2147483647")
        if single
        else (*("tl.int64", "-9223372036854775808", "9223372036854775807"),)
    )
    a, b = ins[0], ins[-1]
    one = f"tl.full((), 1.0, {typed(held)})"
    forms = {
        "maximum": f"maximum({a}, {b})",
        "minimum": f"minimum({a}, {b})",
        "fmax": f"tl.where(({a} > {b}) | ({b} != {b}), {a}, {b})",
        "fmin": f"tl.where(({a} < {b}) | ({b} != {b}), {a}, {b})",
        "neg": f"{a} * -1.0",
        "abs": f"tl.abs({a})",
        "relu": f"tl.where({a} <= 0, tl.full((), 0, {typed(held)}), {a})",
        "sign": f"({a} > 0).to({typed(held)}) - ({a} < 0).to({typed(held)})",
        "isnan": f"{a} != {a}",
        "isinf": f'tl.abs({a}) == float("inf")',
        "signbit": f"{a}.to({bits}, bitcast=True) < 0",
        "copysign": f"(({a}.to({bits}, bitcast=True) & {rest}) | ({b}.to({bits}, bitcast=True) & {sign}))"
        f".to({typed(held)}, bitcast=True)",
        "sigmoid": _quotient(one, f"(1.0 + libdevice.exp({a} * -1.0))", held),
        "mod": f"float_mod({a}, {b})",
        "floor_div": f"float_floor_div({a}, {b})",
        "trunc_div": f"libdevice.trunc({_rounded_quotient(a, b, dtype)})",
        "digamma": f"digamma({a})",
    }
    if op not in forms:
        raise UnsupportedKernel(f"{op} of {dtype}")
    return forms[op]


def _rounded_quotient(a: str, b: str, dtype: str) -> str:
    """The quotient as an operation of its own gives it."""
    if dtype in HALVES:
        return f"({a} / {b}).to({typed(dtype)}).to(tl.float32)"
    return _quotient(a, b, dtype)


def _quotient(a: str, b: str, dtype: str) -> str:
    """The quotient of these texts, rounded to nearest: Triton's own of float32 is an approximation."""
    if dtype != "float32":
        return f"{a} / {b}"
    return f"exact_inverse({b})" if a == f"tl.full((), 1.0, {typed(dtype)})" else f"exact_quotient({a}, {b})"


def _int_text(op: str, ins: list[str], dtype: str) -> str:
    a, b = ins[0], ins[-1]
    signed = kind(dtype) == "int"
    bits = DTYPES[dtype].size * 8
    forms = {
        "floor_div": f"int_floor_div({a}, {b})" if signed else f"{a} // {b}",
        "trunc_div": f"{a} // {b}",
        "mod": f"int_mod({a}, {b})" if signed else f"{a} % {b}",
        "fmod": f"{a} % {b}",
        "maximum": f"tl.maximum({a}, {b})",
        "minimum": f"tl.minimum({a}, {b})",
        "neg": f"0 - {a}",
        "abs": f"tl.abs({a})" if signed else a,
        "relu": f"tl.where({a} <= 0, tl.full((), 0, {typed(dtype)}), {a})" if signed else a,
        "sign": f"({a} > 0).to({typed(dtype)}) - ({a} < 0).to({typed(dtype)})",
        "bitwise_not": f"~{a}" if signed else f"{a} ^ {(1 << bits) - 1}",
        "shl": f"shift_left({a}, {b}, {bits})",
        "shr": f"shift_right({a}, {b}, {bits})"
        if signed
        else f"tl.where({b} < {bits}, {a} >> {b}, tl.full((), 0, {typed(dtype)}))",
        "pow": f"int_pow({a}, {b})",
        "signbit": f"{a} < 0",
        "isnan": f"{a} != {a}",
        "isinf": f"{a} != {a}",
        **dict.fromkeys(_ROUNDINGS, a),
    }
    if op not in forms:
        raise UnsupportedKernel(f"{op} of {dtype}")
    return forms[op]
