"""Triton kernels of the user's own, as loop programs and host programs name them: "user.<kernel>.<number>".

The numbers hold for this process; nothing that outlives it contains one. A launch goes through Triton's own entry,
``kernel[grid](...)``, so that autotuning, heuristics, hooks and specialisation are what they are in eager.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

__all__ = ["UserKernel", "is_user_kernel", "name_user_kernel", "user_kernel"]

Grid = tuple[int, ...]

_SPACE = "user."
_KERNELS: dict[str, UserKernel] = {}
"""The user's kernels by the name of their operation: graphs, which may live anywhere, call them by it."""
_NAMES: dict[Hashable, str] = {}
"""The names by what the kernels are."""


class UserKernel:
    """A user's kernel with the arguments that never change.

    ``names`` are the parameters that a launch gives, in order, ``constants`` the others with their values. A launch
    is ``kernel(grids, *values)`` with one grid, or one for each configuration of an autotuned kernel.
    """

    def __init__(self, kernel: Any, names: Sequence[str], constants: Mapping[str, Any]) -> None:
        self.kernel, self.names, self.constants = kernel, tuple(names), dict(constants)
        given = {*self.names, *self.constants}
        order = list(kernel.arg_names)
        # Hooks of autotuned kernels are given what comes by position; so that goes as far as it can.
        leading = next((k for k, name in enumerate(order) if name not in given), len(order))
        positional = order[:leading]
        self._slots = [(self.names.index(n) if n in self.names else -1, self.constants.get(n)) for n in positional]
        self._keywords = [(k, name) for k, name in enumerate(self.names) if name not in positional]
        self._rest = {name: value for name, value in self.constants.items() if name not in positional}

    def key(self) -> Hashable:
        """Equal for what launches alike: of constants that cannot be compared each is like itself only."""
        constants = tuple((name, type(value), _comparable(value)) for name, value in self.constants.items())
        return (id(self.kernel), self.names, constants)

    def __call__(self, grids: Sequence[Sequence[int]], *values: Any) -> None:
        """Queue one launch on the current stream; ``values`` are tensors and numbers, one for each of ``names``."""
        grid: Any = tuple(grids[0]) if len(grids) == 1 else _by_configuration(self.kernel.configs, grids)
        positional = [values[slot] if slot >= 0 else constant for slot, constant in self._slots]
        keywords = {name: values[k] for k, name in self._keywords}
        self.kernel[grid](*positional, **keywords, **self._rest)


def _comparable(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return repr(value) if isinstance(value, float) else value


def _by_configuration(
    configurations: Sequence[Any], grids: Sequence[Sequence[int]]
) -> Callable[[Mapping[str, Any]], Grid]:
    """The grid as a function of the kernel's parameters, as Triton's autotuner asks for it."""

    def grid(parameters: Mapping[str, Any]) -> Grid:
        for configuration, found in zip(configurations, grids, strict=True):
            if all(parameters.get(name) == value for name, value in configuration.kwargs.items()):
                return tuple(found)
        raise ValueError("the autotuner chose a configuration that has no grid")

    return grid


def name_user_kernel(stem: str, kernel: UserKernel) -> str:
    """The name under which ``kernel`` is found from now on; equal ones share it."""
    key = (stem, kernel.key())
    found = _NAMES.get(key)
    if found is None:
        found = f"{_SPACE}{stem}.{len(_KERNELS)}"
        _KERNELS[found] = kernel
        _NAMES[key] = found
    return found


def is_user_kernel(op: str) -> bool:
    """Whether the operation called ``op`` is a kernel of the user's own."""
    return op.startswith(_SPACE)


def user_kernel(op: str) -> UserKernel:
    """The kernel called ``op``. ``AttributeError`` when this process has none."""
    found = _KERNELS.get(op)
    if found is None:
        raise AttributeError(f"no kernel of the user's is called {op}")
    return found
