"""Where a tensor has the words that tell its dtype, sizes, strides, dispatch and gradient: found by experiments."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from lamina.capture.own.guards.torch_private import HAS_MKLDNN, address_of, negative

__all__ = ["MOST_LEAF", "MOST_WORDS", "WORD", "TensorLayout", "in_used_memory", "tensor_layout"]

WORD = 8
"""Bytes."""
MOST_WORDS = 32
"""Words of a tensor that are looked at, as the machine's source has it."""
MOST_LEAF = 4
"""Words that tell a leaf, likewise."""
_TWINS = 12
"""Tensors of each kind that are compared: what is next to them in memory is alike by chance in a few of them."""
_MOST_SIZES = 8
"""Numbers of dimensions that are tried."""


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """``under``: bytes from a tensor's object to the address of the tensor; ``bits``: which bits of the
    tensor's words tell its looks; ``dimensions``: the word with their number, above ``most`` sizes lie elsewhere;
    ``autograd``: the word with the address of what autograd keeps, whose first word is ``kind``; there ``asks`` is the
    byte that says whether a gradient is asked for, and the words at ``leaf`` bytes are null for leaves.
    """

    under: int
    bits: tuple[int, ...]
    dimensions: int
    most: int
    autograd: int
    kind: int
    asks: int
    leaf: tuple[int, ...]


class _NotFound(Exception):
    """An experiment did not find what it looked for."""


def tensor_layout() -> TensorLayout | None:
    """What experiments find; None if one of them does not find what it looks for."""
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.device("cpu"):
            return _found()
    except (_NotFound, RuntimeError, NotImplementedError, TypeError, OSError, AttributeError):
        return None


def _one(found: list[int]) -> int:
    if len(found) != 1:
        raise _NotFound
    return found[0]


def _some(found: list[int]) -> list[int]:
    if not found:
        raise _NotFound
    return found


def _stable_bits(words: list[int]) -> int:
    """The bytes that are the same in all words, as a mask; what is not used of a word has any value.

    Nothing of an address, told by its two lowest bytes: the others are alike only while all lie close together.
    """
    differing = 0
    for word in words:
        differing |= word ^ words[0]
    if differing & 0xFF and differing & 0xFF00:
        return 0
    kept = [0 if differing >> 8 * at & 0xFF else 0xFF for at in range(WORD)]
    return int.from_bytes(bytes(kept), sys.byteorder, signed=True)


def _read(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address))


def _usable(address: int) -> int:
    """Bytes of the memory that was allocated at ``address``."""
    measure = ctypes.CDLL(None).malloc_usable_size
    measure.argtypes, measure.restype = (ctypes.c_void_p,), ctypes.c_size_t
    return int(measure(address))


