"""Random programs, compiled and compared with eager, and the reduction of those that differ to a few lines.

A program is a Python file with a generator ``program(compile)``: it compiles functions with ``compile(function)`` and
yields what they return. ``fuzz`` runs many, ``check`` one, ``minify`` reduces one that differs.
"""

from lamina.testing.fuzz.campaign import Campaign, Finding, fuzz
from lamina.testing.fuzz.check import Verdict, check, report
from lamina.testing.fuzz.differ import Difference
from lamina.testing.fuzz.generate import INGREDIENTS, generate
from lamina.testing.fuzz.minify import Minified, minify, minify_file
from lamina.testing.fuzz.torch_private import unbacked
from lamina.testing.fuzz.values import attempt, backward, loss, pause, sample, watched

__all__ = [
    "INGREDIENTS",
    "Campaign",
    "Difference",
    "Finding",
    "Minified",
    "Verdict",
    "attempt",
    "backward",
    "check",
    "fuzz",
    "generate",
    "loss",
    "minify",
    "minify_file",
    "pause",
    "report",
    "sample",
    "unbacked",
    "watched",
]
