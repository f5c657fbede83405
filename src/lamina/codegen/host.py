"""The host program of a region: one flat Python function that runs a Plan.

It unpacks the inputs, takes a workspace, launches kernels and calls libraries in order, frees what is used up and
returns the outputs. What can be decided before the call is decided here: addresses in the workspace are integers, and
tensors over it are made once for each workspace, as are the packed arguments of a kernel that touches nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lamina.base.text import SourceMap, Writer, literal, targets_text, tuple_text
from lamina.base.user_kernels import is_user_kernel
from lamina.codegen.host_example import example_block
from lamina.codegen.host_globals import Globals
from lamina.codegen.host_values import Names, Values
from lamina.errors import InvalidIR
from lamina.ir.access import origins, provenance, reads, views, writes
from lamina.ir.index import Expr, Size, as_expr
from lamina.ir.library import OUT_VARIANTS, QUICK_CALLS, is_custom
from lamina.ir.loops import Buffer, BufferView, Check, LibraryCall, SizeInput, storage_bytes
from lamina.ir.plan import Kernel, KernelCall, Plan, PlanStep

__all__ = ["MARK", "HostKernel", "HostProgram", "HostWriter", "emit_host"]

_RESERVED = (
    *("checkin", "checkout", "empty", "empty_large", "empty_small", "kernels", "reinterpret", "restride"),
    *("KEY", "args", "base", "call", "failed", "made", "prepare", "share_threads", "torch", "ws", "_"),
    *("user_kernel", "user_op", "wrong_result"),
)

MARK = re.compile(r"^k_|_[0-9a-f]{10}$")
"""What sets kernels of one name apart; a host program numbers them instead."""

_WITH_KERNELS_BESIDE = """\
from pathlib import Path

from lamina.runtime.kernel_files import load_kernels

kernels = load_kernels(Path(__file__).parent)
"""

_LARGE = 1 << 20
"""Bytes from which fresh memory is worth asking the runtime's pool of blocks for."""


@dataclass(frozen=True, slots=True)
class HostKernel:
    """A kernel that a host program launches: its name in the Plan, its parameters, whether it returns a code.

    ``parameters`` has a letter for each: ``p`` for the address of a buffer, ``q`` for a 64-bit size. A ``checked``
    kernel returns 0, or the 1-based number of the Check that failed.
    """

    name: str
    parameters: str
    checked: bool


@dataclass(frozen=True, slots=True)
class HostProgram:
    """Generated source that defines ``call(args: list) -> tuple``; ``args`` is emptied.

    Run ``text`` in a namespace where ``kernels`` maps each name in this program's ``kernels`` to an object with
    ``launch`` and ``pack``: ``launch(pack(address, ..., size, ...))`` runs the kernel.
    """

    name: str
    text: str
    kernels: tuple[HostKernel, ...]
    source_map: SourceMap
    plan: Plan

    def __str__(self) -> str:
        return self.text

    def files(self) -> dict[str, str]:
        """The program, running on random inputs with the kernels that lie beside it."""
        return {".py": self.standalone(_WITH_KERNELS_BESIDE)}

    def standalone(self, kernels: str, sizes: Mapping[str, int] | None = None) -> str:
        """The program with a main block that runs it on random inputs.

        ``kernels`` is the source text of an expression that gives the kernels, or of lines that assign them to
        ``kernels``. Sizes without a value are 8.
        """
        setup = kernels if "\n" in kernels or kernels.startswith("kernels =") else f"kernels = {kernels}"
        return f"{setup.rstrip()}\n{self.text}\n\n{example_block(self.plan, dict(sizes or {}))}"


def emit_host(plan: Plan) -> HostProgram:
    """The host program of a plan. Linear in its steps. Raises ``InvalidIR`` for a size that no input gives."""
    return HostWriter(plan).program()


