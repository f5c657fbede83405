"""Lamina: a layered tensor compiler for PyTorch.

``import lamina`` loads neither torch nor the compiler: each public name loads what it needs when it is first asked for.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lamina.artefacts.front import compile
    from lamina.artefacts.package import load, package
    from lamina.backends.registry import list_backends, register_backend
    from lamina.base.decision import Decision
    from lamina.bench import Measurement, Rivals, alternate, benchmark, warmup
    from lamina.blame.bisection import bisect
    from lamina.compile import lamina_backend
    from lamina.errors import BadArgument, InvalidIR, LaminaError, LaminaWarning, StageFailed, UnknownOption
    from lamina.explain.program import explain
    from lamina.freezing.frozen import thaw
    from lamina.options import Options, list_options
    from lamina.record import Record, records
    from lamina.testing.verify import verify
    from lamina.tuner.search import tune

__all__ = [
    "BadArgument",
    "Decision",
    "InvalidIR",
    "LaminaError",
    "LaminaWarning",
    "Measurement",
    "Options",
    "Record",
    "Rivals",
    "StageFailed",
    "UnknownOption",
    "alternate",
    "benchmark",
    "bisect",
    "compile",
    "explain",
    "lamina_backend",
    "list_backends",
    "list_options",
    "load",
    "package",
    "records",
    "register_backend",
    "thaw",
    "tune",
    "verify",
    "warmup",
]

_PLACES = {
    "backends.registry": ("list_backends", "register_backend"),
    "base.decision": ("Decision",),
    "bench": ("Measurement", "Rivals", "alternate", "benchmark", "warmup"),
    "blame.bisection": ("bisect",),
    "artefacts.front": ("compile",),
    "artefacts.package": ("load", "package"),
    "compile": ("lamina_backend",),
    "explain.program": ("explain",),
    "errors": ("BadArgument", "InvalidIR", "LaminaError", "LaminaWarning", "StageFailed", "UnknownOption"),
    "freezing.frozen": ("thaw",),
    "options": ("Options", "list_options"),
    "record": ("Record", "records"),
    "testing.verify": ("verify",),
    "tuner.search": ("tune",),
}
_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _PLACES.items() for name in names}
_MODULES = ("aitune", "bench", "errors", "extend", "options", "record", "testing")
"""Modules for users, which need no import of their own."""


def _version() -> str:
    """The installed package's; a package that is only on the path has none."""
    metadata = import_module("importlib.metadata")
    try:
        return str(metadata.version("lamina"))
    except metadata.PackageNotFoundError:
        return "unknown"


class _Package(ModuleType):
    """A package whose names are found when they are asked for; ``compile`` is the function of that name."""

    def __getattr__(self, name: str) -> Any:
        if name in _MODULE_OF:
            with import_module(f"{__name__}.base.collector").collector_held(lasting=True):
                value = getattr(import_module(_MODULE_OF[name]), name)
        elif name in _MODULES:
            value = import_module(f"{__name__}.{name}")
        elif name == "__version__":
            value = _version()
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Python sets each module that it imports as an attribute of its package.
        if not (name in _MODULE_OF and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__, *_MODULES, "__version__"})


sys.modules[__name__].__class__ = _Package
