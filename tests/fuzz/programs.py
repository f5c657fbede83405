"""Random programs over a few inputs, as printable code.

Pointwise operations, reductions, norms, windows, scans, indexing, views and broadcasts, and dropout where asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

__all__ = ["Program", "programs"]

DTYPES = ("float32", "bfloat16", "float64", "int32", "int64", "uint8", "bool")
SIZES = (1, 2, 3, 5, 8, 16, 17, 33)
MOST = 60_000
"""Elements of a tensor."""


@dataclass(frozen=True, slots=True)
class Value:
    """A variable of the program while it is drawn: only its shape and kind matter."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def floating(self) -> bool:
        return self.dtype.is_floating_point


@dataclass(frozen=True, slots=True)
class Program:
    """Runnable source: ``make_inputs()`` gives the arguments of ``program``."""

    inputs: tuple[tuple[str, tuple[int, ...], str], ...]
    lines: tuple[str, ...]
    outputs: tuple[str, ...]

    def source(self) -> str:
        """A Python file that shows the program and runs it eagerly and compiled."""
        names = ", ".join(name for name, _, _ in self.inputs)
        body = "\n".join(f"    {line}" for line in self.lines)
        made = "\n".join(
            f"    {name} = sample({shape}, torch.{dtype}, {seed})"
            for seed, (name, shape, dtype) in enumerate(self.inputs)
        )
        return (
            "import torch\n\n\n"
            "def sample(shape, dtype, seed):\n"
            "    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))\n"
            "    return values.to(dtype) if dtype.is_floating_point else (values * 3).abs().to(dtype)\n\n\n"
            f"def make_inputs():\n{made}\n    return [{names}]\n\n\n"
            f"def program({names}):\n{body}\n    return ({', '.join(self.outputs)},)\n"
        )

    def load(self) -> tuple[Callable[..., Any], list[Tensor]]:
        """The function and its inputs, from the source."""
        space: dict[str, Any] = {}
        exec(compile(self.source(), "<random program>", "exec"), space)
        return space["program"], space["make_inputs"]()


UNARY = ("abs", "neg", "square")
UNARY_FLOAT = ("sin", "cos", "tanh", "sigmoid", "relu", "exp2", "erf")
UNARY_STEPS = ("round", "floor", "sign")
GUARDED = ("torch.exp({0}.clamp(max=4))", "torch.log({0}.abs() + 1)", "torch.rsqrt({0}.abs() + 0.5)")
BINARY = ("{0} + {1}", "{0} - {1}", "{0} * {1}", "torch.maximum({0}, {1})", "torch.minimum({0}, {1})")
COMPARE = ("{0} < {1}", "{0} >= {1}", "{0} == {1}")
REDUCE = ("sum", "mean", "amax", "amin")
SCALAR = ("{0} * 2", "{0} + 3", "1 - {0}", "{0}.clamp(min=1)")