def _words(tensor: torch.Tensor) -> list[int]:
    address = address_of(tensor)
    return _read(address, min(_usable(address) // WORD, MOST_WORDS))


def in_used_memory(content: int, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The tensor that ``make`` gives, in memory of which each byte was ``content``: what nobody sets of a tensor's
    words is what was there before, in a young process often zero.
    """
    heap = ctypes.CDLL(None)
    heap.malloc.argtypes, heap.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
    heap.free.argtypes = (ctypes.c_void_p,)
    size = _usable(address_of(torch.empty(2, 3)))
    blocks = [heap.malloc(size) for _ in range(2 * _TWINS)]
    for block in blocks:
        ctypes.memset(block, content, size)
    for block in blocks:
        heap.free(block)
    return make()


def _found() -> TensorLayout:
    plain, asking, computed = [], [], []
    for number in range(_TWINS):
        content, make = (0, 0xFF, 0x5A)[number // 4 % 3], partial(_plain, number % 4)
        plain.append(in_used_memory(content, make))
        asking.append(in_used_memory(content, make).requires_grad_())
        computed.append(in_used_memory(content, partial(torch.mul, asking[-1], 2)))
    twins = [*plain, *asking, *computed]
    rows = [_words(tensor) for tensor in twins]
    width = min(map(len, rows))
    base, bits = rows[0], [_stable_bits([row[place] for row in rows]) for place in range(width)]
    last = 0
    variants = [_words(variant) for variant in _variants()]
    for row in variants:
        differing = [place for place in range(min(width, len(row))) if (row[place] ^ base[place]) & bits[place]]
        last = max(last, *_some(differing))
    mask = tuple(place for place in range(last + 1) if bits[place])
    first, second = torch.empty(2, 3, dtype=torch.complex64), torch.empty(2, 3, dtype=torch.complex64).conj()
    one, other = _words(first), _words(second)
    _some([place for place in mask if (one[place] ^ other[place]) & bits[place]])
    dimensions, most = _dimensions(mask)
    autograd = _one([
        place for place in range(last)
        if not any(row[place] for row in rows[:_TWINS]) and all(row[place] for row in rows[_TWINS:])
    ])  # fmt: skip
    kind, asks, leaf = _autograd(autograd, asking, computed)
    under = _one([place for place in range(0, torch.Tensor.__basicsize__, WORD) if all(
        _read(id(tensor) + place, 1)[0] == address_of(tensor) for tensor in twins
    )])  # fmt: skip
    return TensorLayout(under, tuple(bits[: last + 1]), dimensions, most, autograd, kind, asks, leaf)


_held: list[torch.Tensor] = []
"""Views of tensors of an experiment, which count as references to them."""


def _plain(number: int) -> torch.Tensor:
    """Tensors that differ in what must not matter: values, memory, versions, references, attributes."""
    made = torch.empty(2, 3)
    for _ in range(number):
        made.zero_()
    if number == 1:
        _held[:] = [made.view(6)]
    if number == 2:
        made.grad = torch.ones(2, 3)
        made.grad = None
        made = torch.ones(5, 2, 3).sum(0)
    if number == 3:
        made.label = "named"  # type: ignore[attr-defined]
    return made


def _variants() -> Iterator[torch.Tensor]:
    """Tensors each of which differs from the plain ones in one property that a look tells."""
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool, torch.complex64):
        yield torch.empty(2, 3, dtype=dtype)
    for sizes in ((3, 2), (2, 4), (3, 3), (6,), (), (2, 3, 1), (1, 2, 3), (2, 3, 1, 1, 1), (1,) * 6, (0, 3), (2, 0)):
        yield torch.empty(sizes)
    memory = torch.empty(40)
    for strides, offset in (((1, 2), 0), ((4, 1), 0), ((3, 2), 0), ((3, 1), 1), ((3, 1), 2), ((0, 1), 0), ((3, 0), 0)):
        yield memory.as_strided((2, 3), strides, offset)
    yield torch.empty(2, 3, device="meta")
    yield torch.empty(2, 3).to_sparse()
    if HAS_MKLDNN:
        yield torch.empty(2, 3).to_mkldnn()
    yield negative(torch.empty(2, 3))
    with torch.inference_mode():
        yield torch.empty(2, 3)

    def inside(tensor: torch.Tensor) -> torch.Tensor:
        _held.append(tensor)
        return tensor

    torch.func.vmap(inside)(torch.empty(4, 2, 3))
    with contextlib.suppress(IndexError):
        yield _held.pop()


def _dimensions(mask: tuple[int, ...]) -> tuple[int, int]:
    """The word with the number of dimensions, and up to which number sizes and strides are words of the tensor."""
    shaped = [torch.empty([101 + at for at in range(count)], device="meta") for count in range(_MOST_SIZES)]
    rows = [_words(tensor) for tensor in shaped]
    dimensions = _one([place for place in mask if all(row[place] == count for count, row in enumerate(rows))])
    most = -1
    for count, (tensor, row) in enumerate(zip(shaped, rows, strict=True)):
        held = {row[place] for place in mask}
        if not held.issuperset((*tensor.shape, *tensor.stride())):
            break
        most = count
    if most < 1:
        raise _NotFound
    return dimensions, most


def _autograd(place: int, asking: list[torch.Tensor], computed: list[torch.Tensor]) -> tuple[int, int, tuple[int, ...]]:
    """What autograd keeps of tensors: its kind, the byte that asks for a gradient, the words that tell leaves."""

    def kept(tensor: torch.Tensor) -> tuple[int, int]:
        address = _words(tensor)[place]
        return address, _usable(address)

    kinds = {_read(kept(tensor)[0], 1)[0] for tensor in (*asking, *computed)}
    view = asking[0].view(6)
    kind = _one(list(kinds))
    if _read(kept(view)[0], 1)[0] == kind:
        raise _NotFound
    size = min(kept(tensor)[1] for tensor in (*asking, *computed))

    def memory(tensor: torch.Tensor) -> bytes:
        return ctypes.string_at(kept(tensor)[0], size)

    probed = torch.empty(2, 3).requires_grad_()
    yes = memory(probed)
    no = memory(probed.requires_grad_(False))
    again = memory(probed.requires_grad_())
    asks = _one([at for at in range(size) if (yes[at], no[at], again[at]) == (1, 0, 1)])
    leaf = [
        at
        for at in range(WORD, size - WORD + 1, WORD)
        if not any(any(memory(tensor)[at : at + WORD]) for tensor in asking)
        and all(any(memory(tensor)[at : at + WORD]) for tensor in computed)
    ]
    if not leaf or len(leaf) > MOST_LEAF:
        raise _NotFound
    detached = (probed * 2).detach_()
    if any(any(memory(detached)[at : at + WORD]) for at in leaf):
        raise _NotFound
    return kind, asks, tuple(leaf)
