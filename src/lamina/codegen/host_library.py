"""Library calls in host programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lamina.base.text import Writer, targets_text
from lamina.base.user_kernels import is_user_kernel
from lamina.codegen.host_globals import Globals
from lamina.codegen.host_uses import Uses
from lamina.codegen.host_values import Values
from lamina.ir.access import views
from lamina.ir.index import as_expr
from lamina.ir.library import OUT_VARIANTS, QUICK_CALLS, is_custom
from lamina.ir.loops import BufferView, LibraryCall

__all__ = ["AtenFunctions", "Functions", "LibraryCalls"]


class Functions(Protocol):
    """Source texts for the functions that library calls call."""

    def called(self, step: LibraryCall) -> str:
        """For what gives the results of a call."""

    def writing(self, step: LibraryCall) -> str:
        """For what writes the result of a call into planned memory."""


@dataclass(frozen=True, slots=True)
class AtenFunctions:
    """ATen's functions, and the user's."""

    values: Values

    def called(self, step: LibraryCall) -> str:
        """For what gives the results of a call."""
        if is_user_kernel(step.op):
            return f'user_kernel("{step.op}")'
        if is_custom(step.op):
            device = "cuda" if any(not self.values.buffers[v.buffer].on_cpu for v in views(step)) else "cpu"
            return f'user_op("{step.op}", "{device}")'
        return QUICK_CALLS.get(step.op, f"torch.ops.{step.op}")

    def writing(self, step: LibraryCall) -> str:
        """For what writes the result of a call into planned memory."""
        return OUT_VARIANTS[step.op]


@dataclass(frozen=True, slots=True)
class LibraryCalls:
    """Writes library calls into ``body``, and names in ``imports`` what they need of the runtime."""

    values: Values
    globals: Globals
    functions: Functions
    uses: Uses
    body: Writer
    imports: set[str]

    def write(self, step: LibraryCall, origin: tuple[str, ...]) -> None:
        """Write a call, and what holds its results to the plan."""
        values, body = self.values, self.body
        arguments = [values.argument(a, body.line) for a in step.args]
        arguments += [f"{key}={values.argument(a, body.line)}" for key, a in step.kwargs]
        outs = [out for out in step.outs if out is not None]
        if outs and values.places[outs[0]].where != "library":
            buffer = values.buffers[outs[0]]
            whole = BufferView(buffer.name, buffer.shape, buffer.strides, as_expr(0))
            arguments.append(f"out={values.tensor(whole, body.line)}")
            body.line(f"{self.globals.variable(self.functions.writing(step))}({', '.join(arguments)})", origin)
            return
        call = f"{self.globals.variable(self.functions.called(step))}({', '.join(arguments)})"
        names = [values.local(out) if out is not None else "_" for out in step.outs]
        if not outs:
            body.line(call, origin)
        elif len(names) > 1 or step.list_result:
            body.line(f"{targets_text(names)} = {call}", origin)
        else:
            body.line(f"{names[0]} = {call}", origin)
        for out in outs:
            if is_custom(step.op):
                self._require(step.op, out, origin)
            if out in self.uses.laid_out:
                self._restride(out, origin)

    def _require(self, op: str, out: str, origin: tuple[str, ...]) -> None:
        """The memory of a user's result is read as its fake implementation says: hold it to that."""
        name, buffer = self.values.local(out), self.values.buffers[out]
        shape, dtype = self.values.dims(buffer.shape), self.globals.dtype(buffer.dtype)
        with self.body.indent(f"if {name}.shape != {shape} or {name}.dtype is not {dtype}:"):
            self.body.line(f'raise wrong_result("{op}", {name}, {shape}, {dtype})', origin)
        self.imports.add("wrong_result")

    def _restride(self, out: str, origin: tuple[str, ...]) -> None:
        """Kernels address a library's result by the strides it was planned with: hold it to them."""
        buffer, name = self.values.buffers[out], self.values.local(out)
        strides = self.values.dims(buffer.strides)
        with self.body.indent(f"if {name}.stride() != {strides}:"):
            self.body.line(f"{name} = restride({name}, {self.values.dims(buffer.shape)}, {strides})", origin)
        self.imports.add("restride")

    def user_imports(self) -> list[str]:
        """What gives the program the user's kernels and operations it calls."""
        names = [name for name in ("user_kernel", "user_op") if self.globals.calls(name)]
        return [*names, "wrong_result"] if "wrong_result" in self.imports else names