class HostWriter:
    """The program under construction."""

    released: tuple[str, ...] = ("input", "library")
    """Places whose buffers are let go after their last use; the memory of others lives as long as the call."""

    def __init__(self, plan: Plan, reserved: tuple[str, ...] = _RESERVED, keeps_workspace: bool = True) -> None:
        self.plan = plan
        self.names = Names(reserved)
        self.values = Values(plan, self.names, keeps_workspace)
        self.sources = {s.node: s for s in plan.sources}
        self.kernel_names: dict[str, tuple[str, str]] = {}
        self.globals = Globals(self.names)
        self.packed: dict[str, str] = {}
        self.allocated: set[str] = set()
        self.allocators: set[str] = set()
        self.uses_workspace = self.requires = False
        self.body = Writer()
        for item in plan.inputs:
            if isinstance(item, str):
                self.values.local(item)
        self.last, self.laid_out = self._uses()

    def program(self) -> HostProgram:
        kernels = tuple(self._kernel(k) for k in self.plan.kernels)
        for at, step in enumerate(self.plan.steps):
            self._step(at, step)
        results = tuple_text([self._result(o) for o in self.plan.outputs])
        held, arena = self.held, self.values.size(self.plan.arena_bytes)
        self.uses_workspace = bool(self.values.uses_base or self.values.typed or held)
        if self.uses_workspace:
            # A workspace that is not given back because of an exception is simply freed.
            self.body.line("checkin(ws)")
        self.body.line(f"return {results}")
        call = Writer()
        with call.indent("def call(args):"):
            self._enter(call, held, arena)
            call.extend(self.body)
        out = Writer()
        self._header(out, held)
        if held:
            self._prepare(out, held)
        out.extend(call)
        return HostProgram(self.plan.name, out.text(), kernels, out.source_map(), self.plan)

    @property
    def held(self) -> dict[str, str]:
        """What is made once for each workspace: source text by variable."""
        values = self.values
        windows = {
            name: f"ws.tensor({values.arena_window(key)}, {self._dtype(key[0])})" for key, name in values.cached.items()
        }
        return windows | {name: text for text, name in self.packed.items()}

    # ---- around the steps -------------------------------------------------------------------------------------

    def _enter(self, out: Writer, held: Mapping[str, str], arena: str) -> None:
        """What comes before the steps: threads, inputs, and the workspace with what is held for it."""
        if self.plan.kernels:
            out.line("share_threads()")
        self._unpack(out)
        if not self.uses_workspace:
            return
        out.line(f"ws = checkout({arena})")
        if held:
            out.unpack(list(held), "ws.held.get(KEY) or prepare(ws)")
        if self.values.uses_base:
            out.line("base = ws.address")
        for dtype, name in self.values.typed.items():
            out.line(f"{name} = ws.typed({self.globals.variable(f'torch.{dtype}')})")

    def _header(self, out: Writer, held: Mapping[str, str]) -> None:
        plan = self.plan
        counts = f"kernel launches: {plan.kernel_count}, library calls: {plan.library_count}"
        out.line(f'"""Host program of region {plan.name}; {counts}."""')
        out.line()
        out.line("import torch")
        out.line()
        names = [name for name, used in self._imports(held) if used]
        if names:
            out.line(f"from lamina.runtime.host import {', '.join(names)}")
        self._import_user_calls(out)
        if names or self._user_calls():
            out.line()
        for name, (launch, pack) in self.kernel_names.items():
            out.line(f'{launch}, {pack} = kernels["{name}"].launch, kernels["{name}"].pack')
        self.globals.define(out)
        if held:
            out.line("KEY = object()")
        out.line()
        out.line()

    def _imports(self, held: Mapping[str, str]) -> tuple[tuple[str, bool], ...]:
        return (
            *((name, self.uses_workspace) for name in ("checkin", "checkout")),
            *((name, name in self.allocators) for name in ("empty", "empty_large", "empty_small")),
            ("reinterpret", self.values.reinterprets),
            ("restride", "restride" in self.allocators),
            ("share_threads", bool(self.plan.kernels)),
        )

    def _user_calls(self) -> list[str]:
        """What gives the program the user's kernels and operations it calls."""
        names = [name for name in ("user_kernel", "user_op") if self.globals.calls(name)]
        return [*names, "wrong_result"] if self.requires else names

    def _import_user_calls(self, out: Writer) -> None:
        if names := self._user_calls():
            out.line(f"from lamina.runtime.user_ops import {', '.join(names)}")

    def _prepare(self, out: Writer, held: Mapping[str, str]) -> None:
        """The function that fills a workspace's cache for this program."""
        with out.indent("def prepare(ws):"):
            out.line('"""Tensors over the workspace for library calls, packed arguments for kernels; made once."""')
            if self.packed:
                out.line("base = ws.address")
            with out.indent("made = ws.held[KEY] = (", ")"):
                for name, text in held.items():
                    out.line(f"{text},  # {name}")
            out.line("return made")
        out.line()
        out.line()

    def _unpack(self, out: Writer) -> None:
        """Inputs to locals; sizes that are no input of their own from the shapes of tensors."""
        targets: list[str] = []
        bound: set[str] = set()
        for item in self.plan.inputs:
            if isinstance(item, str):
                targets.append(self.values.local(item))
            elif isinstance(item, SizeInput) and (name := _symbol(item.expr)) and name not in bound:
                bound.add(name)
                targets.append(self.values.size_name(name))
            else:
                targets.append("_")
        if targets:
            out.unpack(targets, "args")
        out.line("args.clear()")
        for name in sorted(self.values.used_sizes - bound):
            out.line(f"{self.values.size_name(name)} = {self._size_from_shape(name)}")
        unused = [self.values.local(n) for n in self.plan.inputs if isinstance(n, str) and n not in self.last]
        if unused:
            out.line(f"del {', '.join(unused)}")

    def _size_from_shape(self, name: str) -> str:
        given = [self.values.buffers[item] for item in self.plan.inputs if isinstance(item, str)]
        # Shapes first: the step along a dimension of one element may be any number.
        places = [("size", b.name, dim, expr) for b in given for dim, expr in enumerate(b.shape)]
        places += [("stride", b.name, dim, expr) for b in given for dim, expr in enumerate(b.strides)]
        for method, item, dim, expr in places:
            if _symbol(expr) == name:
                self.last.setdefault(item, -1)
                return f"{self.values.local(item)}.{method}({dim})"
        raise InvalidIR(f"no input of region {self.plan.name} gives the size {name}")

    def _result(self, out: BufferView | Expr | None) -> str:
        if out is None:
            return "None"
        if isinstance(out, Expr):
            return self.values.size(out)
        if self.values.places[out.buffer].where == "output":
            self._allocate(out.buffer)
        return self.values.tensor(out, self.body.line)

    # ---- steps ------------------------------------------------------------------------------------------------

    def _step(self, at: int, step: PlanStep) -> None:
        origin = origins(step)
        for name in sorted(writes(step) | reads(step)):
            if self.values.places[name].where == "output":
                self._allocate(name)
        comment = provenance(origin, self.sources)
        if comment:
            self.body.line(f"# {comment}", origin)
        if isinstance(step, KernelCall):
            self._launch(step, origin)
        else:
            self._library(at, step, origin)
        gone = [
            variable
            for name in sorted(reads(step) | writes(step))
            if self.last.get(name) == at and self.values.places[name].where in self.released
            for variable in (self.values.local(name), *self.values.bound(name))
        ]
        if gone:
            self.body.line(f"del {', '.join(gone)}")

    def _launch(self, step: KernelCall, origin: tuple[str, ...]) -> None:
        values = self.values
        launch, pack = self.kernel_names[step.kernel]
        constant = all(e.is_int for e in step.sizes) and all(values.fixed(b) for b in step.buffers)
        parts = [values.address(b, self._emit, held=constant) for b in step.buffers]
        text = f"{pack}({', '.join([*parts, *(values.size(e) for e in step.sizes)])})"
        if constant:
            if text not in self.packed:
                self.packed[text] = self.names.fresh(f"{launch}_args")
            text = self.packed[text]
        read = reads(step)
        what = f"  # {', '.join(b for b in step.buffers if b in read)} -> {', '.join(step.writes)}"
        raised = [f"{e.error}({literal(e.message)})" for nest in step.nests for e in nest.body if isinstance(e, Check)]
        if not raised:
            self.body.line(f"{launch}({text}){what}", origin)
            return
        with self.body.indent(f"if failed := {launch}({text}):{what}"):
            self.body.line(f"raise {tuple_text(raised)}[failed - 1]", origin)

    def _library(self, at: int, step: LibraryCall, origin: tuple[str, ...]) -> None:
        values = self.values
        arguments = [values.argument(a, self._emit) for a in step.args]
        arguments += [f"{key}={values.argument(a, self._emit)}" for key, a in step.kwargs]
        outs = [out for out in step.outs if out is not None]
        if outs and values.places[outs[0]].where != "library":
            buffer = values.buffers[outs[0]]
            whole = BufferView(buffer.name, buffer.shape, buffer.strides, as_expr(0))
            arguments.append(f"out={values.tensor(whole, self._emit)}")
            self.body.line(f"{self.globals.variable(self._writer(step))}({', '.join(arguments)})", origin)
            return
        call = f"{self.globals.variable(self._callee(step))}({', '.join(arguments)})"
        names = [values.local(out) if out is not None else "_" for out in step.outs]
        if not outs:
            self.body.line(call, origin)
        elif len(names) > 1 or step.list_result:
            self.body.line(f"{targets_text(names)} = {call}", origin)
        else:
            self.body.line(f"{names[0]} = {call}", origin)
        for out in outs:
            if is_custom(step.op):
                self._require(step.op, out, origin)
            if out in self.laid_out:
                self._restride(out, origin)

    def _require(self, op: str, out: str, origin: tuple[str, ...]) -> None:
        """The memory of a user's result is read as its fake implementation says: hold it to that."""
        name, buffer = self.values.local(out), self.values.buffers[out]
        shape, dtype = self.values.dims(buffer.shape), self._dtype(out)
        with self.body.indent(f"if {name}.shape != {shape} or {name}.dtype is not {dtype}:"):
            self.body.line(f'raise wrong_result("{op}", {name}, {shape}, {dtype})', origin)
        self.requires = True

    def _writer(self, step: LibraryCall) -> str:
        """Source text for what writes a library call's result into planned memory."""
        return OUT_VARIANTS[step.op]

    def _callee(self, step: LibraryCall) -> str:
        """Source text for what a library call calls."""
        if is_user_kernel(step.op):
            return f'user_kernel("{step.op}")'
        if is_custom(step.op):
            device = "cuda" if any(self.values.buffers[v.buffer].device != "cpu" for v in views(step)) else "cpu"
            return f'user_op("{step.op}", "{device}")'
        return QUICK_CALLS.get(step.op, f"torch.ops.{step.op}")

    def _restride(self, out: str, origin: tuple[str, ...]) -> None:
        """Kernels address a library's result by the strides it was planned with: hold it to them."""
        buffer, name = self.values.buffers[out], self.values.local(out)
        strides = self.values.dims(buffer.strides)
        with self.body.indent(f"if {name}.stride() != {strides}:"):
            self.body.line(f"{name} = restride({name}, {self.values.dims(buffer.shape)}, {strides})", origin)
        self.allocators.add("restride")

    # ---- pieces -----------------------------------------------------------------------------------------------

    def _emit(self, line: str) -> None:
        self.body.line(line)

    def _allocate(self, name: str) -> None:
        if name in self.allocated:
            return
        self.allocated.add(name)
        self.body.line(f"{self.values.local(name)} = {self._empty(self.values.buffers[name])}")

    def _empty(self, buffer: Buffer) -> str:
        """Source text for fresh memory that outlives the call."""
        values, nbytes = self.values, storage_bytes(buffer)
        name = "empty" if not nbytes.is_int else "empty_small" if nbytes.const < _LARGE else "empty_large"
        self.allocators.add(name)
        size = f", {nbytes.const}" if name == "empty_large" else ""
        dtype = self._dtype(buffer.name)
        return f"{name}({values.dims(buffer.shape)}, {values.dims(buffer.strides)}, {dtype}{size})"

    def _dtype(self, buffer: str) -> str:
        return self.globals.variable(f"torch.{self.values.buffers[buffer].dtype}")

    def _kernel(self, kernel: Kernel) -> HostKernel:
        launch = self.names.fresh(f"k_{MARK.sub('', kernel.name)}")
        self.kernel_names[kernel.name] = (launch, self.names.fresh(f"{launch}_pack"))
        checked = any(isinstance(e, Check) for nest in kernel.nests for e in nest.body)
        return HostKernel(kernel.name, "p" * len(kernel.dtypes) + "q" * len(kernel.sizes), checked)

    def _uses(self) -> tuple[dict[str, int], set[str]]:
        """Last step that touches each buffer (past the end for outputs), and the buffers whose strides matter."""
        last: dict[str, int] = {}
        laid_out: set[str] = set()
        for at, step in enumerate(self.plan.steps):
            last.update(dict.fromkeys(reads(step) | writes(step), at))
            if isinstance(step, KernelCall):
                laid_out.update(step.buffers)
            else:
                # What the user wrote may rest on strides; ATen takes any.
                exact = is_user_kernel(step.op) or is_custom(step.op)
                laid_out.update(v.buffer for v in views(step) if exact or not self.values.whole(v))
        returned = {o.buffer for o in self.plan.outputs if isinstance(o, BufferView)}
        last.update(dict.fromkeys(returned, len(self.plan.steps)))
        return last, laid_out | returned


def _symbol(expr: Expr) -> str | None:
    """The name of a plain size symbol."""
    if len(expr.terms) == 1 and not expr.const:
        (mono, factor) = expr.terms[0]
        if factor == 1 and len(mono) == 1 and isinstance(mono[0], Size):
            return mono[0].name
    return None
