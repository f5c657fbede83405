"""A kernel of the Plan as a Triton module."""

from __future__ import annotations

from dataclasses import replace

from lamina.base.target import Target
from lamina.codegen.triton.choices import with_choices_of_operands
from lamina.codegen.triton.cluster import cluster_lines
from lamina.codegen.triton.grouped import dispatch, programs
from lamina.codegen.triton.last_block import programs_of, write_last_block
from lamina.codegen.triton.nest import NestWriter
from lamina.codegen.triton.nest_analysis import NestAnalysis, size_text
from lamina.codegen.triton.peeled_tail import GROUP, has_tail, lengths_of_groups, tail_schedule
from lamina.codegen.triton.product import write_product, write_sums
from lamina.codegen.triton.sigmoids import with_sigmoids
from lamina.codegen.triton.source import TritonSource, UnsupportedKernel
from lamina.codegen.triton.text import Text, helpers_in
from lamina.codegen.triton.types import signature
from lamina.ir.grouped import Grouped, grouped
from lamina.ir.index import Expr, as_expr, prod
from lamina.ir.loops import Check, Nest, Store
from lamina.ir.plan import GpuSchedule, Kernel

__all__ = ["emit"]


def emit(kernel: Kernel, target: Target) -> TritonSource:
    """The Triton source of ``kernel``. Raises ``UnsupportedKernel`` where Triton cannot express it.

    Programs are numbered along one dimension of the grid, the nests of a group one after the other.
    """
    approximate = [isinstance(s, GpuSchedule) and s.approximate for s in kernel.schedules]
    nests = zip(kernel.nests, approximate, strict=True)
    kernel = replace(
        kernel,
        nests=tuple([with_choices_of_operands(with_sigmoids(nest) if short else nest) for nest, short in nests]),
    )
    dtypes = {f"b{k}": d for k, d in enumerate(kernel.dtypes)}
    checks = sum(isinstance(e, Check) for nest in kernel.nests for e in nest.body)
    parameters, types = _arguments(kernel, dtypes, checks)
    same = grouped(kernel.nests)
    if same is not None and len({tuple(dtypes[b] for b in own) for own in same.buffers}) == 1:
        return _together(kernel, same, dtypes, types)
    if len(kernel.nests) == 1 and kernel.schedules[0].kind == "product":
        return _product(kernel, dtypes, parameters, types, target)
    if any(isinstance(s, GpuSchedule) and s.last_block for s in kernel.schedules):
        return _joined(kernel, dtypes, parameters, types)
    pairs = [(n, s) for n, s in zip(kernel.nests, kernel.schedules, strict=True) if isinstance(s, GpuSchedule)]
    lengths = [lengths_of_groups(nest) for nest, schedule in pairs if has_tail(nest, schedule)]
    always = any(sizes is None for sizes in lengths)
    whole = _nests(kernel, dtypes, parameters, types, with_tail=always)
    if always or not lengths:
        return whole
    made = _nests(replace(kernel, name=f"{kernel.name}_uneven"), dtypes, parameters, types, with_tail=True)
    return replace(whole, uneven=made, lengths=tuple(sorted(frozenset[str]().union(*filter(None, lengths)))))


