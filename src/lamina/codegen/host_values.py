"""How values appear in host programs: names, sizes, literals, tensors and addresses."""

from __future__ import annotations

import builtins
import keyword
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from lamina.base.dtypes import DTYPES
from lamina.base.text import literal, tuple_text
from lamina.ir.access import views
from lamina.ir.index import Atom, Expr, Size
from lamina.ir.loops import BufferView
from lamina.ir.plan import KernelCall, Place, Plan

__all__ = ["Names", "Values"]

_NOT_A_NAME = re.compile(r"\W")


class Names:
    """Python identifiers that are unique in a program and shadow nothing."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = {*taken, *keyword.kwlist, *dir(builtins)}
        self._count: Counter[str] = Counter()

    def fresh(self, wanted: str) -> str:
        """``wanted``, or the nearest identifier that is free."""
        name = stem = _NOT_A_NAME.sub("_", wanted) or "v"
        if stem[0].isdigit():
            name = stem = "v" + stem
        while name in self._taken:
            self._count[stem] += 1
            name = f"{stem}_{self._count[stem]}"
        self._taken.add(name)
        return name


ViewKey = tuple[str, tuple[Expr, ...], tuple[Expr, ...], Expr]


class Values:
    """Source texts for the buffers and sizes of one plan.

    Buffers of the arena are addresses (``base + offset``); a tensor over one is made only where a library call takes
    it, once for each workspace when its size is known and the workspace outlives the call (``keeps_workspace``).
    """

    def __init__(self, plan: Plan, names: Names, keeps_workspace: bool = True) -> None:
        self.plan, self.names, self.keeps_workspace = plan, names, keeps_workspace
        self.buffers = plan.buffer_map()
        self.places: dict[str, Place] = {p.buffer: p for p in plan.places}
        self.used_sizes: set[str] = set()
        self.cached: dict[ViewKey, str] = {}
        self.typed: dict[str, str] = {}
        self.uses_base = self.reinterprets = False
        self._sizes: dict[str, str] = {}
        self._locals: dict[str, str] = {}
        self._bound: dict[ViewKey, str] = {}
        self._pointers: dict[str, str] = {}
        self._pointer_uses: Counter[str] = Counter()
        self._view_uses: Counter[ViewKey] = Counter()
        for step in plan.steps:
            if isinstance(step, KernelCall):
                self._pointer_uses.update(step.buffers)
            else:
                self._view_uses.update(_key(v) for v in views(step))
        # What is returned twice is one object: autograd takes two for two gradients, each to be added to in its memory.
        self._view_uses.update(_key(out) for out in plan.outputs if isinstance(out, BufferView))

    # ---- names and sizes --------------------------------------------------------------------------------------

    def local(self, buffer: str) -> str:
        """The variable that holds the tensor of an input, output or library buffer."""
        found = self._locals.get(buffer)
        if found is None:
            found = self._locals[buffer] = self.names.fresh(buffer)
        return found

    def size_name(self, name: str) -> str:
        """The variable that holds a size."""
        found = self._sizes.get(name)
        if found is None:
            found = self._sizes[name] = self.names.fresh(name)
        return found

    def size(self, expr: Expr) -> str:
        """Source text of a run-time integer."""
        return str(expr.const) if expr.is_int else expr.text(self._atom)

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Size):
            self.used_sizes.add(atom.name)
            return self.size_name(atom.name)
        num, den = getattr(atom, "num", None), getattr(atom, "den", None)
        if num is None or den is None:
            raise TypeError(f"{atom} is not known outside kernels")
        sign = "//" if type(atom).__name__ == "Div" else "%"
        return f"(({num.text(self._atom)}) {sign} ({den.text(self._atom)}))"

    def dims(self, exprs: Iterable[Expr]) -> str:
        """A tuple of sizes."""
        return tuple_text(self.size(e) for e in exprs)

    # ---- tensors and addresses --------------------------------------------------------------------------------

    def whole(self, view: BufferView) -> bool:
        """Whether the window is its buffer, unchanged."""
        buffer = self.buffers[view.buffer]
        return view.shape == buffer.shape and view.offset == 0 and _same_strides(view, buffer.strides)

    def tensor(self, view: BufferView, emit: Callable[[str], None]) -> str:
        """An expression for the tensor of a window; lines it needs before go through ``emit``."""
        place = self.places[view.buffer]
        if place.where == "arena":
            return self._arena_tensor(view, place, emit)
        base = self.local(view.buffer)
        if self.whole(view):
            return base
        key = _key(view)
        found = self._bound.get(key)
        if found is not None:
            return found
        shape, strides, offset = self.dims(view.shape), self.dims(view.strides), self.size(view.offset)
        self.reinterprets = True
        text = f"reinterpret({base}, {shape}, {strides}, {offset})"
        if self._view_uses[key] < 2:
            return text
        name = self._bound[key] = self.names.fresh(f"{base}_view")
        emit(f"{name} = {text}")
        return name

    def bound(self, buffer: str) -> list[str]:
        """Variables that hold windows onto a buffer and so keep its memory alive."""
        return [name for key, name in self._bound.items() if key[0] == buffer]

    def _arena_tensor(self, view: BufferView, place: Place, emit: Callable[[str], None]) -> str:
        key = _key(view)
        found = self.cached.get(key) or self._bound.get(key)
        if found is not None:
            return found
        assert place.offset is not None
        static = self.keeps_workspace and place.offset.is_int
        static = static and all(e.is_int for e in (*view.shape, *view.strides, view.offset))
        name = self.names.fresh(view.buffer)
        if static:
            self.cached[key] = name
        else:
            self._bound[key] = name
            dtype = self.buffers[view.buffer].dtype
            base = self.typed.get(dtype)
            if base is None:
                base = self.typed[dtype] = self.names.fresh(f"arena_{dtype}")
            start = place.offset // DTYPES[dtype].size + view.offset
            self.reinterprets = True
            shape, strides = self.dims(view.shape), self.dims(view.strides)
            emit(f"{name} = reinterpret({base}, {shape}, {strides}, {self.size(start)})")
        return name

    def arena_window(self, key: ViewKey) -> str:
        """Byte offset, shape and strides of a window onto a buffer of the arena."""
        buffer, shape, strides, offset = key
        start = self.places[buffer].offset
        assert start is not None
        item = DTYPES[self.buffers[buffer].dtype].size
        return f"{self.size(start + offset * item)}, {self.dims(shape)}, {self.dims(strides)}"

    def fixed(self, buffer: str) -> bool:
        """Whether the buffer's address follows from the workspace's alone."""
        offset = self.places[buffer].offset
        return self.places[buffer].where == "arena" and offset is not None and offset.is_int

    def address(self, buffer: str, emit: Callable[[str], None], held: bool = False) -> str:
        """An expression for the address of a buffer's first element; ``held``: computed once for each workspace."""
        place = self.places[buffer]
        if place.where == "arena":
            self.uses_base = self.uses_base or not held
            assert place.offset is not None
            return "base" if place.offset == 0 else f"base + {self.size(place.offset)}"
        found = self._pointers.get(buffer)
        if found is not None:
            return found
        text = f"{self.local(buffer)}.data_ptr()"
        if self._pointer_uses[buffer] < 2:
            return text
        name = self.pointer(buffer)
        emit(f"{name} = {text}")
        return name

    def pointer(self, buffer: str) -> str:
        """The variable that holds the buffer's address from now on; the caller sees to it that it does."""
        found = self._pointers.get(buffer)
        if found is None:
            found = self._pointers[buffer] = self.names.fresh(f"{self.local(buffer)}_ptr")
        return found

    def argument(self, value: Any, emit: Callable[[str], None]) -> str:
        """Source text of a library call's argument."""
        if isinstance(value, BufferView):
            return self.tensor(value, emit)
        if isinstance(value, Expr):
            return self.size(value)
        if isinstance(value, tuple | list):
            return f"[{', '.join(self.argument(v, emit) for v in value)}]"
        return literal(value)


def _key(view: BufferView) -> ViewKey:
    return (view.buffer, view.shape, view.strides, view.offset)


def _same_strides(view: BufferView, strides: tuple[Expr, ...]) -> bool:
    """Whether the strides are those of the window, but for sizes of one. Where images have one channel, its stride
    tells libraries whether channels are innermost.
    """
    if len(strides) == 4 and view.shape[1] == 1 and view.strides[1] == 1 and strides[1] != 1:
        return False
    return all(a == b or n == 1 for a, b, n in zip(view.strides, strides, view.shape, strict=True))
