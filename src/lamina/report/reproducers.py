"""Programs that run one region or one kernel of a report by itself, on random inputs.

Each is the text that the report has anyway, with something before and after it: the page joins them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch.fx import GraphModule

from lamina.base.devices import kind_of
from lamina.base.symbolic.torch_private import hint
from lamina.base.text import Writer, tuple_text
from lamina.codegen.cpp.prelude import prelude
from lamina.codegen.host_example import EXAMPLE
from lamina.codegen.triton.source import TritonSource
from lamina.ir.loops import Buffer
from lamina.ir.plan import KernelCall
from lamina.ir.work import Sizes
from lamina.runtime.kernel import KernelUnit
from lamina.runtime.toolchain import ISAS

__all__ = ["kernel_program", "region_program"]

_QUOTES = "'''"
_WORDS = {"*fp32": "torch.float32", "*i32": "torch.int32"}
"""The dtypes of workspaces by their Triton types."""
_RUNS = 20
"""How often a program launches its kernel."""


def region_program(gm: GraphModule) -> dict[str, str] | None:
    """What follows the text of a graph, so that it is compiled, run beside ATen and compared; None: it cannot be told.

    Sizes are those of the first call. Constants that the graph reads are random numbers, too.
    """
    given = [_example(node.meta.get("val")) for node in gm.graph.find_nodes(op="placeholder")]
    held = {
        str(n.target): getattr(gm, str(n.target), None) for n in gm.graph.nodes if n.op in ("get_attr", "call_module")
    }
    told = all(name.isidentifier() and isinstance(value, torch.Tensor | GraphModule) for name, value in held.items())
    if None in given or not told or _draws_again(gm):
        return None
    out = Writer()
    _write_example(out)
    with out.indent('if __name__ == "__main__":'):
        out.line("import lamina")
        if any(str(node.target).startswith("lamina.") for node in gm.graph.nodes):
            out.line("import lamina.decomp.random_ops, lamina.masked_rows.operations  # which the graph calls")
        out.line()
        out.line("torch.manual_seed(0)")
        out.line("module = GraphModule()")
        for name, value in held.items():
            made = f"GraphModule.{name}()" if isinstance(value, GraphModule) else _example(value)
            out.line(f"module.{name} = {made}")
        with out.indent("inputs = [", "]"):
            for line in given:
                out.line(f"{line},")
        out.line("copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]")
        with out.indent("with torch.no_grad():"):
            out.line("torch.manual_seed(1)")
            out.line("wanted = module(*copies)")
            out.line("torch.manual_seed(1)")
            out.line("found = lamina.compile(module)(*inputs)")
        out.line("pairs = zip(*(one if isinstance(one, tuple | list) else [one] for one in (wanted, found)))")
        with (
            out.indent("for number, (want, got) in enumerate(pairs):"),
            out.indent("if isinstance(want, torch.Tensor) and want.numel():"),
        ):
            out.line("apart, most = (want.double() - got.double()).abs().max(), want.double().abs().max()")
            out.line('print(f"result {number}, {tuple(want.shape)}: up to {most:.3g}, at most {apart:.3g} apart")')
    return {"before": "", "after": out.text()}


def _write_example(out: Writer) -> None:
    """Define what makes inputs, two lines from what stands before and after."""
    out.line()
    out.line()
    out.line(EXAMPLE.rstrip("\n"))
    out.line()
    out.line()


def _draws_again(gm: GraphModule) -> bool:
    """Whether a graph computes numbers from a seed that it is given: compiled once more it would count them anew."""
    called = {str(node.target) for node in gm.graph.nodes if node.op == "call_function"}
    return "lamina.philox_uniform.default" in called and "lamina.philox_seed.default" not in called


def _example(value: object) -> str | None:
    """Source text that makes a value like ``value``; None where that is not known."""
    if isinstance(value, torch.Tensor):
        shape, strides = (tuple_text(str(hint(n)) for n in sizes) for sizes in (value.shape, value.stride()))
        made = f"example({shape}, {strides}, {value.dtype})"
        return made if kind_of(value).host else f'{made}.to("{value.device.type}")'
    if isinstance(value, torch.SymInt | int):
        return repr(value) if isinstance(value, bool) else repr(hint(value))
    if isinstance(value, torch.SymFloat | float):
        return "0.5" if isinstance(value, torch.SymFloat) else repr(value)
    return "None" if value is None else None


def kernel_program(
    unit: KernelUnit | TritonSource, call: KernelCall, buffers: Mapping[str, Buffer], sizes: Sizes
) -> dict[str, str] | None:
    """What stands before and after a kernel's text, so that it is built and launched; None where that is not known.

    The program prints which of its buffers the kernel changes, and how long a launch takes.
    """
    out = Writer()
    if isinstance(unit, KernelUnit):
        before = _before(unit)
        if before is None:
            return None
        out.line(_QUOTES)
        _write_cpp(out, unit)
    else:
        before = ""
        out.line()
        out.line()
        out.line("import torch")
    _write_example(out)
    with out.indent('if __name__ == "__main__":'):
        if isinstance(unit, TritonSource):
            out.line('device = "cuda" if torch.cuda.is_available() else "cpu"  # the latter with TRITON_INTERPRET=1')
        out.line("torch.manual_seed(0)")
        with out.indent("buffers = [", "]"):
            for name in call.buffers:
                shape, strides = (
                    tuple_text(str(sizes(n)) for n in e) for e in (buffers[name].shape, buffers[name].strides)
                )
                moved = "" if isinstance(unit, KernelUnit) else ".to(device)"
                out.line(f"example({shape}, {strides}, torch.{buffers[name].dtype}){moved},  # {name}")
        out.line(f"sizes = {[sizes(size) for size in call.sizes]}")
        out.line("before = [x.clone() for x in buffers]")
        for line in _launching(unit, sizes):
            out.line(line)
    return {"before": before, "after": out.text()}


def _before(unit: KernelUnit) -> str | None:
    """The head of a program with a kernel for the CPU, up to where its text begins."""
    exact = "-ffp-contract=off" in unit.flags
    isa = next((isa for isa in ISAS if prelude(isa, exact) == unit.prelude), None)
    if isa is None or _QUOTES in unit.source or unit.source.endswith("\\"):
        return None
    lines = [
        "from statistics import median",
        "from time import perf_counter",
        "",
        "import torch",
        "",
        "from lamina.codegen.cpp.prelude import prelude",
        "from lamina.runtime.kernel import KernelFunction, KernelUnit",
        "from lamina.runtime.kernel_files import built_kernel",
        "",
        f"PRELUDE = prelude({isa!r}, {exact})",
        f"SOURCE = r{_QUOTES}",
    ]
    return "\n".join([*lines, ""])


def _write_cpp(out: Writer, unit: KernelUnit) -> None:
    functions = ", ".join(f"KernelFunction({f.name!r}, {f.parameters!r}, {f.checked})" for f in unit.functions)
    out.line(
        f"UNIT = KernelUnit({unit.name!r}, SOURCE, ({functions},), PRELUDE, {unit.flags!r}, {tuple(unit.arguments)!r})"
    )


def _launching(unit: KernelUnit | TritonSource, sizes: Sizes) -> Iterator[str]:
    """Lines that launch the kernel and say what it did."""
    if isinstance(unit, KernelUnit):
        yield "kernel = built_kernel(UNIT)"
        yield 'print("code", kernel(*(x.data_ptr() for x in buffers), *sizes))'
        yield "times = []"
        yield f"for _ in range({_RUNS}):"
        yield "    start = perf_counter()"
        yield "    kernel(*(x.data_ptr() for x in buffers), *sizes)"
        yield "    times.append(perf_counter() - start)"
        yield 'print(f"{1e6 * median(times):.1f} us")'
    else:
        given = dict(zip(unit.parameters, unit.types, strict=True))
        extra = [
            f"torch.zeros({max(4, sizes(n))} // 4, dtype={_WORDS[given[f'w{k}']]}, device=device)"
            for k, (n, _) in enumerate(unit.workspace)
        ]
        extra += ["torch.zeros(1, dtype=torch.int32, device=device)"] if unit.checks else []
        yield f"extra = [{', '.join(extra)}]"
        if unit.scratch:
            yield "import triton"
            yield ""
            yield "triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device=device))"
        grid = tuple_text(str(sizes(n)) for n in unit.grid)
        how = f"num_warps={unit.warps}, num_stages={unit.stages}"
        if unit.then is not None:
            yield f"# {unit.then.name}, the launch that belongs to it, is left out: partial results are in extra"
        if unit.then is not None:
            yield f"# {unit.then.name}, the second launch, is left out: what it adds up stays in extra"
        yield "def launch():"
        yield f"    {unit.name}[{grid}](*buffers, *sizes, *extra, {how})"
        yield ""
        yield "launch()"
        yield 'if device == "cuda":'
        yield "    from triton.testing import do_bench"
        yield ""
        yield '    print(f"{1e3 * do_bench(launch):.1f} us")'
    yield "for number, (old, new) in enumerate(zip(before, buffers)):"
    yield "    if not torch.equal(old, new):"
    yield '        print(f"buffer {number} is written: {new.flatten()[:8].tolist()}")'
