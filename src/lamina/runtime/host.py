"""What a generated host program imports, and how its text becomes a function.

A host program is flat Python: memory, kernel launches and ATen calls in order. It calls nothing else of Lamina.
"""

from __future__ import annotations

import linecache
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from types import CodeType, FunctionType
from typing import Any

import torch

from lamina.errors import BadArgument
from lamina.runtime.arena import Arena, Workspace
from lamina.runtime.cache import digest
from lamina.runtime.kernel import Kernel
from lamina.runtime.outputs import empty, empty_large, empty_small, empty_temporary, only_owner
from lamina.runtime.torch_private import reinterpret

__all__ = [
    "Arena",
    "Kernel",
    "Workspace",
    "aten",
    "checkin",
    "checkout",
    "code_of",
    "empty",
    "empty_large",
    "empty_small",
    "empty_temporary",
    "load_program",
    "only_owner",
    "references",
    "reinterpret",
    "restride",
    "share_threads",
    "view",
]

view = torch.as_strided  # view(tensor, shape, strides, offset): the offset counts elements from the storage's start

_SHARED = Arena()
checkout = _SHARED.take  # checkout(nbytes): a workspace for one call
checkin = _SHARED.give  # checkin(workspace): at the end of the call

references = sys.getrefcount

# A thread that has not run an op of torch has OpenMP's default number of threads; asking torch sets torch's own.
# A host program calls this first (about 50 ns); its kernels then see torch.get_num_threads() threads.
share_threads = torch.get_num_threads


def restride(tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """``tensor`` with the given strides: for library results laid out otherwise than was planned.

    A copy, unless only dimensions of size one differ.
    """
    if all(a == b or n == 1 for a, b, n in zip(tensor.stride(), strides, shape, strict=True)):
        return tensor.as_strided(shape, strides)
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


@lru_cache(maxsize=4096)
def aten(name: str) -> Callable[..., Any]:
    """The op overload of that name: ``mm.default``, or with a namespace as in ``prims::sum.default``."""
    space, _, rest = name.rpartition("::")
    op, _, overload = rest.partition(".")
    try:
        found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, space or "aten"), op), overload or "default")
    except AttributeError:
        raise BadArgument(f"torch {torch.__version__} has no op {name!r}") from None
    return found


_PROGRAMS = count(1)


def code_of(text: str, name: str) -> CodeType:
    """The text of a host program as code, for ``load_program`` of processes with this version of Python."""
    file = f"<lamina {name} {digest(text)[:16]}>"
    return compile(text, file, "exec")


def load_program(
    text: str, name: str, namespace: Mapping[str, Any] | None = None, code: CodeType | None = None
) -> FunctionType:
    """Execute the text of a host program and return the function called ``name`` that it defines.

    ``namespace`` holds global names the text refers to beyond those it imports, ``code`` is what ``code_of`` has made
    of the text, which takes longer. The text shows in tracebacks and debuggers for as long as the function lives.
    Raises ``BadArgument`` if the text defines no such function.
    """
    file = f"<lamina {name} {next(_PROGRAMS)}>" if code is None else code.co_filename
    scope: dict[str, Any] = {"__name__": __name__, **(namespace or {})}
    shown = linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    try:
        exec(compile(text, file, "exec") if code is None else code, scope)
        function = scope.get(name)
        if not isinstance(function, FunctionType):
            raise BadArgument(f"the host program defines no function {name!r}")
    except BaseException:
        linecache.cache.pop(file, None)
        raise
    weakref.finalize(function, _forget, file, shown)
    return function


def _forget(file: str, shown: Any) -> None:
    """Show the text of a file no more, unless that of another function with the same text is shown."""
    if linecache.cache.get(file) is shown:
        del linecache.cache[file]
