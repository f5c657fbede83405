"""The host program of a region on a GPU: one flat Python function that allocates, launches and calls libraries.

Everything is queued on the stream that is current when it is called, and nothing waits for the GPU. Large temporaries
are allocated and freed one by one, small ones share a workspace for the call; both are memory of torch's caching
allocator. Kernels are compiled for addresses that are multiples of 16; a call with an input where that does not hold
takes the same program over kernels compiled without that knowledge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lamina.base.dtypes import DTYPES
from lamina.base.text import SourceMap, Writer, tuple_text
from lamina.codegen.host import MARK, HostWriter
from lamina.codegen.host_scratch import Scratch, bound
from lamina.codegen.reuse import taken_over
from lamina.codegen.triton.source import TritonSource
from lamina.ir.access import reads, views
from lamina.ir.index import Expr, as_expr
from lamina.ir.library import may_alias
from lamina.ir.loops import Buffer, BufferView, Check, LibraryCall, storage_bytes
from lamina.ir.plan import KernelCall, Plan
from lamina.library_algorithms.product_operations import CHOSEN
from lamina.masked_rows.operations import WRITING

__all__ = ["CudaHost", "CudaLaunch", "emit_cuda_host"]

_RESERVED = (
    *(
        "args",
        "call",
        "current_device",
        "current_stream",
        "elsewhere",
        "empty",
        "empty_cpu",
        "failed",
        "failed_address",
    ),
    *(
        "base",
        "code",
        "failed_address",
        "interpreted",
        "kernels",
        "launch_failed",
        "only_owner",
        "references",
        "reinterpret",
        "restride",
        "stream",
        "torch",
    ),
    *("user_kernel", "user_op", "wrong_result"),
    *("unaligned", "workspace", "zeroed", "zeros", "_"),
)
_ZERO, _ONE = as_expr(0), as_expr(1)
_ALIGNMENT = 16
"""Bytes to which addresses are aligned for 16-byte accesses: kernels built for aligned inputs fail on others."""
_WORTH_ASKING = 1 << 20
"""Bytes from which it is worth asking whether an input's memory may be taken over."""


@dataclass(frozen=True, slots=True)
class CudaLaunch:
    """A compiled variant of a kernel that a host program launches: its key in ``kernels``, the kernel's name in the
    Plan, its source, and the positions of the parameters that are multiples of 16 in each of its launches.
    """

    key: str
    kernel: str
    source: TritonSource
    aligned: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CudaHost:
    """Generated source that defines ``call(args: list) -> tuple``; ``args`` is emptied.

    Run ``text`` in a namespace with ``kernels``, which maps the key of each of ``launches`` to an object with
    ``launch``; ``interpreted``, which maps the names of kernels without machine code to functions of flat
    tensors and sizes; ``failed``, the ``Flags`` of the launches with checks (``messages`` of each: the exception's
    name and text); and ``unaligned``, the program to run instead when an input does not begin at a multiple of 16.
    """

    name: str
    text: str
    launches: tuple[CudaLaunch, ...]
    messages: tuple[tuple[tuple[str, str], ...], ...]
    source_map: SourceMap
    plan: Plan

    def __str__(self) -> str:
        return self.text

    def files(self) -> dict[str, str]:
        """The program's text, which needs its kernels loaded to run."""
        return {".py": self.text}


def emit_cuda_host(
    plan: Plan,
    sources: Mapping[str, TritonSource],
    device: int,
    interpreted: frozenset[str] = frozenset(),
    aligned: bool = True,
    donated: frozenset[str] = frozenset(),
) -> CudaHost:
    """The host program of a plan for GPU number ``device``.

    ``sources`` has each kernel's Triton source, but for those in ``interpreted``, which are evaluated equation by
    equation. With ``aligned`` false nothing is assumed of addresses that are not known now. A result may take over the
    memory of an input in ``donated`` if the program finds that nobody else holds it. Raises ``InvalidIR`` for a size
    that no input gives.
    """
    return _CudaWriter(plan, sources, device, interpreted, aligned, donated).cuda_program()


