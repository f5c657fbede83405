"""A launch over nests that differ only in buffers and length: programs pick theirs, then all run one function.

The choice is a tree of comparisons with the program's number, seven deep for a hundred nests; what is known of each
pointer's alignment holds for the one that is picked, if it holds for all.
"""

from __future__ import annotations

from collections.abc import Sequence

from lamina.codegen.triton.text import Text
from lamina.ir.grouped import Grouped
from lamina.ir.plan import GpuSchedule

__all__ = ["dispatch", "programs"]


def programs(same: Grouped, schedule: GpuSchedule) -> list[int]:
    """Number of programs of each nest."""
    size = schedule.blocks[0].size if schedule.blocks else 1
    return [1 if n is None else -(-n // size) for n in same.lengths]


def dispatch(name: str, body: str, parameters: Sequence[str], same: Grouped, counts: Sequence[int]) -> Text:
    """The function ``name`` that hands programs to ``body``, a function of the nest's buffers, length and number."""
    text = Text()
    text.add("@triton.jit")
    text.open(f"def {name}({', '.join(parameters)}):")
    text.add("pid = tl.program_id(0)")
    own = [f"p{k}" for k in range(len(same.buffers[0]))]
    sized = ["length"] if same.lengths[0] is not None else []
    starts = [0]
    for count in counts:
        starts.append(starts[-1] + count)

    def choose(low: int, high: int) -> None:
        if high - low > 1:
            middle = (low + high) // 2
            text.open(f"if pid < {starts[middle]}:")
            choose(low, middle)
            text.close()
            text.open("else:")
            choose(middle, high)
            text.close()
            return
        text.extend(f"{p} = {b}" for p, b in zip(own, same.buffers[low], strict=True))
        if sized:
            text.add(f"length = {same.lengths[low]}")
        text.add(f"own = pid - {starts[low]}")

    choose(0, len(counts))
    text.add(f"{body}({', '.join([*own, *sized, 'own'])})")
    return text
