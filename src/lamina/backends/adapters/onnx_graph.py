"""Functional ATen graphs of fixed sizes as ONNX models, for the runtimes that read those."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.backends.adapters.onnx_ops import BINARY, REFUSALS, UNARY, args_of, argument, dtype_of, rank_of
from lamina.backends.adapters.optional import optional
from lamina.backends.api import tensors_of
from lamina.base.devices import kind_of

__all__ = ["OPSET", "onnx_model", "translates"]

OPSET = 18
"""Version of ONNX's operator set that models are written in; runtimes refuse a newer one than they know."""
IR_VERSION = 9
"""Version of ONNX's file format that goes with ``OPSET``."""
aten = torch.ops.aten

_TYPES = {
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
    torch.int64: "INT64",
    torch.int32: "INT32",
    torch.bool: "BOOL",
}

Rule = Callable[["_Model", Node], Any]
_RULES: dict[Any, Rule] = {}
"""By operation. Filled when this file is imported, then only read."""


def _rule(*operations: Any) -> Callable[[Rule], Rule]:
    def enter(rule: Rule) -> Rule:
        for operation in operations:
            _RULES[operation] = rule
        return rule

    return enter


def translates(node: Node) -> bool | str:
    """Whether there is a rule for a call, or why it is left out."""
    if node.target not in _RULES:
        return f"{node.target} has no translation"
    for tensor in tensors_of(node, *node.all_input_nodes):
        if tensor.numel() == 0:
            return "a tensor without elements"
    if node.target in REFUSALS:
        return REFUSALS[node.target](node)
    return True


def onnx_model(gm: GraphModule) -> bytes:
    """The ONNX model of a graph whose calls all have translations; inputs "in0", ... and outputs "out0", ...

    Raises ``NotImplementedError`` for what has none.
    """
    return _Model(gm).serialized()


class _Model:
    """An ONNX graph under construction; ``names`` holds the name of each node's value."""

    def __init__(self, gm: GraphModule) -> None:
        self.onnx = optional("onnx")
        self.gm = gm
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.names: dict[Node, Any] = {}
        self.count = 0

    def serialized(self) -> bytes:
        helper = self.onnx.helper
        inputs = self.gm.graph.find_nodes(op="placeholder")
        for number, node in enumerate(inputs):
            self.names[node] = f"in{number}"
        for node in self.gm.graph.nodes:
            if node.op == "call_function":
                self.translate(node)
            elif node.op == "get_attr":
                self.names[node] = self.tensor(getattr(self.gm, str(node.target)))
        (output,) = self.gm.graph.find_nodes(op="output")
        described = []
        for number, node in enumerate(output.args[0]):
            if not isinstance(node, Node):
                raise NotImplementedError("an output that is no tensor")
            self.nodes.append(helper.make_node("Identity", [self.names[node]], [f"out{number}"]))
            described.append(self.described(f"out{number}", node))
        given = [self.described(f"in{number}", node) for number, node in enumerate(inputs)]
        graph = helper.make_graph(self.nodes, "graph", given, described, initializer=self.constants)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        serialized: bytes = model.SerializeToString()
        return serialized

    def translate(self, node: Node) -> None:
        if isinstance(node.args[0], Node) and isinstance(self.names.get(node.args[0]), tuple):
            self.names[node] = self.names[node.args[0]][node.args[1]]
            return
        answer = translates(node)
        if answer is not True:
            raise NotImplementedError(str(answer))
        self.names[node] = _RULES[node.target](self, node)

    def described(self, name: str, node: Node) -> Any:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor) or value.dtype not in _TYPES:
            raise NotImplementedError(f"a value of {getattr(value, 'dtype', type(value).__name__)}")
        return self.onnx.helper.make_tensor_value_info(name, self.type_of(value.dtype), list(value.shape))

    def type_of(self, dtype: torch.dtype) -> int:
        number: int = getattr(self.onnx.TensorProto, _TYPES[dtype])
        return number

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """One ONNX node with one output, whose name is returned."""
        self.count += 1
        name = f"v{self.count}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, value: Any, dtype: torch.dtype) -> str:
        """A constant from Python numbers."""
        return self.tensor(torch.tensor(value, dtype=dtype))

    def tensor(self, value: torch.Tensor) -> str:
        """A constant from a tensor."""
        if value.dtype not in _TYPES or not kind_of(value).host:
            raise NotImplementedError(f"a constant of {value.dtype} on {value.device.type}")
        self.count += 1
        name = f"c{self.count}"
        self.constants.append(self.onnx.numpy_helper.from_array(value.detach().contiguous().numpy(), name))
        return name

    def value(self, operand: Any, dtype: torch.dtype) -> str:
        """An operand, a node or a number, as a value of ``dtype``."""
        if not isinstance(operand, Node):
            return self.constant(operand, dtype)
        name: str = self.names[operand]
        return name if operand.meta["val"].dtype == dtype else self.op("Cast", name, to=self.type_of(dtype))

    def reshaped(self, name: str, node: Node) -> str:
        """A value in the shape of ``node``."""
        shape = self.constant(list(node.meta["val"].shape), torch.int64)
        return self.op("Reshape", name, shape)

    def axes(self, dims: Any, rank: int) -> str:
        every = range(rank) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
        return self.constant([d % max(rank, 1) for d in every], torch.int64)


