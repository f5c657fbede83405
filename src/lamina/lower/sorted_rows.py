"""Keys that integers compare for elements that are sorted, and the elements of a short row in order: a sorting network.

What comes first is the same as in a stable sort: NaN is the greatest of floats, zeros are equal whatever their signs,
and equal elements stay in order. Each key holds the element's place behind its bits, so that no two are equal, and a
comparison is a minimum and a maximum: of 32 bits for elements of 8 and 16, of 64 bits for elements of 32. An element of
64 bits has its place in a second number.

All NaN come back as the one positive quiet NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lamina.base.dtypes import DTYPES
from lamina.lower.builder import NestBuilder, Value
from lamina.lower.sorting_network import comparators

__all__ = ["LONGEST", "MOST", "Key", "Keys", "SortedRow"]

LONGEST = 32
"""Elements of a row at most."""

MOST = LONGEST * LONGEST
"""Elements at most of a row that a program of a GPU sorts in a tile."""
_FEW = -int(torch.finfo(torch.float16).eps / torch.finfo(torch.float32).eps)
"""The bits of a float32 that a number of float16 or bfloat16 may have set."""
_QUIET = {"int32": 0x7FC00000, "int64": 0x7FF8000000000000}
"""The quiet NaN, greater than all other floats as an integer."""


@dataclass(frozen=True, slots=True)
class Key:
    """An element as integers: those of no other are equal. ``tag`` is the place of one whose ``bits`` leave no room."""

    bits: Value
    tag: Value | None = None


class SortedRow:
    """The elements of one row, all of one dtype, in order.

    ``places``: where they were can be asked for. ``ties``: so that equal floats, zeros of both signs, stay in order;
    without both, keys are as narrow as the elements.
    """

    def __init__(self, b: NestBuilder, row: Sequence[Value], descending: bool, places: bool, ties: bool) -> None:
        self.b, self.given = b, row
        self.coded = Keys(b, row[0].dtype, LONGEST, descending, places, ties)
        keys = [self.coded.key(element, k) for k, element in enumerate(row)]
        for i, j in comparators(len(row)):
            keys[i], keys[j] = self._in_order(keys[i], keys[j])
        self.keys = keys if self.coded.tagged or not descending else keys[::-1]

    @property
    def is_float(self) -> bool:
        """Whether elements may be NaN."""
        return self.coded.is_float

    @property
    def tagged(self) -> bool:
        """Whether places are known."""
        return self.coded.tagged

    def value(self, rank: int) -> Value:
        """The element that comes at ``rank``, in the dtype of the row or, of a half type, in float32."""
        return self.coded.value(self.keys[rank])

    def place(self, rank: int) -> Value:
        """Where in the row the element at ``rank`` was, as int64."""
        return self.coded.place(self.keys[rank])

    def _in_order(self, a: Key, c: Key) -> tuple[Key, Key]:
        if a.tag is None or c.tag is None:
            return Key(a.bits.op("minimum", c.bits)), Key(a.bits.op("maximum", c.bits))
        later = a.bits.equals(c.bits) & (c.tag < a.tag)
        turned = (c.bits < a.bits) | later
        pick = self.b.where
        return (
            Key(a.bits.op("minimum", c.bits), pick(turned, c.tag, a.tag)),
            Key(a.bits.op("maximum", c.bits), pick(turned, a.tag, c.tag)),
        )


class Keys:
    """Keys of the elements of rows of at most ``longest`` elements of ``dtype``, as ``SortedRow`` says.

    Keys without places come in rising order of the elements; with them, in the order asked for.
    """

    def __init__(self, b: NestBuilder, dtype: str, longest: int, descending: bool, places: bool, ties: bool) -> None:
        self.b, self.dtype, self.descending = b, dtype, descending
        self.is_float = DTYPES[dtype].is_float
        self.size = DTYPES[dtype].size
        self.tagged = places or (ties and self.is_float)
        self.place_bits = (longest - 1).bit_length()
        self.tag_bits = self.place_bits + 1  # behind the key of an integer: the place, and whether a zero is negative

    def value(self, key: Key) -> Value:
        """The element of a key, in its dtype or, of a half type, in float32."""
        return self._float(key) if self.is_float else self._integer(key)

    def place(self, key: Key) -> Value:
        """Where in the row the element of a key was, as int64."""
        narrow = (key.bits if key.tag is None else key.tag).to("int32")
        return narrow.op("shr", 1).op("bitwise_and", (1 << self.place_bits) - 1).to("int64")

    def key(self, element: Value, place: int | Value) -> Key:
        """The key of the element at ``place`` (an int32 where it is no number)."""
        bits, negative_zero = self._float_bits(element) if self.is_float else (self._integer_bits(element), None)
        if not self.tagged:
            return Key(bits)
        if self.descending:
            bits = bits.op("bitwise_xor", _FEW) if self._is_half() else bits.op("bitwise_not")
        wide = self.size >= 4
        twice = 2 * place if isinstance(place, int) else (place * 2).to("int64" if wide else "int32")
        tag = self.b.constant(twice, "int64" if wide else "int32") if isinstance(twice, int) else twice
        if negative_zero is not None:
            tag = self.b.where(negative_zero, twice + 1, tag)
        if self.size == 8:
            return Key(bits, tag)
        if self._is_half():
            return Key(bits.op("bitwise_or", tag))
        room = 32 if wide else self.tag_bits
        return Key(bits.to(tag.dtype).op("shl", room).op("bitwise_or", tag))

    def _is_half(self) -> bool:
        return self.is_float and self.size < 4

    def _masks(self) -> tuple[str, int]:
        """The integers that floats are compared as, and which bits of a negative one are turned over."""
        if self.size == 8:
            return "int64", 2**63 - 1
        return "int32", (2**31 - 1) & (_FEW if self._is_half() else -1)

    def _float_bits(self, element: Value) -> tuple[Value, Value | None]:
        """An integer that orders floats, zeros of both signs being 0 if keys are tagged, and which of them are -0.0."""
        kind, rest = self._masks()
        if self._is_half():
            element = element.op("maximum", element).to("float32")  # rounded, whatever computed it
        raw = element.op("bits")
        ordered = raw.op("bitwise_xor", raw.op("shr", 8 * DTYPES[kind].size - 1).op("bitwise_and", rest))
        negative_zero = None
        if self.tagged:
            negative_zero = raw.equals(-(2 ** (8 * DTYPES[kind].size - 1)))
            ordered = self.b.where(negative_zero, 0, ordered)
        return self.b.where(element.op("isnan"), _QUIET[kind], ordered), negative_zero

    def _integer_bits(self, element: Value) -> Value:
        """A signed integer that orders integers, with room for a tag if it has 32 bits."""
        if self.dtype == "uint64":
            return element.to("int64").op("bitwise_xor", -(2**63))
        if self.dtype == "uint32":
            return element.to("int64") - 2**31
        return element.to("int64" if self.size == 8 or (self.size == 4 and self.tagged) else "int32")

    # ---- what they hold -----------------------------------------------------------------------------------------

    def _float(self, key: Key) -> Value:
        kind, rest = self._masks()
        top = 8 * DTYPES[kind].size - 1
        bits = key.bits
        if self.tagged and self.size == 4:
            bits = bits.op("shr", 32).to("int32")
        if self.tagged and self._is_half():
            bits = bits.op("bitwise_and", _FEW)
        if self.tagged and self.descending:
            bits = bits.op("bitwise_xor", _FEW) if self._is_half() else bits.op("bitwise_not")
        raw = bits.op("bitwise_xor", bits.op("shr", top).op("bitwise_and", rest))
        if self.tagged:
            tag = (key.bits if key.tag is None else key.tag).to(kind)
            raw = raw.op("bitwise_or", tag.op("shl", top))
        return raw.op("from_bits")

    def _integer(self, key: Key) -> Value:
        bits = key.bits
        if self.tagged and self.size < 8:
            bits = bits.op("shr", 32 if self.size == 4 else self.tag_bits)
        if self.tagged and self.descending:
            bits = bits.op("bitwise_not")
        if self.dtype == "uint64":
            return bits.op("bitwise_xor", -(2**63)).to("uint64")
        return (bits + 2**31).to("uint32") if self.dtype == "uint32" else bits.to(self.dtype)