def _nests(
    kernel: Kernel, dtypes: dict[str, str], parameters: list[str], types: list[str], with_tail: bool
) -> TritonSource:
    """The source of nests that each have programs of their own. ``with_tail``: whole groups of their tiles and the rest
    apart, where that pays.
    """
    workspace: tuple[tuple[Expr, bool], ...] = ()
    parts: list[Text] = []
    grids: list[Expr] = []
    schedules: list[GpuSchedule] = []
    done = 0
    alone = len(kernel.nests) == 1
    for number, (nest, schedule) in enumerate(zip(kernel.nests, kernel.schedules, strict=True)):
        assert isinstance(schedule, GpuSchedule), "the kernel is scheduled for a CPU"
        schedules.append(schedule)
        name = kernel.name if alone else f"{kernel.name}_{number}"
        if schedule.kind == "product":
            text = _function(name, parameters, NestAnalysis(nest, schedule, dtypes), alone)
            grids.append(write_product(nest, schedule, dtypes, text, alone).programs)
            parts.append(text)
            continue
        if with_tail and has_tail(nest, schedule):
            made, facts = _groups_and_rest(name, parameters, nest, schedule, dtypes, alone)
            parts += made
        else:
            facts = NestAnalysis(nest, schedule, dtypes)
            text, writer = _written(name, parameters, facts, alone, done)
            parts.append(text)
            for cluster in writer.reductions.clusters:
                workspace = ((cluster.workspace(), False),)
        done += sum(isinstance(e, Check) for e in nest.body)
        tiles = prod(facts.pieces(k) for k, b in enumerate(facts.blocks) if b.role in ("grid", "cluster"))
        grids.append(tiles * max(schedule.cluster, 1))
    if not alone:
        parts.append(_dispatch(kernel.name, parameters, grids))
    body = "\n\n\n".join("\n".join(part.lines) for part in parts)
    one = as_expr(1)
    return TritonSource(
        kernel.name,
        f"{_head(body)}\n\n\n{body}\n",
        tuple(parameters),
        tuple(types),
        (*dtypes, *kernel.sizes),
        max(s.warps for s in schedules),
        max(s.stages for s in schedules),
        (sum(grids, as_expr(0)), one, one),
        workspace,
        "failed" in parameters,
    )


def _function(name: str, parameters: list[str], facts: NestAnalysis, alone: bool) -> Text:
    """The head of the function of a nest; one that is not ``alone`` is told its program's number."""
    facts.check()
    text = _opened(name, parameters, alone)
    text.add(f'"""{_describe(facts)}"""')
    return text


def _opened(name: str, parameters: list[str], alone: bool) -> Text:
    text = Text()
    text.add("@triton.jit")
    text.open(f"def {name}({', '.join(parameters if alone else [*parameters, 'pid'])}):")
    return text


def _written(
    name: str, parameters: list[str], facts: NestAnalysis, alone: bool, first_check: int
) -> tuple[Text, NestWriter]:
    """The function of a nest."""
    text = _function(name, parameters, facts, alone)
    _indices(facts, text, alone)
    writer = NestWriter(facts, text, first_check)
    writer.run()
    return text, writer


def _groups_and_rest(
    name: str, parameters: list[str], nest: Nest, schedule: GpuSchedule, dtypes: dict[str, str], alone: bool
) -> tuple[list[Text], NestAnalysis]:
    """The functions of a nest whose tiles end at the last whole group, and the facts of those tiles."""
    facts = NestAnalysis(nest, schedule, dtypes, part="groups")
    rest = NestAnalysis(nest, tail_schedule(schedule), dtypes, part="rest")
    groups, _ = _written(f"{name}_groups", parameters, facts, False, 0)
    last, _ = _written(f"{name}_rest", parameters, rest, False, 0)
    text = _opened(name, parameters, alone)
    if alone:
        text.add("pid = tl.program_id(0)")
    given = ", ".join([*parameters, "pid"])
    text.add(f"{name}_groups({given})")
    text.open("if pid == 0:")
    text.add(f"{name}_rest({given})")
    return [groups, last, text], facts


def _arguments(kernel: Kernel, dtypes: dict[str, str], checks: int) -> tuple[list[str], list[str]]:
    """Names and types of a kernel's parameters, with the memory of its clusters and the number of its failed check."""
    gpu = [s for s in kernel.schedules if isinstance(s, GpuSchedule)]
    shared = any(s.cluster or any(b.role == "cluster" for b in s.blocks) for s in gpu)
    if shared and len(kernel.nests) > 1:
        raise UnsupportedKernel("a cluster of programs in a group of nests")
    last = [*(["w0"] if shared else []), *(["failed"] if checks else [])]
    kinds = {"w0": "*fp32", "failed": "*i32"}
    types = [*(signature(d) for d in kernel.dtypes), *("i64" for _ in kernel.sizes), *(kinds[name] for name in last)]
    return [*dtypes, *kernel.sizes, *last], types