class _CudaWriter(HostWriter):
    """The program under construction."""

    released = ("input", "library", "output")

    def __init__(
        self,
        plan: Plan,
        sources: Mapping[str, TritonSource],
        device: int,
        interpreted: frozenset[str],
        aligned: bool,
        donated: frozenset[str],
    ) -> None:
        super().__init__(plan, _RESERVED, keeps_workspace=False)
        self.sources_of, self.device, self.aligned = sources, device, aligned
        self.interpreted = interpreted
        self.launches: dict[tuple[str, tuple[int, ...]], CudaLaunch] = {}
        self.variables: dict[str, str] = {}
        self.messages: list[tuple[tuple[str, str], ...]] = []
        self.checked_inputs: dict[str, str] = {}
        self.copied: dict[str, str] = {}
        self.scratch = Scratch(self.values, self.globals, device)
        self.fresh = {
            out
            for step in plan.steps
            if isinstance(step, LibraryCall) and not may_alias(step.op)
            for out in step.outs
            if out is not None
        }
        returned = {o.buffer for o in plan.outputs if isinstance(o, BufferView)}
        own = {
            p.buffer for p in plan.places if p.where == "output" or (p.where == "library" and p.buffer in self.fresh)
        }
        sizes = {b.name: storage_bytes(b) for b in plan.buffers if b.name in donated}
        self.donated = {name for name, size in sizes.items() if size.is_int and size.const >= _WORTH_ASKING}
        own |= self.donated
        # Only what is allocated here can be given the memory of something else.
        self.taken_over = {
            new: old
            for new, old in taken_over(plan, own, self.last).items()
            if self.values.places[new].where == "output" and old not in returned
        }

    def cuda_program(self) -> CudaHost:
        for at, step in enumerate(self.plan.steps):
            self._step(at, step)
        self.body.line(f"return {tuple_text([self._result(o) for o in self.plan.outputs])}")
        call = Writer()
        with call.indent("def call(args):"):
            self._enter_call(call)
            call.extend(self.body)
        out = Writer()
        self._head(out)
        out.extend(call)
        launches, messages = tuple(self.launches.values()), tuple(self.messages)
        return CudaHost(self.plan.name, out.text(), launches, messages, out.source_map(), self.plan)

    # ---- around the steps -------------------------------------------------------------------------------------

    def _enter_call(self, out: Writer) -> None:
        with out.indent(f"if current_device() != {self.device}:"):
            out.line(f"return elsewhere({self.device}, call, args)")
        if self.messages:
            with out.indent(f"if {' or '.join(f'{name}.value' for name in self._cells())}:"):
                out.line("failed.report()")
        unpacking = Writer()
        self._unpack(unpacking)
        lines = unpacking.text().splitlines()
        cleared = lines.index("args.clear()")
        for line in lines[:cleared]:
            out.line(line)
        if self.checked_inputs:
            names = list(self.checked_inputs)
            for name in names:
                out.line(f"{self.checked_inputs[name]} = {self.values.local(name)}.data_ptr()")
            with out.indent(f"if ({' | '.join(self.checked_inputs.values())}) & {_ALIGNMENT - 1}:"):
                out.line("return unaligned(args)")
        for line in lines[cleared:]:
            out.line(line)
        if self.plan.steps and isinstance(self.plan.steps[0], LibraryCall):
            out.line("enter_context()")
        out.line(f"stream = current_stream({self.device})")
        if self._has_workspace():
            nbytes = self.values.size(self.plan.arena_bytes + self.scratch.nbytes)
            out.line(f"workspace = empty(({nbytes},), (1,), {self.globals.variable('torch.uint8')})")
            if self.values.uses_base:
                out.line("base = workspace.data_ptr()")
            for dtype, name in self.values.typed.items():
                out.line(f"{name} = workspace.view({self.globals.variable(f'torch.{dtype}')})")

    def _has_workspace(self) -> bool:
        return bool(self.values.uses_base or self.values.typed)

    def _cells(self) -> list[str]:
        return [f"failed_{k}" for k in range(len(self.messages))]

    def _head(self, out: Writer) -> None:
        plan = self.plan
        counts = f"kernel launches: {plan.kernel_count}, library calls: {plan.library_count}"
        out.line(f'"""Host program of region {plan.name} on GPU {self.device}; {counts}."""')
        out.line()
        out.line("import torch")
        out.line()
        text = self.body.text()
        wanted = ("empty", "launch_failed", "only_owner", "references", "zeroed")
        used = ["current_device", "current_stream", "elsewhere", *(n for n in wanted if f"{n}(" in text)]
        if plan.steps and isinstance(plan.steps[0], LibraryCall):
            used.append("enter_context")
        if "empty" not in used and self._has_workspace():
            used.append("empty")
        if self.values.reinterprets:
            used.append("reinterpret")
        out.line(f"from lamina.runtime.cuda_host import {', '.join(sorted(used))}")
        others = [name for name in ("empty as empty_cpu", "restride") if name.split()[0] in self.allocators]
        if others:
            out.line(f"from lamina.runtime.host import {', '.join(others)}")
        self._import_user_calls(out)
        if self.globals.calls("library_product"):
            out.line("from lamina.library_algorithms.cublas_products import library_product")
        if self.globals.calls("masked_rows"):
            out.line("from lamina.masked_rows.kernels import masked_rows")
        out.line()
        for launch in self.launches.values():
            out.line(f'{self.variables[launch.key]} = kernels["{launch.key}"].launch')
        if self.messages:
            out.line(f"{tuple_text(self._cells())} = failed.cells")
            out.line("failed_address = failed.address")
        self.globals.define(out)
        out.line()
        out.line()

    def _callee(self, step: LibraryCall) -> str:
        """Source text for what a library call calls; past the dispatcher where the function is Lamina's own."""
        if step.op in WRITING and all(self.values.buffers[v.buffer].device != "cpu" for v in views(step)):
            return f'masked_rows("{step.op}")'
        return super()._callee(step)

    def _writer(self, step: LibraryCall) -> str:
        """Source text for what writes a library call's result; likewise."""
        return f'library_product("{step.op}", "{step.name}")' if step.op in CHOSEN.values() else super()._writer(step)

    # ---- launches ---------------------------------------------------------------------------------------------

    def _launch(self, step: KernelCall, origin: tuple[str, ...]) -> None:
        if step.kernel in self.interpreted or not self._runs_on_gpu(step):
            self._interpret(step, origin)
            return
        source = self.sources_of[step.kernel]
        constants = {f"s{k}": size for k, size in enumerate(step.sizes)}
        scratch, released = self.scratch.addresses(source, constants, self.body)
        words: list[str] = []
        assumed: list[int] = []
        for position, parameter in enumerate(source.parameters):
            wanted = parameter in source.aligned
            multiple = True
            if parameter == "failed":
                words.append(self._flag(step))
            elif parameter[0] == "b":
                buffer = step.buffers[int(parameter[1:])]
                words.append(self._buffer(buffer, wanted))
                multiple = self._is_aligned(buffer)
            elif parameter[0] == "s":
                words.append(self.values.size(constants[parameter]))
                multiple = _multiple(constants[parameter])
            else:
                words.append(scratch[int(parameter[1:])])
            if multiple and wanted:
                assumed.append(position)
        read = reads(step)
        comment = f"{', '.join(b for b in step.buffers if b in read)} -> {', '.join(step.writes)}"
        if source.plain is not None and not {source.parameters.index(p) for p in source.must_align} <= set(assumed):
            source = source.plain
        if source.uneven is not None and not {source.parameters.index(p) for p in source.lengths} <= set(assumed):
            source = source.uneven
        stage: TritonSource | None = source
        while stage is not None:
            launch = self._variant(step.kernel, stage, tuple(assumed))
            grid = [self.values.size(bound(extent, constants)) for extent in stage.grid]
            hidden = [scratch[-1]] if stage.scratch else []
            call = f"{launch}({', '.join(['stream', *grid, *words, *hidden])})"
            with self.body.indent(f"if code := {call}:  # {comment}"):
                self.body.line(f'launch_failed("{stage.name}", code)', origin)
            stage, comment = stage.then, "the same arguments"
        if released:
            self.body.line(f"del {', '.join(released)}")

    def _variant(self, kernel: str, source: TritonSource, assumed: tuple[int, ...]) -> str:
        """The variable that holds the launch of the kernel compiled for these aligned arguments."""
        found = self.launches.get((source.name, assumed))
        if found is None:
            number = sum(name == source.name for name, _ in self.launches)
            key = f"{source.name}.{number}" if number else source.name
            found = self.launches[source.name, assumed] = CudaLaunch(key, kernel, source, assumed)
            self.variables[key] = self.names.fresh(f"k_{MARK.sub('', source.name)}")
        return self.variables[found.key]

    def _runs_on_gpu(self, step: KernelCall) -> bool:
        return all(self._on_gpu(self.values.buffers[name]) for name in step.writes)

    def _on_gpu(self, buffer: Buffer) -> bool:
        return buffer.device.startswith("cuda")

    def _buffer(self, name: str, wanted: bool) -> str:
        """The address of a buffer's first element; ``wanted``: it would help if it were a multiple of 16."""
        values = self.values
        if not self._on_gpu(values.buffers[name]):
            # A number that the program keeps on the CPU: the copy is queued like a launch.
            if name not in self.copied:
                self.copied[name] = self.names.fresh(f"{values.local(name)}_gpu")
                there = f'torch.device("cuda", {self.device})'
                self.body.line(f"{self.copied[name]} = {values.local(name)}.to({there}, non_blocking=True)")
            return f"{self.copied[name]}.data_ptr()"
        if values.places[name].where == "input" and wanted and self.aligned:
            return self.checked_inputs.setdefault(name, values.pointer(name))
        return values.address(name, self._emit)

    def _is_aligned(self, name: str) -> bool:
        """Whether the address is known to be a multiple of 16, or checked at the start of the call."""
        place = self.values.places[name]
        if not self._on_gpu(self.values.buffers[name]) or place.where == "output":
            return True
        if place.where == "library":
            return name in self.fresh
        if place.where == "arena":
            return place.offset is not None and _multiple(place.offset)
        return self.aligned

    def _flag(self, step: KernelCall) -> str:
        """The address that gets the number of a failed check."""
        number = len(self.messages)
        checks = [e for nest in step.nests for e in nest.body if isinstance(e, Check)]
        self.messages.append(tuple((e.error, e.message) for e in checks))
        return f"failed_address + {4 * number}" if number else "failed_address"

    def _interpret(self, step: KernelCall, origin: tuple[str, ...]) -> None:
        """Evaluate the nests on flat tensors: what has no machine code, or runs on the CPU."""
        flats = []
        for name in step.buffers:
            buffer = self.values.buffers[name]
            span = storage_bytes(buffer) // DTYPES[buffer.dtype].size
            flats.append(self.values.tensor(BufferView(name, (span,), (_ONE,), _ZERO), self._emit))
        sizes = tuple_text(self.values.size(e) for e in step.sizes)
        self.body.line(f'interpreted["{step.kernel}"]({tuple_text(flats)}, {sizes})', origin)

    def _empty(self, buffer: Buffer) -> str:
        values = self.values
        if buffer.name in self.taken_over:
            old = values.buffers[self.taken_over[buffer.name]]
            same = (old.shape, old.strides) == (buffer.shape, buffer.strides)
            shaped = "" if same else f".as_strided({values.dims(buffer.shape)}, {values.dims(buffer.strides)})"
            taken = f"{values.local(old.name)}{shaped}"
            if old.name in self.donated:
                name = values.local(old.name)
                taken += f" if only_owner(references({name}), {name}) else {self._fresh(buffer)}"
            return f"{taken}  # its last reader writes it over"
        return self._fresh(buffer)

    def _fresh(self, buffer: Buffer) -> str:
        values = self.values
        name = "empty" if self._on_gpu(buffer) else "empty_cpu"
        self.allocators.add("empty" if name == "empty_cpu" else name + "_cuda")
        return f"{name}({values.dims(buffer.shape)}, {values.dims(buffer.strides)}, {self._dtype(buffer.name)})"


def _multiple(expr: Expr) -> bool:
    """Whether the number is a multiple of 16 whatever its sizes are."""
    return expr.const % _ALIGNMENT == 0 and all(factor % _ALIGNMENT == 0 for _, factor in expr.terms)
