"""The GPU patterns: programs whose speed a compiler decides, at sizes that fill a large GPU. bf16, optimizers fp32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["PROGRAMS", "GpuData", "GpuProgram", "Program"]


@dataclass(slots=True)
class GpuData:
    """Makes the same random inputs for every run: drawn in fp32, rounded to bf16, held in ``computed``."""

    computed: torch.dtype
    training: bool
    device: str = "cuda"
    leaves: list[Tensor] = field(default_factory=list)
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator(self.device).manual_seed(0)

    def randn(self, *shape: int, scale: float = 1.0, exact: bool = False) -> Tensor:
        """A tensor that needs no gradient; ``exact`` ones are fp32 (fp64 in the reference run)."""
        drawn = torch.randn(shape, generator=self.generator, device=self.device) * scale
        wide = torch.float64 if self.computed == torch.float64 else torch.float32
        return drawn.to(wide) if exact else drawn.to(torch.bfloat16).to(self.computed)

    def leaf(self, *shape: int, scale: float = 1.0) -> Tensor:
        """A tensor that gets a gradient when training."""
        tensor = self.randn(*shape, scale=scale).requires_grad_(self.training)
        if self.training:
            self.leaves.append(tensor)
        return tensor

    def module(self, make: Callable[[], nn.Module]) -> Any:
        """What ``make`` returns, with the same random weights in every run, all of which get a gradient when training.

        It is made on the device in fp32 and then rounded to bf16, buffers too.
        """
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()), enabled=True), torch.device(self.device):
            torch.manual_seed(0)
            made = make()
        made = made.to(torch.bfloat16).to(self.computed).train(self.training).requires_grad_(self.training)
        if self.training:
            self.leaves.extend(made.parameters())
        return made

    def integers(self, high: int, *shape: int) -> Tensor:
        """Integers from 0 to ``high`` - 1."""
        return torch.randint(high, shape, generator=self.generator, device=self.device)

    def skewed(self, high: int, *shape: int) -> Tensor:
        """Integers below ``high`` as frequent as words are: number k about 1/k of the time."""
        uniform = torch.rand(shape, generator=self.generator, device=self.device, dtype=torch.float64)
        return (torch.exp(uniform * torch.log(torch.tensor(float(high)))) - 1).long().clamp_(0, high - 1)


@dataclass(frozen=True, slots=True)
class Program:
    """A function and its arguments; ``state`` are the tensors that it changes in place."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    state: tuple[Tensor, ...] = ()
    moved: int | None = None  # bytes that the forward must move, where inputs and outputs do not say


@dataclass(frozen=True, slots=True)
class GpuProgram:
    """One row group; ``modes`` are forward, training (forward and backward) or both; ``random`` draws numbers.

    With ``bound_by_bytes`` a forward is measured against the time of copying its inputs and outputs.
    """

    name: str
    build: Callable[[GpuData], Program]
    modes: tuple[str, ...] = ("forward", "training")
    random: bool = False
    bound_by_bytes: bool = True


def _bias_gelu(data: GpuData) -> Program:
    def function(x: Tensor, b: Tensor) -> Tensor:
        return F.gelu(x + b, approximate="tanh")

    return Program(function, (data.leaf(8192, 16384), data.leaf(16384)))


def _layer_norm(data: GpuData) -> Program:
    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(x, (4096,), w, b)

    return Program(function, (data.leaf(16384, 4096), data.leaf(4096), data.leaf(4096)))