def _joined(kernel: Kernel, dtypes: dict[str, str], parameters: list[str], types: list[str]) -> TritonSource:
    """The source of a launch whose last programs run the second nest."""
    (first, second), stored = kernel.nests, {e.buffer for e in kernel.nests[0].body if isinstance(e, Store)}
    parts: list[Text] = []
    facts: list[NestAnalysis] = []
    for suffix, nest, schedule in zip(("parts", "join"), (first, second), kernel.schedules, strict=True):
        assert isinstance(schedule, GpuSchedule), "the kernel is scheduled for a CPU"
        facts.append(NestAnalysis(nest, schedule, dtypes, frozenset(stored) if schedule.last_block else frozenset()))
        facts[-1].check()
        text = Text()
        text.add("@triton.jit")
        text.open(f"def {kernel.name}_{suffix}({', '.join([*parameters, 'pid'])}):")
        text.add(f'"""{_describe(facts[-1])}"""')
        _indices(facts[-1], text, False)
        NestWriter(facts[-1], text).run()
        parts.append(text)
    parts.append(write_last_block(kernel.name, parameters, *facts))
    body, one = "\n\n\n".join("\n".join(part.lines) for part in parts), as_expr(1)
    schedules = [s for s in kernel.schedules if isinstance(s, GpuSchedule)]
    return TritonSource(
        kernel.name,
        f"{_head(body)}\n\n\n{body}\n",
        (*parameters, "w0"),
        (*types, "*i32"),
        (*dtypes, *kernel.sizes),
        max(s.warps for s in schedules),
        max(s.stages for s in schedules),
        (as_expr(programs_of(facts[0])), one, one),
        ((as_expr(4 * programs_of(facts[1])), True),),
    )


def _product(
    kernel: Kernel, dtypes: dict[str, str], parameters: list[str], types: list[str], target: Target
) -> TritonSource:
    """The source of a product, and of the launch after it that adds up its sums over rows."""
    (nest,), (schedule,) = kernel.nests, kernel.schedules
    assert isinstance(schedule, GpuSchedule), "the kernel is scheduled for a CPU"
    facts = NestAnalysis(nest, schedule, dtypes)
    product, sums, one = Text(1), Text(1), as_expr(1)
    written = write_product(nest, schedule, dtypes, product, True)
    words = tuple(f"w{k}" for k in range(len(written.workspace)))
    given = (*parameters, *words)

    def text(name: str, about: str, part: Text) -> str:
        body = "\n".join(["@triton.jit", f"def {name}({', '.join(given)}):", f'    """{about}"""', *part.lines])
        return f"{_head(body)}\n\n\n{body}\n"

    aligned = (*dtypes, *kernel.sizes)
    made = TritonSource(
        kernel.name,
        text(kernel.name, _describe(facts), product),
        given,
        (*types, *("*fp32" for _ in words)),
        aligned,
        schedule.warps,
        schedule.stages,
        (written.programs, one, one),
        tuple((nbytes, False) for nbytes in written.workspace),
        scratch=written.scratch,
        must_align=written.aligned,
        plain=_plain(kernel, target) if written.scratch else None,
    )
    if written.adding is None:
        return made
    write_sums(nest, schedule, dtypes, sums)
    name = f"{kernel.name}_sums"
    about = text(name, "Sums over the rows of all tiles.", sums)
    grid = (written.adding, one, one)
    then = TritonSource(name, about, given, made.types, aligned, 4, 1, grid, made.workspace)
    return replace(made, then=then)


def _plain(kernel: Kernel, target: Target) -> TritonSource:
    """The same kernel for addresses that descriptors cannot begin at."""
    (schedule,) = kernel.schedules
    assert isinstance(schedule, GpuSchedule)
    plain = replace(schedule, descriptors=False, flat=False, specialized=False)
    return emit(replace(kernel, name=f"{kernel.name}_anywhere", schedules=(plain,)), target)


