"""The host program of a region on a GPU: one flat Python function that allocates, launches and calls libraries.

Everything is queued on the stream that is current when it is called, and nothing waits for the GPU. Large temporaries
are allocated and freed one by one, small ones share a workspace for the call; both are memory of torch's caching
allocator. Kernels are compiled for addresses that are multiples of 16; a call with an input where that does not hold
takes the same program over kernels compiled without that knowledge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lamina.base.text import SourceMap, Writer
from lamina.codegen.host_cuda_arguments import Arguments
from lamina.codegen.host_cuda_launches import CheckFlags, CudaLaunch, CudaLaunches, Variants
from lamina.codegen.host_cuda_memory import CudaMemory
from lamina.codegen.host_globals import Globals
from lamina.codegen.host_inputs import Inputs
from lamina.codegen.host_library import AtenFunctions, LibraryCalls
from lamina.codegen.host_reuse import reused
from lamina.codegen.host_scratch import Scratch
from lamina.codegen.host_steps import Steps
from lamina.codegen.host_uses import uses_of
from lamina.codegen.host_values import Names, Values
from lamina.codegen.triton.source import TritonSource
from lamina.ir.access import views
from lamina.ir.loops import LibraryCall
from lamina.ir.plan import Plan
from lamina.library_algorithms.product_operations import CHOSEN
from lamina.masked_rows.operations import WRITING

__all__ = ["CudaHost", "emit_cuda_host"]

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
_RUNTIME = frozenset(("empty", "launch_failed", "only_owner", "references", "zeroed"))
_RELEASED = ("input", "library", "output")


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
    return _CudaHost(plan, sources, device, interpreted, aligned, donated).program()


class _CudaHost:
    """The program under construction, around its steps."""

    def __init__(
        self,
        plan: Plan,
        sources: Mapping[str, TritonSource],
        device: int,
        interpreted: frozenset[str],
        aligned: bool,
        donated: frozenset[str],
    ) -> None:
        self.plan, self.device, self.body = plan, device, Writer()
        names = Names(_RESERVED)
        self.values = values = Values(plan, names, keeps_workspace=False)
        self.globals = Globals(names)
        self.imports: set[str] = set()
        self.variants, self.flags = Variants(names), CheckFlags()
        uses = uses_of(plan, values)
        self.inputs = Inputs(plan, values, uses.last)
        self.arguments = Arguments(plan, values, names, device, aligned, self.body)
        self.scratch = Scratch(values, self.globals, device, self.imports)
        self.library = LibraryCalls(
            values, self.globals, _GpuFunctions(values, AtenFunctions(values)), uses, self.body, self.imports
        )
        parts = (values, self.arguments, self.scratch, self.variants, self.flags)
        launches = CudaLaunches(sources, interpreted, *parts, self.body, self.imports)
        memory = CudaMemory(values, self.globals, *reused(plan, uses.last, donated), self.imports)
        self.steps = Steps(plan, values, uses, launches, self.library, memory.empty, _RELEASED, self.body)

    def program(self) -> CudaHost:
        """Write all of it."""
        self.body.line(f"return {self.steps.write()}")
        call = Writer()
        with call.indent("def call(args):"):
            self._enter(call)
            call.extend(self.body)
        out = Writer()
        self._header(out)
        out.extend(call)
        messages = self.flags.messages()
        return CudaHost(self.plan.name, out.text(), self.variants.all(), messages, out.source_map(), self.plan)

    def _enter(self, out: Writer) -> None:
        """What comes before the steps: the device, checks of earlier calls, inputs, and the workspace."""
        with out.indent(f"if current_device() != {self.device}:"):
            out.line(f"return elsewhere({self.device}, call, args)")
        self.flags.report(out)
        self.inputs.unpack(out)
        self.arguments.check(out)
        self.inputs.release(out)
        if self._calls_first:
            out.line("enter_context()")
        out.line(f"stream = current_stream({self.device})")
        if self.values.uses_base or self.values.typed:
            self.imports.add("empty")
            nbytes = self.values.size(self.plan.arena_bytes + self.scratch.nbytes)
            out.line(f"workspace = empty(({nbytes},), (1,), {self.globals.dtype('uint8')})")
            if self.values.uses_base:
                out.line("base = workspace.data_ptr()")
            for dtype, name in self.values.typed.items():
                out.line(f"{name} = workspace.view({self.globals.dtype(dtype)})")

    @property
    def _calls_first(self) -> bool:
        """Whether the first step is a library call."""
        return bool(self.plan.steps) and isinstance(self.plan.steps[0], LibraryCall)

    def _header(self, out: Writer) -> None:
        """Imports and module-level variables."""
        plan = self.plan
        counts = f"kernel launches: {plan.kernel_count}, library calls: {plan.library_count}"
        out.line(f'"""Host program of region {plan.name} on GPU {self.device}; {counts}."""')
        out.line()
        out.line("import torch")
        out.line()
        used = {"current_device", "current_stream", "elsewhere", *_RUNTIME & self.imports}
        if self._calls_first:
            used.add("enter_context")
        if self.values.reinterprets:
            used.add("reinterpret")
        out.line(f"from lamina.runtime.cuda_host import {', '.join(sorted(used))}")
        others = {"empty_cpu": "empty as empty_cpu", "restride": "restride"}
        if names := [text for name, text in others.items() if name in self.imports]:
            out.line(f"from lamina.runtime.host import {', '.join(names)}")
        if user := self.library.user_imports():
            out.line(f"from lamina.runtime.user_ops import {', '.join(user)}")
        if self.globals.calls("library_product"):
            out.line("from lamina.library_algorithms.cublas_products import library_product")
        if self.globals.calls("masked_rows"):
            out.line("from lamina.masked_rows.kernels import masked_rows")
        out.line()
        self.variants.define(out)
        self.flags.define(out)
        self.globals.define(out)
        out.line()
        out.line()


@dataclass(frozen=True, slots=True)
class _GpuFunctions:
    """Functions of our own, past the dispatcher, where calls on a GPU have such, and the others' elsewhere."""

    values: Values
    others: AtenFunctions

    def called(self, step: LibraryCall) -> str:
        """For what gives the results of a call."""
        if step.op in WRITING and all(not self.values.buffers[v.buffer].on_cpu for v in views(step)):
            return f'masked_rows("{step.op}")'
        return self.others.called(step)

    def writing(self, step: LibraryCall) -> str:
        """For what writes the result of a call into planned memory."""
        if step.op in CHOSEN.values():
            return f'library_product("{step.op}", "{step.name}")'
        return self.others.writing(step)
