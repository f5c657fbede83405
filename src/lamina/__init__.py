"""Lamina: a layered tensor compiler for PyTorch."""

from lamina.backends.registry import register_backend
from lamina.base.decision import Decision
from lamina.bench import Measurement, Rivals, alternate, benchmark, warmup
from lamina.compile import compile, lamina_backend
from lamina.errors import BadArgument, InvalidIR, LaminaError, LaminaWarning, StageFailed, UnknownOption
from lamina.freezing.frozen import thaw
from lamina.options import Options
from lamina.record import Record
from lamina.testing.verify import verify

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
    "compile",
    "lamina_backend",
    "register_backend",
    "thaw",
    "verify",
    "warmup",
]