def _together(kernel: Kernel, same: Grouped, dtypes: dict[str, str], types: list[str]) -> TritonSource:
    """The source of a launch over nests of one form."""
    schedule = kernel.schedules[0]
    assert isinstance(schedule, GpuSchedule), "the kernel is scheduled for a CPU"
    own = {f"b{k}": dtypes[b] for k, b in enumerate(same.buffers[0])}
    facts = NestAnalysis(same.nest, schedule, own)
    facts.check()
    name = f"{kernel.name}_one"
    sizes = ["s0"] if same.lengths[0] is not None else []
    text = Text()
    text.add("@triton.jit")
    text.open(f"def {name}({', '.join([*own, *sizes, 'pid'])}):")
    text.add(f'"""{_describe(facts)}"""')
    _indices(facts, text, False)
    NestWriter(facts, text).run()
    counts = programs(same, schedule)
    picks = dispatch(kernel.name, name, [*dtypes, *kernel.sizes], same, counts)
    body = "\n\n\n".join("\n".join(part.lines) for part in (text, picks))
    one = as_expr(1)
    return TritonSource(
        kernel.name,
        f"{_head(body)}\n\n\n{body}\n",
        (*dtypes, *kernel.sizes),
        tuple(types),
        (*dtypes, *kernel.sizes),
        schedule.warps,
        schedule.stages,
        (as_expr(sum(counts)), one, one),
    )


def _head(body: str) -> str:
    lines = ["import triton", "import triton.language as tl"]
    imports = [f"from lamina.runtime.{module} import {', '.join(names)}" for module, names in helpers_in(body).items()]
    if imports:
        lines += ["", *imports]
    return "\n".join(lines)


def _describe(facts: NestAnalysis) -> str:
    parts = []
    for block, extent in zip(facts.blocks, facts.extents, strict=True):
        sign = {"grid": "shared", "cluster": "a cluster's", "loop": "looped", "whole": "whole"}[block.role]
        parts.append(f"{', '.join(block.axes)} < {size_text(extent)} {sign} by {block.size}")
    cluster = f", a cluster of {facts.schedule.cluster} programs" if facts.schedule.cluster else ""
    return f"{facts.schedule.kind}: {'; '.join(parts) or 'a single point'}{cluster}."


def _indices(facts: NestAnalysis, text: Text, alone: bool) -> None:
    """The indices of the blocks that programs share, from the program's number, and of those held whole."""
    shared = [k for k, block in enumerate(facts.blocks) if block.role in ("grid", "cluster")]
    if alone and (shared or facts.shared_loop is not None):
        text.add("pid = tl.program_id(0)")
    rest = "pid"
    if facts.shared_loop is not None:
        line = facts.lines[facts.shared_loop]
        text.add(f"{line}_pid = pid % {facts.schedule.cluster}")
        text.add(f"cluster = pid // {facts.schedule.cluster}")
        rest = "cluster"
    for position, k in enumerate(reversed(shared)):
        line, block, count = facts.lines[k], facts.blocks[k], facts.pieces(k)
        last = position == len(shared) - 1
        name = f"{line}_pid"
        if count == 1:
            text.add(f"{name} = tl.full((), 0, tl.int32)")
        elif last:
            text.add(f"{name} = {rest}")
        else:
            whole = size_text(count)
            divisor = whole if whole.isdigit() else f"({whole})"
            text.add(f"{name} = {rest} % {divisor}")
            text.add(f"{line}_rest = {rest} // {divisor}")
            rest = f"{line}_rest"
        if block.role == "cluster":
            continue
        start = f"{name}.to(tl.int64)" if facts.wide[k] else name
        if facts.part == "rest":
            text.extend(facts.line_text(k, size_text(facts.extents[k] // GROUP * GROUP)))
        elif block.size > 1:
            text.extend(facts.line_text(k, f"{start} * {block.size}"))
        else:
            text.extend(facts.line_text(k, start))
    for k, block in enumerate(facts.blocks):
        if block.role == "whole":
            text.extend(facts.line_text(k, ""))
    if facts.cluster is not None:
        text.extend(cluster_lines(facts, facts.cluster))


def _dispatch(name: str, parameters: list[str], grids: list[Expr]) -> Text:
    """The function that hands programs to the nests of a group."""
    text = Text()
    text.add("@triton.jit")
    text.open(f"def {name}({', '.join(parameters)}):")
    text.add("pid = tl.program_id(0)")
    begin = as_expr(0)
    for number, grid in enumerate(grids):
        start = size_text(begin)
        own = "pid" if begin == 0 else f"pid - ({start})"
        call = f"{name}_{number}({', '.join([*parameters, own])})"
        begin = begin + grid
        head = "if" if number == 0 else "elif"
        text.open(f"{head} pid < {size_text(begin)}:" if number < len(grids) - 1 else "else:")
        text.add(call)
        text.close()
    return text