def _rms_norm_residual(data: GpuData) -> Program:
    def function(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x + residual
        wide = h.float() if h.dtype == torch.bfloat16 else h
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return (wide * scale).to(x.dtype) * w, h

    return Program(function, (data.leaf(16384, 4096), data.leaf(16384, 4096), data.leaf(4096)))


def _softmax(rows: int, columns: int) -> Callable[[GpuData], Program]:
    def build(data: GpuData) -> Program:
        def function(x: Tensor) -> Tensor:
            return x.softmax(-1)

        return Program(function, (data.leaf(rows, columns, scale=3),))

    return build


def _cross_entropy(rows: int, classes: int) -> Callable[[GpuData], Program]:
    def build(data: GpuData) -> Program:
        def function(x: Tensor, target: Tensor) -> Tensor:
            return F.cross_entropy(x, target)

        return Program(function, (data.leaf(rows, classes, scale=3), data.integers(classes, rows)))

    return build


def _group_norm_silu(channels_last: bool) -> Callable[[GpuData], Program]:
    def build(data: GpuData) -> Program:
        def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            return F.silu(F.group_norm(x, 32, w, b))

        x = data.randn(32, 320, 64, 64)
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        if data.training:
            data.leaves.append(x.requires_grad_())
        return Program(function, (x, data.leaf(320), data.leaf(320)))

    return build


def _batch_norm_relu_add(data: GpuData) -> Program:
    def function(x: Tensor, y: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.relu(F.batch_norm(x, mean, var, w, b, training=True) + y)

    mean, var = data.randn(256, exact=True) * 0, data.randn(256, exact=True) * 0 + 1
    x, y = data.leaf(64, 256, 56, 56), data.leaf(64, 256, 56, 56)
    w, b = (data.randn(256, exact=True).requires_grad_(data.training) for _ in range(2))
    if data.training:
        data.leaves += [w, b]
    return Program(function, (x, y, mean, var, w, b), (mean, var))


def _swiglu(data: GpuData) -> Program:
    def function(gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up

    return Program(function, (data.leaf(8192, 14336), data.leaf(8192, 14336)))


def _rotary_qk_norm(data: GpuData) -> Program:
    def turned(x: Tensor) -> Tensor:
        low, high = x.chunk(2, -1)
        return torch.cat([-high, low], -1)

    def normed(x: Tensor, w: Tensor) -> Tensor:
        wide = x.float() if x.dtype == torch.bfloat16 else x
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w

    def function(q: Tensor, k: Tensor, v: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        q, k = normed(q, v), normed(k, w)
        return q * cos + turned(q) * sin, k * cos + turned(k) * sin

    angle = data.randn(4096, 128)
    args = (data.leaf(4, 32, 4096, 128), data.leaf(4, 8, 4096, 128), data.leaf(128), data.leaf(128))
    return Program(function, (*args, angle.cos(), angle.sin()))


def _dropout_residual_norm(data: GpuData) -> Program:
    def function(x: Tensor, residual: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(F.dropout(x, 0.1, True) + residual, (4096,), w, b)

    return Program(function, (data.leaf(16384, 4096), data.leaf(16384, 4096), data.leaf(4096), data.leaf(4096)))


def _transposed_add(data: GpuData) -> Program:
    return Program(lambda x, y: x.t() + y, (data.leaf(8192, 16384), data.leaf(16384, 8192)))


def _permute_add(data: GpuData) -> Program:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return x.permute(0, 2, 1, 3) + y

    return Program(function, (data.leaf(16, 2048, 32, 128), data.leaf(16, 32, 2048, 128)))


def _reduction(kind: str, place: str) -> Callable[[GpuData], Program]:
    shape = (64, 1024, 2048) if place == "middle" else (16384, 8192)
    dims = {"column": (0,), "row": (1,), "middle": (1,), "full": tuple(range(len(shape)))}[place]

    def build(data: GpuData) -> Program:
        def function(x: Tensor) -> Tensor:
            return x.sum(dims) if kind == "sum" else x.var(dims)

        return Program(function, (data.leaf(*shape),))

    return build


def _cumulative_sum(data: GpuData) -> Program:
    return Program(lambda x: x.cumsum(-1), (data.leaf(16384, 8192),))


def _overlaps(data: GpuData) -> Program:
    """The share that any two boxes have in common; each is its least and its greatest corner."""

    def function(a: Tensor, b: Tensor) -> Tensor:
        low, high = torch.max(a[:, None, :2], b[None, :, :2]), torch.min(a[:, None, 2:], b[None, :, 2:])
        sides = (high - low).clamp(min=0)
        inner = sides[..., 0] * sides[..., 1]
        one, other = ((x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1]) for x in (a, b))
        return inner / (one[:, None] + other[None] - inner)

    def boxes() -> Tensor:
        corner = data.randn(4096, 2)
        return torch.cat([corner, corner + data.randn(4096, 2).abs() + 1], 1)

    return Program(function, (boxes(), boxes()))


def _distances(data: GpuData) -> Program:
    def function(a: Tensor, b: Tensor) -> Tensor:
        return (a[:, None] - b[None]).square().sum(-1).sqrt()

    return Program(function, (data.randn(4096, 4), data.randn(4096, 4)))


def _shifted_windows(data: GpuData) -> Program:
    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = torch.roll(F.layer_norm(x, (192,), w, b), (-3, -3), (1, 2))
        return y.view(32, 8, 7, 8, 7, 192).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, 192)

    return Program(function, (data.leaf(32, 56, 56, 192), data.leaf(192), data.leaf(192)))


def _rolled_rows(data: GpuData) -> Program:
    def function(x: Tensor) -> Tensor:
        return torch.lerp(torch.roll(F.log_softmax(x, 1) * 0.1, (2,), (0,)), x, 0.25)

    return Program(function, (data.leaf(33322, 512),))


def _embedding(data: GpuData) -> Program:
    def function(tokens: Tensor, table: Tensor) -> Tensor:
        return F.embedding(tokens, table)

    tokens = data.skewed(50257, 16, 4096)
    moved = tokens.numel() * (8 + 2 * 1024 * 2)
    return Program(function, (tokens, data.leaf(50257, 1024)), moved=moved)


def _quantise(dtype: torch.dtype, group: int) -> Callable[[GpuData], Program]:
    largest = 127.0 if dtype == torch.int8 else 448.0

    def build(data: GpuData) -> Program:
        def function(x: Tensor) -> tuple[Tensor, Tensor]:
            wide = x.float() if x.dtype == torch.bfloat16 else x
            grouped = wide.unflatten(-1, (-1, group)) if group else wide
            scale = grouped.abs().amax(-1, keepdim=True).clamp(min=1e-6) / largest
            scaled = grouped / scale
            scaled = scaled.round() if dtype == torch.int8 else scaled
            return scaled.clamp(-largest, largest).to(dtype).view(x.shape), scale.squeeze(-1)

        return Program(function, (data.randn(16384, 8192),))

    return build


def _gelu_backward_bias(data: GpuData) -> Program:
    def function(gradient: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        dx = torch.ops.aten.gelu_backward(gradient, x, approximate="tanh")
        return dx, dx.sum(0)

    return Program(function, (data.randn(8192, 16384), data.randn(8192, 16384)))


def _adamw(shapes: list[tuple[int, ...]]) -> Callable[[GpuData], Program]:
    def build(data: GpuData) -> Program:
        parameters = [data.randn(*shape, exact=True).requires_grad_() for shape in shapes]
        for parameter in parameters:
            parameter.grad = data.randn(*parameter.shape, exact=True)
        optimizer = torch.optim.AdamW(parameters, lr=1e-3)

        def function() -> None:
            optimizer.step()

        # Read: parameter, gradient, both moments; written: all but the gradient.
        moved = sum(7 * p.numel() * p.element_size() for p in parameters)
        return Program(function, (), tuple(parameters), moved)

    return build


def _resnet50() -> list[tuple[int, ...]]:
    """Shapes of ResNet-50's parameters."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    inside = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolutions = [(width, inside, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            if block == 0:
                convolutions.append((4 * width, inside, 1, 1))
            for shape in convolutions:
                shapes += [shape, (shape[0],), (shape[0],)]
            inside = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


_SOFTMAX = ((65536, 1024), (16384, 4096), (8192, 16384), (4096, 50257), (512, 262144))
_CLASSES = ((8192, 32000), (8192, 50257), (4096, 128256))
_FORWARD = ("forward",)

# What models spend most on comes first: a run that is cut short has it.
PROGRAMS = (
    GpuProgram("layer_norm", _layer_norm),
    GpuProgram("rms_norm_residual", _rms_norm_residual),
    GpuProgram("bias_gelu", _bias_gelu),
    GpuProgram("swiglu", _swiglu),
    *(GpuProgram(f"cross_entropy_{classes}", _cross_entropy(rows, classes)) for rows, classes in _CLASSES[:2]),
    *(GpuProgram(f"softmax_{columns}", _softmax(rows, columns)) for rows, columns in _SOFTMAX[:3]),
    GpuProgram("dropout_residual_norm", _dropout_residual_norm, random=True),
    GpuProgram("rotary_qk_norm", _rotary_qk_norm),
    GpuProgram("batch_norm_relu_add", _batch_norm_relu_add),
    GpuProgram("adamw_100", _adamw([(1024, 1024), (1024,), (4096, 1024), (4096,)] * 25), _FORWARD),
    GpuProgram("adamw_resnet50", _adamw(_resnet50()), _FORWARD),
    GpuProgram("gelu_backward_bias", _gelu_backward_bias, _FORWARD),
    GpuProgram("group_norm_silu_nchw", _group_norm_silu(False)),
    GpuProgram("group_norm_silu_nhwc", _group_norm_silu(True)),
    GpuProgram("embedding_skewed", _embedding),
    *(
        GpuProgram(f"quantise_{name}_{group or 'row'}", _quantise(dtype, group), _FORWARD)
        for name, dtype in (("int8", torch.int8), ("fp8", torch.float8_e4m3fn))
        for group in (0, 128)
    ),
    GpuProgram("transposed_add", _transposed_add),
    GpuProgram("permute_add", _permute_add),
    *(
        GpuProgram(f"{place}_{kind}", _reduction(kind, place))
        for kind in ("sum", "var")
        for place in ("column", "row", "middle", "full")
    ),
    *(GpuProgram(f"softmax_{columns}", _softmax(rows, columns)) for rows, columns in _SOFTMAX[3:]),
    *(GpuProgram(f"cross_entropy_{classes}", _cross_entropy(rows, classes)) for rows, classes in _CLASSES[2:]),
    GpuProgram("cumulative_sum", _cumulative_sum),
    GpuProgram("overlaps", _overlaps, _FORWARD),
    GpuProgram("distances", _distances, _FORWARD),
    GpuProgram("shifted_windows", _shifted_windows),
    GpuProgram("rolled_rows", _rolled_rows),
)
