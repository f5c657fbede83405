"""Indented Python text, and the helper names it uses."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["HELPERS", "Text", "helpers_in"]

HELPERS = {
    "triton_quotients": ("exact_inverse", "exact_quotient", "exact_root"),
    "triton_fast": ("fast_erf", "fast_exp", "fast_sigmoid", "fast_tanh", "keep", "small_quotient"),
    "triton_math": (
        *("digamma", "float_floor_div", "float_mod", "int_floor_div", "int_mod", "int_pow"),
        *("libdevice", "max_over", "maximum", "meet", "min_over", "minimum", "multiply", "philox", "round_to_bits"),
        *(
            "scan_logaddexp",
            "scan_max",
            "scan_min",
            "shift_left",
            "shift_right",
            "to_e4m3",
            "to_e5m2",
            "uniform",
            "uniform_quads",
        ),
    ),
}
"""Names that kernels use, by the module of ``lamina.runtime`` that has them."""

_HELPER = re.compile(rf"(?<![\w.])({'|'.join(n for names in HELPERS.values() for n in names)})\b(?=[(.,)])")


class Text:
    """Lines under construction."""

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        """One line at the current depth."""
        self.lines.append("    " * self.depth + line)

    def extend(self, lines: Iterable[str]) -> None:
        """Several lines at the current depth."""
        for line in lines:
            self.add(line)

    def open(self, line: str) -> None:
        """A line that begins a block."""
        self.add(line)
        self.depth += 1

    def close(self) -> None:
        """The end of a block."""
        self.depth -= 1


def helpers_in(text: str) -> dict[str, list[str]]:
    """The helpers that generated text uses, sorted, by the module of ``lamina.runtime`` that has them."""
    used = set(_HELPER.findall(text))
    found = {module: sorted(used.intersection(names)) for module, names in HELPERS.items()}
    return {module: names for module, names in found.items() if names}
