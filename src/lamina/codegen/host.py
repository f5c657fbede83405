"""The host program of a region: one flat Python function that runs a Plan.

It unpacks the inputs, takes a workspace, launches kernels and calls libraries in order, frees what is used up and
returns the outputs. What can be decided before the call is decided here: addresses in the workspace are integers, and
tensors over it are made once for each workspace, as are the packed arguments of a kernel that touches nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lamina.base.text import Writer
from lamina.codegen.host_globals import Globals
from lamina.codegen.host_inputs import Inputs
from lamina.codegen.host_launches import CpuLaunches
from lamina.codegen.host_library import AtenFunctions, LibraryCalls
from lamina.codegen.host_memory import CpuMemory
from lamina.codegen.host_program import HostProgram
from lamina.codegen.host_steps import Steps
from lamina.codegen.host_uses import uses_of
from lamina.codegen.host_values import Names, Values
from lamina.ir.plan import Plan

__all__ = ["emit_host"]

_RESERVED = (
    *("checkin", "checkout", "empty", "empty_large", "empty_small", "empty_temporary", "kernels", "reinterpret"),
    *("KEY", "args", "base", "call", "failed", "made", "prepare", "restride", "share_threads", "torch", "ws", "_"),
    *("only_owner", "references", "user_kernel", "user_op", "wrong_result"),
)
_RUNTIME = (
    *("checkin", "checkout", "empty", "empty_large", "empty_small", "empty_temporary", "only_owner", "references"),
    *("reinterpret", "restride", "share_threads"),
)
"""What programs import of the runtime, in this order."""
_RELEASED = ("input", "library", "output")
"""Places of buffers that are let go after their last use: "output" are large temporaries as well."""


def emit_host(plan: Plan, donated: Collection[str] = ()) -> HostProgram:
    """The host program of a plan, in which a buffer may take over the memory of an input in ``donated`` if the program
    finds that nobody else holds it. Linear in its steps. Raises ``InvalidIR`` for a size that no input gives.
    """
    return _CpuHost(plan, donated).program()


class _CpuHost:
    """The program under construction, around its steps."""

    def __init__(self, plan: Plan, donated: Collection[str]) -> None:
        self.plan, self.body = plan, Writer()
        names = Names(_RESERVED)
        self.values = Values(plan, names)
        self.globals = Globals(names)
        self.imports: set[str] = set()
        uses = uses_of(plan, self.values)
        functions = AtenFunctions(self.values)
        self.inputs = Inputs(plan, self.values, uses.last)
        self.launches = CpuLaunches(self.values, names, self.body)
        self.library = LibraryCalls(self.values, self.globals, functions, uses, self.body, self.imports)
        memory = CpuMemory.of(plan, uses.last, donated, self.values, self.globals, self.imports)
        self.steps = Steps(plan, self.values, uses, self.launches, self.library, memory.empty, _RELEASED, self.body)

    def program(self) -> HostProgram:
        """Write all of it."""
        kernels = tuple(self.launches.declare(k) for k in self.plan.kernels)
        results = self.steps.write()
        held, arena = self._held(), self.values.size(self.plan.arena_bytes)
        if held or self.values.uses_base or self.values.typed:
            self.imports.update(("checkin", "checkout"))
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

    def _held(self) -> dict[str, str]:
        """What is made once for each workspace: source text by variable."""
        values = self.values
        windows = {
            name: f"ws.tensor({values.arena_window(key)}, {self.globals.dtype(values.buffers[key[0]].dtype)})"
            for key, name in values.cached.items()
        }
        return windows | {name: text for text, name in self.launches.packed.items()}

    def _enter(self, out: Writer, held: Mapping[str, str], arena: str) -> None:
        """What comes before the steps: threads, inputs, and the workspace with what is held for it."""
        if self.plan.kernels:
            out.line("share_threads()")
        self.inputs.unpack(out)
        self.inputs.release(out)
        if "checkout" not in self.imports:
            return
        out.line(f"ws = checkout({arena})")
        if held:
            out.unpack(list(held), "ws.held.get(KEY) or prepare(ws)")
        if self.values.uses_base:
            out.line("base = ws.address")
        for dtype, name in self.values.typed.items():
            out.line(f"{name} = ws.typed({self.globals.dtype(dtype)})")

    def _header(self, out: Writer, held: Mapping[str, str]) -> None:
        """Imports and module-level variables."""
        plan = self.plan
        counts = f"kernel launches: {plan.kernel_count}, library calls: {plan.library_count}"
        out.line(f'"""Host program of region {plan.name}; {counts}."""')
        out.line()
        out.line("import torch")
        out.line()
        used = {"reinterpret": self.values.reinterprets, "share_threads": bool(plan.kernels)}
        names = [name for name in _RUNTIME if used.get(name, name in self.imports)]
        if names:
            out.line(f"from lamina.runtime.host import {', '.join(names)}")
        user = self.library.user_imports()
        if user:
            out.line(f"from lamina.runtime.user_ops import {', '.join(user)}")
        if names or user:
            out.line()
        for name, (launch, pack) in self.launches.variables.items():
            out.line(f'{launch}, {pack} = kernels["{name}"].launch, kernels["{name}"].pack')
        self.globals.define(out)
        if held:
            out.line("KEY = object()")
        out.line()
        out.line()

    def _prepare(self, out: Writer, held: Mapping[str, str]) -> None:
        """The function that fills a workspace's cache for this program."""
        with out.indent("def prepare(ws):"):
            out.line('"""Tensors over the workspace for library calls, packed arguments for kernels; made once."""')
            if self.launches.packed:
                out.line("base = ws.address")
            with out.indent("made = ws.held[KEY] = (", ")"):
                for name, text in held.items():
                    out.line(f"{text},  # {name}")
            out.line("return made")
        out.line()
        out.line()
