"""What there is to know of a GPU kernel before it is timed: the bytes it must move, and values that it may be fed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch

from lamina.base.dtypes import DTYPES, torch_dtype
from lamina.base.target import Target
from lamina.ir.index import Expr, Loaded, Size
from lamina.ir.loops import Buffer, Load, Nest, Store, axes_of_values, storage_bytes
from lamina.ir.plan import KernelCall
from lamina.ir.predicated import predicated_branches
from lamina.schedule.gpu_facts import NestFacts
from lamina.schedule.gpu_work import executed
from lamina.tuning.checked_values import checks_hold, places_hold

__all__ = ["axis_lengths", "label_of", "memory", "moved_bytes", "sizes_known", "unscheduled_us", "untimeable"]


def sizes_known(call: KernelCall, buffers: Mapping[str, Buffer]) -> bool:
    """Whether everything about the launch is a number now."""
    return all(e.is_int for e in call.sizes) and all(
        e.is_int for name in call.buffers for e in (*buffers[name].shape, *buffers[name].strides)
    )


def untimeable(nests: Sequence[Nest], calls: Sequence[KernelCall]) -> str:
    """Why a kernel of these nests, with these launches, must not be run on made-up values, "" if it may.

    A failed check and a place outside of a buffer stop the GPU for the whole program, so there must be none for what
    ``memory`` fills in.
    """
    highest = _highest(nests)
    for given in dict.fromkeys(call.sizes for call in calls):  # most often all have the same
        sizes = {f"s{k}": e.const for k, e in enumerate(given)}
        if not all(checks_hold(nest, highest, sizes) for nest in nests):
            return "it checks values that cannot be made up"
        if not all(places_hold(nest, highest, sizes) for nest in nests):
            return "it reads or writes at places that cannot be made up"
    return ""


def moved_bytes(
    nests: Sequence[Nest], call: KernelCall, dtypes: Mapping[str, str], buffers: Mapping[str, Buffer]
) -> int:
    """The fewest bytes that a launch reads and writes: each element touched once, for flat buffers ``b0, b1, ...``.

    What is loaded for a few rows only does not count.
    """
    return sum(_moved(nest, call, dtypes, buffers) for nest in nests)


def _moved(nest: Nest, call: KernelCall, dtypes: Mapping[str, str], buffers: Mapping[str, Buffer]) -> int:
    extent = axis_lengths(nest, call)
    over = axes_of_values(nest)
    touched: dict[tuple[str, bool], int] = {}
    predicated = {id(e) for branch in predicated_branches(nest) for e in branch.private}
    for eqn in nest.body:
        if not isinstance(eqn, Load | Store) or id(eqn) in predicated:
            continue
        names = set(eqn.index[0].axes())
        for atom in eqn.index[0].atoms():
            if isinstance(atom, Loaded):
                names |= over[atom.name]
        points = 1
        for name in names:
            points *= extent[name]
        key = eqn.buffer, isinstance(eqn, Store)
        whole = storage_bytes(buffers[call.buffers[int(eqn.buffer[1:])]]).const
        nbytes = points * DTYPES[dtypes[eqn.buffer]].size
        touched[key] = min(touched.get(key, 0) + nbytes, whole)
    return sum(touched.values())


def unscheduled_us(
    nest: Nest, dtypes: Mapping[str, str], target: Target, lengths: Mapping[str, int], bound: float
) -> float:
    """Microseconds that a GPU kernel of the nest should take, whatever its schedule: those of its bytes and those of
    its instructions. What a schedule is expected to take, ``schedule.cost`` says.
    """
    points = prod(lengths.values())
    return bound + executed(NestFacts(nest, dtypes, target).instructions * points) / (1e3 * target.copy_gbs)


def axis_lengths(nest: Nest, call: KernelCall) -> dict[str, int]:
    """Points along each axis of the nest in this launch."""
    sizes = {f"s{k}": e.const for k, e in enumerate(call.sizes)}
    return {a.name: _number(a.extent, sizes) for a in nest.axes}


def memory(
    call: KernelCall, nests: Sequence[Nest], buffers: Mapping[str, Buffer], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Scratch tensors for every buffer of a launch, by name: small random floats, integers that are valid indices.

    Integers are zero unless indices may be more, and so are rows that digests vouch for: the digest of zeros is zero,
    and nothing is computed again. ``generator`` gives the device too. Raises ``torch.OutOfMemoryError``.
    """
    highest = _highest(nests)
    made = {name: _filled(buffers[name], highest, generator) for name in dict.fromkeys(call.buffers)}
    for nest in nests:
        usual = {branch.choice.ins[1] for branch in predicated_branches(nest)}
        for eqn in nest.body:
            if isinstance(eqn, Load) and eqn.out in usual:
                made[call.buffers[int(eqn.buffer[1:])]].zero_()
    return made


def label_of(schedule: object) -> str:
    """A short text that tells a GPU schedule from others of one nest."""
    blocks = getattr(schedule, "blocks", ())
    parts = [getattr(schedule, "kind", ""), *(f"{'.'.join(b.axes)}:{b.size}{b.role[0]}" for b in blocks)]
    for name, letter in (("warps", "w"), ("stages", "s"), ("peel", "p")):
        parts.append(f"{letter}{getattr(schedule, name, 0)}")
    for name in ("persistent", "epilogue_subtiles", "cluster"):
        if getattr(schedule, name, 0) > (name == "epilogue_subtiles"):
            parts.append(f"{name}{getattr(schedule, name)}")
    parts += [
        name for name in ("descriptors", "flat", "register_resident", "specialized") if getattr(schedule, name, False)
    ]
    return " ".join(parts)


def _highest(nests: Sequence[Nest]) -> int:
    """The end of the range of integers that are made up: all of them are valid indices of whatever is indexed."""
    bounds = [a.bound for nest in nests for a in _indices(nest)]
    return max(min((bound.const for bound in bounds if bound.is_int), default=1), 1)


def _indices(nest: Nest) -> list[Loaded]:
    return [a for e in nest.body if isinstance(e, Load | Store) for a in e.index[0].atoms() if isinstance(a, Loaded)]


def _number(expr: Expr, sizes: Mapping[str, int]) -> int:
    return expr.substitute({a: sizes[a.name] for a in expr.atoms() if isinstance(a, Size)}).const


def _filled(buffer: Buffer, highest: int, generator: torch.Generator) -> torch.Tensor:
    shape, strides = [n.const for n in buffer.shape], [n.const for n in buffer.strides]
    dtype, about = torch_dtype(buffer.dtype), DTYPES[buffer.dtype]
    flat = torch.empty(storage_bytes(buffer).const // about.size, dtype=dtype, device=generator.device)
    if about.kind == "complex":
        torch.view_as_real(flat).uniform_(-1, 1, generator=generator)
    elif about.is_float and about.size > 1:
        flat.uniform_(-1, 1, generator=generator)
    elif about.is_float:
        # Bytes that stand for small positive numbers in every format of eight bits.
        flat.view(torch.uint8).random_(0, 56, generator=generator)
    elif about.kind == "bool":
        flat.view(torch.uint8).random_(0, 2, generator=generator)
    elif about.size > 1 and dtype in (torch.uint16, torch.uint32, torch.uint64):
        flat.zero_()
    else:
        most = min(highest, torch.iinfo(dtype).max)
        flat.random_(0, most, generator=generator)
    return flat.as_strided(shape, strides)