@_rule(*UNARY)
def _unary(m: _Model, node: Node) -> str:
    inner = torch.bool if UNARY[node.target] == "Not" else dtype_of(node)
    return m.op(UNARY[node.target], m.value(args_of(node)[0], inner))


@_rule(*BINARY)
def _binary(m: _Model, node: Node) -> str:
    kind = BINARY[node.target]
    inner = torch.bool if kind in ("And", "Or") else dtype_of(node)
    left, right = m.value(args_of(node)[0], inner), m.value(args_of(node)[1], inner)
    alpha = node.kwargs.get("alpha", 1)
    if alpha != 1:
        right = m.op("Mul", right, m.constant(alpha, inner))
    return m.op(kind, left, right)


_COMPARISONS = {
    "eq": "Equal",
    "ne": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
}


@_rule(*(getattr(getattr(aten, name), overload) for name in _COMPARISONS for overload in ("Tensor", "Scalar")))
def _comparison(m: _Model, node: Node) -> str:
    name = str(node.target).split(".")[1]
    operands: list[Any] = [n.meta["val"] if isinstance(n, Node) else n for n in args_of(node)[:2]]
    inner = torch.result_type(*operands)
    values = [m.value(args_of(node)[k], inner) for k in (0, 1)]
    found = m.op(_COMPARISONS[name], *values)
    if inner.is_floating_point:
        # OpenVINO 2026.4 on processors with AVX-512 finds NaN greater than, and equal to, some numbers.
        for operand, value in zip(operands, values, strict=True):
            if isinstance(operand, torch.Tensor) or operand != operand:
                found = m.op("And", found, m.op("Not", m.op("IsNaN", value)))
    return m.op("Not", found) if name == "ne" else found


@_rule(aten.rsub.Scalar, aten.rsub.Tensor)
def _reversed_sub(m: _Model, node: Node) -> str:
    dtype = dtype_of(node)
    subtracted = m.value(args_of(node)[0], dtype)
    alpha = argument(node, 2, "alpha", 1)
    if alpha != 1:
        subtracted = m.op("Mul", subtracted, m.constant(alpha, dtype))
    return m.op("Sub", m.value(args_of(node)[1], dtype), subtracted)


@_rule(aten.relu.default)
def _relu(m: _Model, node: Node) -> str:
    x = m.value(args_of(node)[0], dtype_of(node))
    zero = m.constant(0, dtype_of(node))
    return m.op("Where", m.op("LessOrEqual", x, zero), zero, x)  # keeps NaN, which runtimes' own may not


@_rule(aten.rsqrt.default)
def _rsqrt(m: _Model, node: Node) -> str:
    return m.op("Reciprocal", m.op("Sqrt", m.value(args_of(node)[0], dtype_of(node))))


@_rule(aten.silu.default)
def _silu(m: _Model, node: Node) -> str:
    x = m.value(args_of(node)[0], dtype_of(node))
    return m.op("Mul", x, m.op("Sigmoid", x))


@_rule(aten.gelu.default)
def _gelu(m: _Model, node: Node) -> str:
    dtype = dtype_of(node)
    x, half, one = m.value(args_of(node)[0], dtype), m.constant(0.5, dtype), m.constant(1, dtype)
    if node.kwargs.get("approximate", "none") == "tanh":
        cube = m.op("Mul", m.op("Mul", m.op("Mul", x, x), x), m.constant(0.044715, dtype))
        inner = m.op("Tanh", m.op("Mul", m.op("Add", x, cube), m.constant(math.sqrt(2 / math.pi), dtype)))
    else:
        inner = m.op("Erf", m.op("Mul", x, m.constant(math.sqrt(0.5), dtype)))
    return m.op("Mul", m.op("Mul", x, half), m.op("Add", inner, one))


@_rule(aten.where.self)
def _where(m: _Model, node: Node) -> str:
    condition, a, b = args_of(node)
    return m.op("Where", m.value(condition, torch.bool), m.value(a, dtype_of(node)), m.value(b, dtype_of(node)))


@_rule(aten._to_copy.default)
def _cast(m: _Model, node: Node) -> str:
    return m.value(args_of(node)[0], dtype_of(node))


@_rule(aten.mm.default, aten.bmm.default)
def _product(m: _Model, node: Node) -> str:
    return m.op("MatMul", m.names[args_of(node)[0]], m.names[args_of(node)[1]])


@_rule(aten.addmm.default)
def _addmm(m: _Model, node: Node) -> str:
    bias, a, b = (m.names[n] for n in args_of(node)[:3])
    product = m.op("MatMul", a, b)
    beta, alpha = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
    product = product if alpha == 1 else m.op("Mul", product, m.constant(alpha, dtype_of(node)))
    bias = bias if beta == 1 else m.op("Mul", bias, m.constant(beta, dtype_of(node)))
    return m.op("Add", product, bias)