class _Writer:
    """Draws one line at a time, keeping the variables made so far."""

    def __init__(self, draw: Any, wide: bool, dropout: bool, sizes: Sequence[int], dtypes: Sequence[str]) -> None:
        self.draw, self.wide, self.dropout, self.sizes, self.dtypes = draw, wide, dropout, sizes, dtypes
        self.values: list[Value] = []
        self.lines: list[str] = []
        self.inputs: list[tuple[str, tuple[int, ...], str]] = []

    def add_input(self) -> None:
        rank = self.draw(st.integers(0, 3))
        shape = tuple(self.draw(st.sampled_from(self.sizes)) for _ in range(rank))
        while prod(shape) > MOST:
            shape = shape[1:]
        dtype = self.draw(st.sampled_from(self.dtypes))
        name = f"x{len(self.inputs)}"
        self.inputs.append((name, shape, dtype))
        self.values.append(Value(name, shape, getattr(torch, dtype)))

    def add_line(self) -> None:
        kinds = [self._unary, self._binary, self._reduce, self._view, self._select, self._row, self._cast, self._scan]
        if self.wide:
            kinds += [self._index, self._window]
        if self.dropout:
            kinds = [k for k in kinds if k not in (self._select, self._cast)] + [self._drop, self._drop]
        self.draw(st.sampled_from(kinds))(self.draw(st.sampled_from(self.values)))

    def _emit(self, code: str) -> None:
        """Add ``v = code``, with the shape and type that it has for zeros; drop it if torch refuses it."""
        space = {v.name: torch.zeros(v.shape, dtype=v.dtype) for v in self.values}
        try:
            made = eval(code, {"torch": torch}, space)
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            return
        if made.numel() > MOST:
            return
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {code}")
        self.values.append(Value(name, tuple(made.shape), made.dtype))

    def _unary(self, a: Value) -> None:
        if a.floating:
            names = (*UNARY, *UNARY_FLOAT) if self.dropout else (*UNARY, *UNARY_FLOAT, *UNARY_STEPS)
            choices = [f"torch.{f}({{0}})" for f in names] + [*GUARDED, *SCALAR]
        else:
            choices = ["torch.square({0})", *SCALAR] if a.dtype != torch.bool else ["~{0}", "{0} * 2"]
        self._emit(self.draw(st.sampled_from(choices)).format(a.name))

    def _binary(self, a: Value) -> None:
        b = self.draw(st.sampled_from(self.values))
        choices = list(BINARY)
        if a.floating and b.floating:
            choices.append("{0} / ({1}.abs() + 0.5)")
        if not self.dropout and self.draw(st.integers(0, 4)) == 0:
            choices = list(COMPARE)
        self._emit(self.draw(st.sampled_from(choices)).format(a.name, b.name))

    def _select(self, a: Value) -> None:
        b, c = (self.draw(st.sampled_from(self.values)) for _ in range(2))
        self._emit(f"torch.where({c.name} > 0, {a.name}, {b.name})")

    def _reduce(self, a: Value) -> None:
        if not a.shape:
            return
        axes = self.draw(st.sets(st.integers(0, len(a.shape) - 1), min_size=1, max_size=len(a.shape)))
        keep = self.draw(st.booleans())
        names = REDUCE if a.floating else ("sum", "amax")
        name = self.draw(st.sampled_from(names))
        self._emit(f"{a.name}.{name}({tuple(sorted(axes))}, keepdim={keep})")

    def _row(self, a: Value) -> None:
        if not a.shape or not a.floating:
            return
        axis = self.draw(st.integers(0, len(a.shape) - 1))
        choices = (
            f"{a.name}.softmax({axis})",
            f"{a.name}.var({axis}, correction=0, keepdim=True)",
            f"{a.name} - {a.name}.mean({axis}, keepdim=True)",
            f"torch.nn.functional.layer_norm({a.name}, ({a.shape[-1]},))",
            f"{a.name}.logsumexp({axis})",
        )
        self._emit(self.draw(st.sampled_from(choices)))

    def _view(self, a: Value) -> None:
        rank = len(a.shape)
        choices = [f"{a.name}.unsqueeze({self.draw(st.integers(0, rank))})", f"{a.name}.reshape(-1)"]
        if rank:
            axis = self.draw(st.integers(0, rank - 1))
            start, step = self.draw(st.integers(0, 2)), self.draw(st.integers(1, 2))
            index = ", ".join([":"] * axis + [f"{start}::{step}"])
            if start < a.shape[axis]:
                choices.append(f"{a.name}[{index}]")
            choices += [
                f"{a.name}.flip({axis})",
                f"torch.cat([{a.name}, {a.name}], {axis})",
                f"{a.name}.squeeze({axis})",
            ]
            order = self.draw(st.permutations(range(rank)))
            choices += [f"{a.name}.permute({tuple(order)})", f"{a.name}.unsqueeze(0).expand({(2, *a.shape)})"]
            choices.append(f"torch.nn.functional.pad({a.name}, (1, 2))")
            choices.append(f"{a.name}.roll(1, {axis})")
        self._emit(self.draw(st.sampled_from(choices)))

    def _cast(self, a: Value) -> None:
        target = self.draw(st.sampled_from(self.dtypes))
        source = f"{a.name}.clamp(0, 100)" if a.floating and target in ("uint8", "int32", "int64") else a.name
        self._emit(f"{source}.to(torch.{target})")

    def _scan(self, a: Value) -> None:
        if not a.shape:
            return
        axis = self.draw(st.integers(0, len(a.shape) - 1))
        if not self.wide:
            self._emit(f"{a.name}.cumsum({axis})")
            return
        choices = [f"{a.name}.cumsum({axis})", f"{a.name}.flip({axis}).cumsum({axis}).flip({axis})"]
        if a.floating:
            choices += [
                f"{a.name}.cummax({axis}).values",
                f"{a.name}.logcumsumexp({axis})",
                f"({a.name}.tanh() * 0.5 + 1).cumprod({axis})",
            ]
        self._emit(self.draw(st.sampled_from(choices)))

    def _index(self, a: Value) -> None:
        """Rows at computed places, or what a mask over positions leaves."""
        places = [v for v in self.values if v.dtype in (torch.int32, torch.int64, torch.uint8)]
        if not a.shape:
            return
        axis = self.draw(st.integers(0, len(a.shape) - 1))
        choices = [f"{a.name}.tril()", f"{a.name}.triu(1)"]
        if places:
            chosen = self.draw(st.sampled_from(places)).name
            place = f"{chosen}.long().remainder({a.shape[axis]})"
            choices += [
                f"{a.name}.index_select({axis}, {place}.reshape(-1))",
                f"torch.take_along_dim({a.name}, {place}, {axis})",
                f"{a.name}.index_add({axis}, {place}.reshape(-1)[:1], {a.name}.narrow({axis}, 0, 1))",
            ]
        self._emit(self.draw(st.sampled_from(choices)))

    def _window(self, a: Value) -> None:
        """Reductions of overlapping or adjacent windows, and norms over several axes at once."""
        if not a.floating or len(a.shape) < 2:
            return
        size, step = self.draw(st.integers(2, 3)), self.draw(st.integers(1, 2))
        choices = [
            f"{a.name}.unfold(-1, {size}, {step}).sum(-1)",
            f"{a.name}.unfold(-2, {size}, {step}).amax(-1)",
            f"torch.nn.functional.avg_pool1d({a.name}, {size}, {step})",
            f"torch.nn.functional.batch_norm({a.name}, None, None, training=True)",
            f"torch.nn.functional.group_norm({a.name}, 1)",
        ]
        if len(a.shape) == 3:
            choices += [
                f"torch.nn.functional.max_pool2d({a.name}, {size}, {step})",
                f"torch.nn.functional.avg_pool2d({a.name}, {size}, {step}, 1)",
            ]
        self._emit(self.draw(st.sampled_from(choices)))

    def _drop(self, a: Value) -> None:
        if a.floating:
            self._emit(f"torch.nn.functional.dropout({a.name}, {self.draw(st.sampled_from((0.1, 0.5)))})")


@st.composite
def programs(
    draw: Any,
    lines: int = 10,
    wide: bool = False,
    dropout: bool = False,
    sizes: Sequence[int] = SIZES,
    dtypes: Sequence[str] = DTYPES,
    fewest: int = 1,
) -> Program:
    """Programs with one to three inputs and ``fewest`` to ``lines`` operations; the last few variables are returned.

    With ``wide`` there are also indexing, windows, norms over several axes and other scans than sums. With ``dropout``
    some operations draw random numbers, and none turns a rounding error into a step.
    """
    writer = _Writer(draw, wide, dropout, sizes, dtypes)
    for _ in range(draw(st.integers(1, 3))):
        writer.add_input()
    for _ in range(draw(st.integers(fewest, lines))):
        writer.add_line()
    if not writer.lines:
        writer.lines.append("v0 = x0 + x0")
        writer.values.append(Value("v0", writer.values[0].shape, writer.values[0].dtype))
    made = [v.name for v in writer.values if v.name.startswith("v")]
    outputs: Sequence[str] = made[-draw(st.integers(1, 3)) :]
    return Program(tuple(writer.inputs), tuple(writer.lines), tuple(outputs))
