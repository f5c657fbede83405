"""What a kernel is before it is built (a unit of source) and after (something to launch)."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from lamina.errors import BadArgument, LaminaError
from lamina.runtime.cache import digest

__all__ = [
    "ABI",
    "ABOUT",
    "SLOTS",
    "Kernel",
    "KernelError",
    "KernelFunction",
    "KernelUnit",
    "internal_source",
    "kernel_hash",
    "label",
    "meaning",
    "prelude_meaning",
    "source_unit",
    "symbol",
]

# A kernel takes one pointer to 8-byte slots: packing them in one call of struct.pack is two to five times
# cheaper than having ctypes convert each argument. A slot converts to the very type that the parameter has.
SLOTS = """\
struct lamina_slot {
  long long bits;
  template <class T> operator T*() const { return (T*)bits; }
  operator long long() const { return bits; }
  operator unsigned long long() const { return (unsigned long long)bits; }
  operator long() const { return (long)bits; }
  operator unsigned long() const { return (unsigned long)bits; }
  operator int() const { return (int)bits; }
  operator bool() const { return bits != 0; }
  operator double() const { double value; __builtin_memcpy(&value, &bits, 8); return value; }
  operator float() const { double value; __builtin_memcpy(&value, &bits, 8); return (float)value; }
};
"""
ABOUT = "// kernel "
"""How the first line of a kernel's file begins; JSON follows."""
_COMPILED_BY = "c++ -std=c++17 -O3 -march=native -fopenmp -fwrapv -ffp-contract=fast -c"
ABI = "2"
"""The number of the way in which host programs call kernels: objects of another one are not used."""
_FORMATS = {"p": "P", "q": "q", "d": "d"}


class KernelError(LaminaError):
    """A kernel that could not be compiled or loaded; ``what`` holds the compiler's message."""

    code = "LM031"


@dataclass(frozen=True, slots=True)
class KernelFunction:
    """One function of a unit that host programs call: its name in the source, and a letter for each parameter.

    ``p`` is a pointer (an address, 0 for null), ``q`` an integer of 64 bits or fewer, ``d`` a double or float.
    A ``checked`` function returns an integer, which its launch gives back; the launch of any other gives 0.
    """

    name: str
    parameters: str
    checked: bool = False

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or not set(self.parameters) <= set(_FORMATS):
            raise BadArgument(f"no kernel function can be {self.name!r} with parameters {self.parameters!r}")


@dataclass(frozen=True, slots=True)
class KernelUnit:
    """The source of one kernel.

    ``name`` is what the caller calls it, and no part of its identity: units that differ only in their name, the names
    of their functions or in ``//`` comments are compiled once. ``source`` defines the ``functions``, best as static
    ones; it is compiled inside a namespace of its own after ``prelude``, which stands at global scope and is shared by
    units that have the same text. ``flags`` are added to the compiler's. ``arguments``, no part of its identity either,
    are what its only function gets for its first parameters: integers, in front of what a host program gives.
    """

    name: str
    source: str
    functions: tuple[KernelFunction, ...]
    prelude: str = ""
    flags: tuple[str, ...] = ()
    arguments: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.arguments and not (
            len(self.functions) == 1 and self.functions[0].parameters.startswith("q" * len(self.arguments))
        ):
            raise BadArgument(
                f"kernel {self.name!r} has no one function that begins with {len(self.arguments)} integers"
            )

    def files(self) -> dict[str, str]:
        """The source as a file that compiles alone, its first line a comment with the rest; the prelude as a header."""
        functions = [[f.name, f.parameters, f.checked] for f in self.functions]
        about = {"name": self.name, "functions": functions, "flags": self.flags, "arguments": self.arguments}
        header = f"prelude_{digest(self.prelude)[:8]}.h"
        include = f'#include "{header}"\n'
        text = f"{ABOUT}{json.dumps(about)}\n// {_COMPILED_BY} {' '.join(self.flags)}\n{include}{self.source}"
        return {".cpp": text, f"/{header}": self.prelude}


