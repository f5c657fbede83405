"""Launches of kernels on a GPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lamina.base.dtypes import DTYPES
from lamina.base.text import Writer, tuple_text
from lamina.codegen.host_cuda_arguments import Arguments, is_multiple
from lamina.codegen.host_program import MARK
from lamina.codegen.host_scratch import Scratch, bound
from lamina.codegen.host_values import Names, Values
from lamina.codegen.triton.source import TritonSource
from lamina.ir.access import reads
from lamina.ir.index import Expr, as_expr
from lamina.ir.loops import BufferView, Check, storage_bytes
from lamina.ir.plan import KernelCall

__all__ = ["CheckFlags", "CudaLaunch", "CudaLaunches", "Variants"]

_ZERO, _ONE = as_expr(0), as_expr(1)


@dataclass(frozen=True, slots=True)
class CudaLaunch:
    """A compiled variant of a kernel that a host program launches: its key in ``kernels``, the kernel's name in the
    Plan, its source, and the positions of the parameters that are multiples of 16 in each of its launches.
    """

    key: str
    kernel: str
    source: TritonSource
    aligned: tuple[int, ...]


class Variants:
    """The variants of kernels that a program launches, and the variables that hold them."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._launches: dict[tuple[str, tuple[int, ...]], CudaLaunch] = {}
        self._variables: dict[str, str] = {}

    def variable(self, kernel: str, source: TritonSource, assumed: tuple[int, ...]) -> str:
        """The variable that holds the launch of a kernel compiled for these aligned arguments."""
        found = self._launches.get((source.name, assumed))
        if found is None:
            number = sum(name == source.name for name, _ in self._launches)
            key = f"{source.name}.{number}" if number else source.name
            found = self._launches[source.name, assumed] = CudaLaunch(key, kernel, source, assumed)
            self._variables[key] = self.names.fresh(f"k_{MARK.sub('', source.name)}")
        return self._variables[found.key]

    def all(self) -> tuple[CudaLaunch, ...]:
        """The variants, in the order in which they are first launched."""
        return tuple(self._launches.values())

    def define(self, out: Writer) -> None:
        """Write the definitions of the variables."""
        for launch in self._launches.values():
            out.line(f'{self._variables[launch.key]} = kernels["{launch.key}"].launch')


class CheckFlags:
    """The numbers in memory by which launches say which of their checks failed."""

    def __init__(self) -> None:
        self._messages: list[tuple[tuple[str, str], ...]] = []

    def address(self, step: KernelCall) -> str:
        """The address that gets the number of a failed check of one more launch."""
        number = len(self._messages)
        checks = [e for nest in step.nests for e in nest.body if isinstance(e, Check)]
        self._messages.append(tuple((e.error, e.message) for e in checks))
        return f"failed_address + {4 * number}" if number else "failed_address"

    def messages(self) -> tuple[tuple[tuple[str, str], ...], ...]:
        """Of each launch with checks, what they raise: the exception's name and text."""
        return tuple(self._messages)

    def define(self, out: Writer) -> None:
        """Write the definitions of the variables."""
        if self._messages:
            out.line(f"{tuple_text(self._cells())} = failed.cells")
            out.line("failed_address = failed.address")

    def report(self, out: Writer) -> None:
        """Write that what failed in an earlier call is raised."""
        if self._messages:
            with out.indent(f"if {' or '.join(f'{name}.value' for name in self._cells())}:"):
                out.line("failed.report()")

    def _cells(self) -> list[str]:
        return [f"failed_{k}" for k in range(len(self._messages))]


@dataclass(frozen=True, slots=True)
class CudaLaunches:
    """Writes launches into ``body``, and names in ``imports`` what they call.

    ``sources`` has each kernel's Triton source, but for those in ``interpreted``, which are evaluated equation by
    equation.
    """

    sources: Mapping[str, TritonSource]
    interpreted: Collection[str]
    values: Values
    arguments: Arguments
    scratch: Scratch
    variants: Variants
    flags: CheckFlags
    body: Writer
    imports: set[str]

    def write(self, step: KernelCall, origin: tuple[str, ...]) -> None:
        """Write one launch, with those that belong to it."""
        if step.kernel in self.interpreted or not all(self.arguments.is_on_gpu(name) for name in step.writes):
            self._interpret(step, origin)
            return
        source = self.sources[step.kernel]
        sizes = {f"s{k}": size for k, size in enumerate(step.sizes)}
        scratch, released = self.scratch.addresses(source, sizes, self.body)
        words, assumed = self._arguments(step, source, sizes, scratch)
        read = reads(step)
        comment = f"{', '.join(b for b in step.buffers if b in read)} -> {', '.join(step.writes)}"
        stage: TritonSource | None = _suitable(source, assumed)
        self.imports.add("launch_failed")
        while stage is not None:
            launch = self.variants.variable(step.kernel, stage, assumed)
            grid = [self.values.size(bound(extent, sizes)) for extent in stage.grid]
            hidden = [scratch[-1]] if stage.scratch else []
            call = f"{launch}({', '.join(['stream', *grid, *words, *hidden])})"
            with self.body.indent(f"if code := {call}:  # {comment}"):
                self.body.line(f'launch_failed("{stage.name}", code)', origin)
            stage, comment = stage.then, "the same arguments"
        if released:
            self.body.line(f"del {', '.join(released)}")

    def _arguments(
        self, step: KernelCall, source: TritonSource, sizes: Mapping[str, Expr], scratch: list[str]
    ) -> tuple[list[str], tuple[int, ...]]:
        """Source texts of the arguments, and the positions of those that may be assumed to be multiples of 16."""
        words: list[str] = []
        assumed: list[int] = []
        for position, parameter in enumerate(source.parameters):
            wanted = parameter in source.aligned
            multiple = True
            if parameter == "failed":
                words.append(self.flags.address(step))
            elif parameter[0] == "b":
                buffer = step.buffers[int(parameter[1:])]
                words.append(self.arguments.address(buffer, wanted))
                multiple = self.arguments.is_aligned(buffer)
            elif parameter[0] == "s":
                words.append(self.values.size(sizes[parameter]))
                multiple = is_multiple(sizes[parameter])
            else:
                words.append(scratch[int(parameter[1:])])
            if multiple and wanted:
                assumed.append(position)
        return words, tuple(assumed)

    def _interpret(self, step: KernelCall, origin: tuple[str, ...]) -> None:
        """Evaluate the nests on flat tensors: what has no machine code, or runs on the CPU."""
        flats = []
        for name in step.buffers:
            buffer = self.values.buffers[name]
            span = storage_bytes(buffer) // DTYPES[buffer.dtype].size
            flats.append(self.values.tensor(BufferView(name, (span,), (_ONE,), _ZERO), self.body.line))
        sizes = tuple_text(self.values.size(e) for e in step.sizes)
        self.body.line(f'interpreted["{step.kernel}"]({tuple_text(flats)}, {sizes})', origin)


def _suitable(source: TritonSource, assumed: tuple[int, ...]) -> TritonSource:
    """The form of a source for arguments of which these are multiples of 16."""
    if source.plain is not None and not {source.parameters.index(p) for p in source.must_align} <= set(assumed):
        source = source.plain
    if source.uneven is not None and not {source.parameters.index(p) for p in source.lengths} <= set(assumed):
        source = source.uneven
    return source
