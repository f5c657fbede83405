"""A launch whose last program for a result joins what all programs left of it.

Each program of the first nest counts itself, in zero memory, under the number of the second nest's program that its
parts belong to. The counting releases what the program stored and acquires what the others did; the one that completes
the number runs the second nest, and sets the count back to zero for the next launch.
"""

from __future__ import annotations

from lamina.codegen.triton.nest_analysis import NestAnalysis
from lamina.codegen.triton.source import UnsupportedKernel
from lamina.codegen.triton.text import Text
from lamina.ir.last_block import paired_axes

__all__ = ["programs_of", "write_last_block"]


def write_last_block(name: str, parameters: list[str], first: NestAnalysis, second: NestAnalysis) -> Text:
    """The function ``name``, which calls ``<name>_parts`` and ``<name>_join`` with a program's number at the end."""
    text = Text()
    text.add("@triton.jit")
    text.open(f"def {name}({', '.join([*parameters, 'w0'])}):")
    text.add("pid = tl.program_id(0)")
    text.add(f"{name}_parts({', '.join([*parameters, 'pid'])})")
    members, over = divmod(programs_of(first), programs_of(second))
    if over:
        raise UnsupportedKernel("results that different numbers of programs work on")
    _numbers(first, text)
    result = _result(first, second)
    text.add(f"result = {result}")
    text.add("tl.debug_barrier()  # all of the program's stores come before it is counted")
    text.open(f'if tl.atomic_add(w0 + result, 1, sem="acq_rel", scope="gpu") == {members - 1}:')
    text.add(f"{name}_join({', '.join([*parameters, 'result'])})")
    text.add("tl.store(w0 + result, 0)")
    text.close()
    return text


def _shared(facts: NestAnalysis) -> list[int]:
    return [k for k, block in enumerate(facts.blocks) if block.role == "grid"]


def _count(facts: NestAnalysis, k: int) -> int:
    pieces = facts.pieces(k)
    if not pieces.is_int:
        raise UnsupportedKernel("parts joined in the same launch, of unknown number")
    return pieces.const


def programs_of(facts: NestAnalysis) -> int:
    """Programs of a nest of such a launch. Those of the second are its results, each of which has a counter."""
    total = 1
    for k in _shared(facts):
        total *= _count(facts, k)
    return total


def _numbers(facts: NestAnalysis, text: Text) -> None:
    """The program's place along each block that programs share."""
    step = 1
    for k in reversed(_shared(facts)):
        count = _count(facts, k)
        text.add(f"{facts.lines[k]}_pid = {_digit('pid', step, count)}")
        step *= count


def _digit(number: str, step: int, count: int) -> str:
    given = number if step == 1 else f"{number} // {step}"
    return f"{given} % {count}"


def _result(first: NestAnalysis, second: NestAnalysis) -> str:
    """The number of the second nest's program that a program of the first works for."""
    pairs = paired_axes(first.nest, second.nest)
    if pairs is None:
        raise UnsupportedKernel("a second nest whose axes are not those of the first one's results")
    terms: list[str] = []
    step = 1
    for j in reversed(_shared(second)):
        (axis,) = second.blocks[j].axes
        own = 1
        names = list(pairs[axis])
        while names:
            k = first.block_of[names[-1]]
            block, line = first.blocks[k], f"{first.lines[k]}_pid"
            if block.size > 1:
                if block.size != second.blocks[j].size:
                    raise UnsupportedKernel("tiles of results that differ between two nests of one launch")
                number, count = line, _count(first, k)
                names = names[: -len(block.axes)]
            else:
                at = block.axes.index(names.pop())
                inner = 1
                for later in block.axes[at + 1 :]:
                    inner *= first.axes[later].extent.const
                count = first.axes[block.axes[at]].extent.const
                number = _digit(line, inner, count) if len(block.axes) > 1 else line
            terms.append(f"({number}) * {step * own}" if step * own > 1 else f"({number})")
            own *= count
        step *= own
    return " + ".join(reversed(terms)) if terms else "pid * 0"