class Kernel:
    """A loaded kernel function.

    A host program calls ``launch(pack(a.data_ptr(), ..., n))``, with both names bound beforehand;
    ``kernel(a.data_ptr(), ..., n)`` is the same and easier to read. Both give back the code of a checked function.
    The GIL is released while the kernel runs. Pointers are not checked. ``first`` are the function's first arguments,
    which callers do not give.
    """

    __slots__ = ("launch", "name", "pack", "parameters")

    def __init__(self, name: str, parameters: str, launch: Callable[[bytes], int], first: tuple[int, ...] = ()) -> None:
        self.name, self.parameters, self.launch = name, parameters[len(first) :], launch
        pack: Callable[..., bytes] = struct.Struct("@" + "".join(_FORMATS[p] for p in parameters)).pack
        self.pack = partial(pack, *first) if first else pack

    def __call__(self, *arguments: float) -> int:
        return self.launch(self.pack(*arguments))

    def __repr__(self) -> str:
        return f"Kernel({self.name!r}, {self.parameters!r})"


_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*')


def meaning(source: str, functions: Sequence[KernelFunction] = ()) -> str:
    """The source without what does not change its meaning: ``//`` comments, empty lines, the names of its functions."""
    text = _COMMENT.sub(lambda found: found[0] if found[0].startswith('"') else "", source)
    for i, function in enumerate(functions):
        text = re.sub(rf"\b{function.name}\b", f"@{i}", text)
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


@lru_cache(maxsize=16)
def prelude_meaning(prelude: str) -> str:
    """The prelude without what does not change its meaning: hundreds of kernels share one of two thousand lines."""
    return meaning(prelude)


def kernel_hash(unit: KernelUnit, flags: Sequence[str], machine: str) -> str:
    """The identity of a kernel's code: everything that decides it but the compiler."""
    functions = (f"{f.parameters} {f.checked}" for f in unit.functions)
    texts = (prelude_meaning(unit.prelude), meaning(unit.source, unit.functions))
    return digest("kernel", ABI, machine, *functions, "with", *flags, *unit.flags, "of", *texts)


def symbol(index: int, identity: str) -> str:
    """The exported name of a function, by its place among the functions of the kernel with this hash."""
    return f"lamina_{identity[:16]}_{index}"


def label(unit: KernelUnit, identity: str) -> str:
    """The file name under which the compiler reports a unit's lines."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', unit.name)}_{identity[:16]}"


def internal_source(unit: KernelUnit) -> str:
    """The source of a unit whose functions only their entries call: else compilers make a copy of each beside those."""
    text = unit.source
    for function in unit.functions:
        text = text.replace(f'extern "C" int64 {function.name}(', f"static int64 {function.name}(", 1)
    return text


def source_unit(kernels: Iterable[tuple[str, KernelUnit]]) -> str:
    """One C++ file that holds several kernels, given with their hashes; all have the same prelude."""
    parts: list[str] = []
    for identity, unit in kernels:
        if not parts:
            parts += ['#line 1 "lamina_slot"', SLOTS, '#line 1 "prelude"', unit.prelude]
        parts.append(f"namespace kernel_{identity[:16]} {{")
        # A name with C linkage is one and the same in every namespace.
        parts += [f"#define {f.name} {f.name}_{identity[:16]}" for f in unit.functions]
        parts += [f'#line 1 "{label(unit, identity)}"', internal_source(unit), '#line 1 "entry"']
        for index, function in enumerate(unit.functions):
            values = ", ".join(f"slots[{i}]" for i in range(len(function.parameters)))
            call = f"return {function.name}({values});" if function.checked else f"{function.name}({values}); return 0;"
            parts.append(f'extern "C" long long {symbol(index, identity)}(const lamina_slot* slots) {{ {call} }}')
        parts += [f"#undef {f.name}" for f in unit.functions]
        parts.append("}")
    return "\n".join(parts) + "\n"
