"""Launches of kernels for the CPU: arguments that no call changes are packed once for each workspace."""

from __future__ import annotations

from lamina.base.text import Writer, literal, tuple_text
from lamina.codegen.host_program import MARK, HostKernel
from lamina.codegen.host_values import Names, Values
from lamina.ir.access import reads
from lamina.ir.loops import Check
from lamina.ir.plan import Kernel, KernelCall

__all__ = ["CpuLaunches"]


class CpuLaunches:
    """Writes launches into ``body``.

    ``variables`` has the two that hold a kernel's ``launch`` and ``pack``, ``packed`` those of arguments that are
    packed once, by the text that packs them.
    """

    def __init__(self, values: Values, names: Names, body: Writer) -> None:
        self.values, self.names, self.body = values, names, body
        self.variables: dict[str, tuple[str, str]] = {}
        self.packed: dict[str, str] = {}

    def declare(self, kernel: Kernel) -> HostKernel:
        """Give a kernel its variables; what the program asks of it."""
        launch = self.names.fresh(f"k_{MARK.sub('', kernel.name)}")
        self.variables[kernel.name] = (launch, self.names.fresh(f"{launch}_pack"))
        checked = any(isinstance(e, Check) for nest in kernel.nests for e in nest.body)
        return HostKernel(kernel.name, "p" * len(kernel.dtypes) + "q" * len(kernel.sizes), checked)

    def write(self, step: KernelCall, origin: tuple[str, ...]) -> None:
        """Write one launch, which raises what a failed check says."""
        values, body = self.values, self.body
        launch, pack = self.variables[step.kernel]
        constant = all(e.is_int for e in step.sizes) and all(values.fixed(b) for b in step.buffers)
        parts = [values.address(b, body.line, held=constant) for b in step.buffers]
        text = f"{pack}({', '.join([*parts, *(values.size(e) for e in step.sizes)])})"
        if constant:
            if text not in self.packed:
                self.packed[text] = self.names.fresh(f"{launch}_args")
            text = self.packed[text]
        read = reads(step)
        what = f"  # {', '.join(b for b in step.buffers if b in read)} -> {', '.join(step.writes)}"
        raised = [f"{e.error}({literal(e.message)})" for nest in step.nests for e in nest.body if isinstance(e, Check)]
        if not raised:
            body.line(f"{launch}({text}){what}", origin)
            return
        with body.indent(f"if failed := {launch}({text}):{what}"):
            body.line(f"raise {tuple_text(raised)}[failed - 1]", origin)
