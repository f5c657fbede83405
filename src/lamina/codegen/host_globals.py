"""Module-level variables of host programs: what they call, looked up once when the program is loaded."""

from __future__ import annotations

from lamina.base.text import Writer
from lamina.codegen.host_values import Names
from lamina.ir.library import OUT_VARIANTS, QUICK_CALLS

__all__ = ["Globals"]

_QUICK = frozenset((*QUICK_CALLS.values(), *OUT_VARIANTS.values()))


class Globals:
    """The variables of one program that hold torch's objects and the user's functions."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._variables: dict[str, str] = {}

    def variable(self, path: str) -> str:
        """The variable that holds what the source text ``path`` gives."""
        found = self._variables.get(path)
        if found is None:
            found = self._variables[path] = self.names.fresh(_wanted(path))
        return found

    def dtype(self, name: str) -> str:
        """The variable that holds torch's dtype of this name."""
        return self.variable(f"torch.{name}")

    def calls(self, function: str) -> bool:
        """Whether some variable holds what a call of ``function`` gives."""
        return any(path.startswith(f"{function}(") for path in self._variables)

    def define(self, out: Writer) -> None:
        """Write the definitions."""
        for path, name in self._variables.items():
            out.line(f"{name} = {path}")


def _wanted(path: str) -> str:
    """A variable's name, if nothing else has it."""
    if path.startswith("user_"):
        return _called(path)
    parts = path.split(".")
    if parts[1] != "ops":
        return f"aten_{parts[1]}" if path in _QUICK else parts[1]
    return f"{parts[2]}_{parts[3]}" if parts[4] == "default" else f"{parts[2]}_{parts[3]}_{parts[4]}"


def _called(path: str) -> str:
    """The variable for ``user_kernel("user.<name>.3")`` or ``user_op("<space>.<name>.default", ...)``."""
    space, name, which = path.split('"')[1].split(".")
    return name if space == "user" else f"{space}_{name}" if which == "default" else f"{space}_{name}_{which}"