@_rule(aten.t.default, aten.transpose.int, aten.permute.default)
def _permute(m: _Model, node: Node) -> str:
    rank = rank_of(node)
    order = list(range(rank))
    if node.target is aten.permute.default:
        order = [d % rank for d in args_of(node)[1]]
    elif rank > 1:
        a, b = (0, 1) if node.target is aten.t.default else (args_of(node)[1] % rank, args_of(node)[2] % rank)
        order[a], order[b] = order[b], order[a]
    return m.op("Transpose", m.names[args_of(node)[0]], perm=order)


@_rule(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
)
def _reshape(m: _Model, node: Node) -> str:
    return m.reshaped(m.names[args_of(node)[0]], node)


@_rule(aten.expand.default)
def _expand(m: _Model, node: Node) -> str:
    return m.op("Expand", m.names[args_of(node)[0]], m.constant(list(node.meta["val"].shape), torch.int64))


@_rule(aten.lift_fresh_copy.default)
def _constant(m: _Model, node: Node) -> str:
    return m.op("Identity", m.names[args_of(node)[0]])


@_rule(aten.full.default)
def _full(m: _Model, node: Node) -> str:
    value = m.constant(args_of(node)[1], dtype_of(node))
    return m.op("Expand", value, m.constant(list(node.meta["val"].shape), torch.int64))


@_rule(aten.cat.default)
def _concat(m: _Model, node: Node) -> str:
    parts: Any = args_of(node)[0]
    dim = argument(node, 1, "dim", 0) % rank_of(node)
    return m.op("Concat", *(m.value(part, dtype_of(node)) for part in parts), axis=dim)


@_rule(aten.slice.Tensor)
def _slice(m: _Model, node: Node) -> str:
    source: Any = args_of(node)[0]
    dim = argument(node, 1, "dim", 0) % rank_of(node)
    size = source.meta["val"].shape[dim]
    start, end, step = (argument(node, k, w) for k, w in ((2, "start"), (3, "end"), (4, "step")))
    bounds = (min(start or 0, size), size if end is None else min(end, size), 1 if step is None else step)
    starts, ends, steps = (m.constant([n], torch.int64) for n in bounds)
    return m.op("Slice", m.names[source], starts, ends, m.constant([dim], torch.int64), steps)


@_rule(aten.select.int)
def _select(m: _Model, node: Node) -> str:
    source, dim, index = args_of(node)[:3]
    return m.op("Gather", m.names[source], m.constant(index, torch.int64), axis=dim % rank_of(source))


_REDUCTIONS: dict[Any, str] = {
    aten.sum.default: "ReduceSum",
    aten.sum.dim_IntList: "ReduceSum",
    aten.mean.default: "ReduceMean",
    aten.mean.dim: "ReduceMean",
}


@_rule(*_REDUCTIONS)
def _reduce(m: _Model, node: Node) -> str:
    source: Any = args_of(node)[0]
    x = m.value(source, dtype_of(node))
    if rank_of(source) == 0:
        return m.op("Identity", x)
    overall = node.target in (aten.sum.default, aten.mean.default)
    dims = None if overall else args_of(node)[1]
    keep = not overall and bool(argument(node, 2, "keepdim", False))
    return m.op(_REDUCTIONS[node.target], x, m.axes(dims, rank_of(source)), keepdims=int(keep))


@_rule(aten._softmax.default, aten._log_softmax.default)
def _softmax(m: _Model, node: Node) -> str:
    rank = rank_of(node)
    x = m.value(args_of(node)[0], dtype_of(node))
    kind = "Softmax" if node.target is aten._softmax.default else "LogSoftmax"
    if rank == 0:
        return m.reshaped(m.op(kind, m.op("Reshape", x, m.constant([1], torch.int64))), node)
    return m.op(kind, x, axis=args_of(node)[1] % rank)


@_rule(aten.native_layer_norm.default)
def _layer_norm(m: _Model, node: Node) -> tuple[str, str, str]:
    source, shape, weight, bias, epsilon = args_of(node)[:5]
    value = node.meta["val"][0]
    axes = m.constant(list(range(value.dim() - len(shape), value.dim())), torch.int64)
    x = m.names[source]
    mean = m.op("ReduceMean", x, axes, keepdims=1)
    centred = m.op("Sub", x, mean)
    variance = m.op("ReduceMean", m.op("Mul", centred, centred), axes, keepdims=1)
    rstd = m.op("Reciprocal", m.op("Sqrt", m.op("Add", variance, m.constant(epsilon, value.dtype))))
    result = m.op("Mul", centred, rstd)
    if weight is not None:
        result = m.op("Mul", result, m.names[weight])
    if bias is not None:
        result = m.op("Add", result, m.names[bias])
    return result, mean, rstd


@_rule(aten.convolution.default)
def _convolution(m: _Model, node: Node) -> str:
    x, weight, bias, stride, padding, dilation, _, _, groups = args_of(node)
    operands = [m.names[n] for n in (x, weight, bias) if n is not None]
    pads: Any = padding
    return m.op("Conv", *operands, strides=stride, pads=[*pads, *pads], dilations=dilation, group=groups)
