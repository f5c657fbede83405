"""Codes of attention with functions of scores: computed in tiles or left as a call."""

from __future__ import annotations

from lamina.base.reasons import Codes

_TILES = Codes(36, "Attention with functions of scores (flex_attention)")

IN_TILES = _TILES.add(
    0,
    "computed in tiles of {heads} heads, {rows} rows and {keys}",
    "Scores are computed tile by tile and never stored as a whole.",
)
NOT_IN_TILES = _TILES.add(
    1,
    "{why}",
    "The call stays torch's, which on a CPU stores all scores.",
    "use float32, bfloat16 or float16 operands of fixed sizes",
)
