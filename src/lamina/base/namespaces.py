"""Namespaces of operations that the user has not defined: torch's and ours."""

from __future__ import annotations

__all__ = ["ATEN", "BUILT_IN", "KNOWN"]

ATEN = ("aten", "prims")
"""Torch's operations in the graphs that it captures, which every process with torch has."""
KNOWN = (*ATEN, "lamina")
"""Those in the table of operations (``lamina/ops``): what they do with their operands is known."""
BUILT_IN = (*KNOWN, "prim", "mkldnn", "onednn", "quantized")
"""All of which nobody but torch and Lamina defines operations."""
