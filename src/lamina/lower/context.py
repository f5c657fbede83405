"""What a lowering rule works with: buffers, nests and the helpers most rules are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.fx import Node

from lamina.base.devices import kind_of
from lamina.base.dtypes import DTYPES, dtype_of
from lamina.base.machine_target import target_of
from lamina.base.target import BYTE_FLOATS
from lamina.ir.index import Expr, as_expr
from lamina.ir.loops import Buffer, BufferView, Check, LibraryCall, Source, Step, Store
from lamina.lower.builder import NestBuilder, Scalar, Value, opmath
from lamina.lower.rules import CannotLower, Decline
from lamina.lower.sizes import SizeFloat, expr_of, stride_of
from lamina.lower.values import TensorValue, is_dense, linear_view, whole

__all__ = ["Lowering", "Operand"]

Operand: TypeAlias = TensorValue | Expr | SizeFloat | Scalar


class Lowering:
    """The program under construction, and the services rules call on it."""

    def __init__(self, region: str, numerics: str = "fast") -> None:
        self.region, self.numerics = region, numerics
        self.buffers: dict[str, Buffer] = {}
        self.steps: list[Step] = []
        self.sources: list[Source] = []
        self._names: dict[str, int] = {}

    # ---- buffers ----------------------------------------------------------------------------------------------

    def unique(self, hint: str) -> str:
        """A name not used yet in this program."""
        count = self._names.get(hint, 0)
        name = hint if count == 0 else f"{hint}_{count}"
        while count and name in self._names:
            count += 1
            name = f"{hint}_{count}"
        self._names[hint] = count + 1
        self._names.setdefault(name, 1)
        return name

    def buffer(
        self,
        hint: str,
        dtype: str,
        shape: Sequence[Expr | int],
        strides: Sequence[Expr | int] | None = None,
        device: str = "cpu",
        kind: str = "temp",
    ) -> TensorValue:
        """A new buffer (contiguous unless strides are given) and the tensor that is all of it."""
        dims = tuple(as_expr(n) for n in shape)
        if strides is None:
            steps: list[Expr] = []
            running = as_expr(1)
            for n in reversed(dims):
                steps.append(running)
                running = running * n
            strides = steps[::-1]
        made = Buffer(self.unique(hint), dtype, dims, tuple(as_expr(s) for s in strides), device, kind)
        self.buffers[made.name] = made
        return whole(made)

    def like(self, hint: str, val: torch.Tensor) -> TensorValue:
        """A new buffer with the dtype, shape and (if dense) strides of a fake tensor."""
        shape = [expr_of(n) for n in val.shape]
        strides = [stride_of(s) for s in val.stride()]
        if not is_dense(shape, strides):
            return self.buffer(hint, dtype_of(val.dtype), shape, device=str(val.device))
        return self.buffer(hint, dtype_of(val.dtype), shape, strides, str(val.device))

    def on_gpu(self, value: TensorValue) -> bool:
        """Whether a tensor is elsewhere than in a CPU's memory."""
        return not self.buffers[value.buffer].on_cpu

    def result(self, node: Node, position: int | None = None) -> TensorValue:
        """A new buffer for the node's result (for its ``position``-th result)."""
        val = node.meta["val"]
        return self.like(node.name, val if position is None else val[position])

    # ---- nests ------------------------------------------------------------------------------------------------

    def nest(self, node: Node, shape: Sequence[Expr]) -> NestBuilder:
        """Start a nest over ``shape`` for this node; ``finish`` adds it to the program."""
        return NestBuilder(self.unique(f"n_{node.name}"), shape, (node.name,))

    def finish(self, builder: NestBuilder) -> None:
        """Append the finished nest, unless all it does is write tensors without elements."""
        nest = builder.nest()
        writes = [self.buffers[e.buffer] for e in nest.body if isinstance(e, Store)]
        if any(isinstance(e, Check) for e in nest.body) or any(0 not in b.shape for b in writes):
            self.steps.append(nest)

    def operand(self, b: NestBuilder, value: Operand, dtype: str, result: str = "") -> Value:
        """An operand read at the nest's own position and converted to ``dtype``, in which a ``result`` is computed.

        Integers beyond float16 are infinite if that is the result's dtype, as in eager, which converts them to it.
        """
        if isinstance(value, TensorValue):
            beyond = result == "float16" and dtype == "float32" and DTYPES[value.dtype].kind in ("int", "uint")
            return (b.load(value).to(result) if beyond else b.load(value)).to(dtype)
        if isinstance(value, Expr):
            return b.index(value).to(dtype) if value.terms else b.constant(value.const, dtype)
        if isinstance(value, SizeFloat):
            first, *rest = (self.operand(b, v, "float64") for v in value.operands)
            return (first if value.op == "value" else first.op(value.op, *rest)).to(dtype)
        if isinstance(value, torch.SymFloat | torch.SymBool | complex):
            raise Decline("symbolic float")
        return b.constant(value, dtype)

    def pointwise(
        self, node: Node, function: Callable[..., Value], *inputs: Operand, dtype: str | None = None
    ) -> TensorValue:
        """One output element from one element of each (broadcast) input.

        ``function`` gets values of ``dtype``: by default the arithmetic type of the node's result. Its result
        is converted to the node's dtype.
        """
        return self.into(node, self.result(node), function, *inputs, dtype=dtype)

    def into(
        self,
        node: Node,
        out: TensorValue,
        function: Callable[..., Value],
        *inputs: Operand,
        dtype: str | None = None,
        bytes_too: bool = False,
    ) -> TensorValue:
        """As ``pointwise``, with the result written to ``out``, which is returned.

        ``bytes_too``: floats of 8 bits are allowed, where kernels convert them.
        """
        kinds = (out.dtype, *(v.dtype for v in inputs if isinstance(v, TensorValue)))
        if not (bytes_too and self.converts_bytes(out, kinds)):
            self.plain(*kinds)
        b = self.nest(node, out.shape)
        kin = opmath(out.dtype) if dtype is None else dtype
        b.store(out, function(*(self.operand(b, v, kin, out.dtype) for v in inputs)))
        self.finish(b)
        return out

    def plain(self, *dtypes: str) -> None:
        """Decline unless every dtype is one that kernels compute with."""
        for name in dtypes:
            if DTYPES[name].kind == "complex" or name.startswith("float8"):
                raise Decline(f"{name} is left to the library")

    def require_fit(self, dtype: str, *values: Operand) -> None:
        """Decline a run-time integer, unless a size, for a narrow integer type: eager raises where it does not fit."""
        if DTYPES[dtype].kind in ("int", "uint") and dtype != "int64":
            for value in values:
                if isinstance(value, Expr) and value.terms and not value.nonnegative():
                    raise Decline(f"an integer that may not be a number of {dtype}")

    def converts_bytes(self, value: TensorValue, dtypes: Sequence[str]) -> bool:
        """Whether kernels on the value's device convert what of ``dtypes`` is a float of 8 bits (GPUs: from sm_89)."""
        device = torch.device(self.buffers[value.buffer].device)
        if any(name.startswith("float8") and name not in ("float8_e4m3fn", "float8_e5m2") for name in dtypes):
            return False
        kind = kind_of(device)
        if not kind.queued:
            return kind.host
        return not torch.cuda.is_available() or target_of(device).has(BYTE_FLOATS)

    def promoted(self, *values: Any) -> str:
        """The dtype torch promotes these FX arguments (nodes or numbers) to, before any opmath."""
        fakes = [v.meta["val"] if isinstance(v, Node) else v for v in values]
        result = fakes[0]
        if len(fakes) == 1:
            return dtype_of(result.dtype)
        kin = torch.result_type(fakes[0], fakes[1])
        for fake in fakes[2:]:
            kin = torch.promote_types(kin, fake.dtype) if isinstance(fake, torch.Tensor) else kin
        return dtype_of(kin)

    # ---- library calls ----------------------------------------------------------------------------------------

    def strided(self, node: Node, value: TensorValue, val: Any = None) -> BufferView:
        """The value as a strided window; copied into a new buffer first when its addresses are not linear.

        The buffer is contiguous, or has the strides of the fake tensor ``val``.
        """
        found = linear_view(value)
        if found is None:
            strides = [stride_of(s) for s in val.stride()] if isinstance(val, torch.Tensor) else None
            found = linear_view(self.copy(node, value, strides))
            assert found is not None
        return found

    def copy(self, node: Node, value: TensorValue, strides: Sequence[Expr] | None = None) -> TensorValue:
        """The value in a new buffer, contiguous unless strides are given."""
        if DTYPES[value.dtype].kind == "complex" or value.dtype.startswith("float8"):
            raise CannotLower(f"a {value.dtype} tensor whose elements are not evenly spaced")
        if strides is not None and not is_dense(value.shape, strides):
            raise CannotLower("an output with gaps in its memory whose elements are not evenly spaced")
        device = self.buffers[value.buffer].device
        out = self.buffer(f"{node.name}_copy", value.dtype, value.shape, strides, device)
        b = self.nest(node, out.shape)
        b.store(out, b.load(value))
        self.finish(b)
        return out

    def library(
        self,
        node: Node,
        op: str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        outs: Sequence[TensorValue | None],
        reason: str,
        list_result: bool = False,
        mutates: Sequence[str] = (),
    ) -> None:
        """Append a call of ``op``, which writes to the buffers ``mutates``; tensor arguments become strided windows."""
        self.steps.append(
            LibraryCall(
                self.unique(f"l_{node.name}"),
                op,
                tuple(self._argument(node, a) for a in args),
                tuple((k, self._argument(node, v)) for k, v in kwargs.items()),
                tuple(o.buffer if o is not None else None for o in outs),
                tuple(mutates),
                reason,
                origin=(node.name,),
                list_result=list_result,
            )
        )

    def _argument(self, node: Node, value: Any) -> Any:
        if isinstance(value, SizeFloat):
            raise CannotLower(f"{node.target} takes a float that is known only at run time")
        if isinstance(value, TensorValue):
            return self.strided(node, value)
        if isinstance(value, list | tuple):
            return tuple(self._argument(node, v) for v in value)
        return value
