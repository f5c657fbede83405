"""Codes of attention with functions of scores: computed in tiles or left as a call."""

from __future__ import annotations

from lamina.base.reasons import Codes
from lamina.base.torch_names.torch_private import MARK_STATIC

_TILES = Codes(36, "Attention with functions of scores (flex_attention)")

IN_TILES = _TILES.add(
    0,
    "computed in tiles of {heads:head}, {rows:row} and {keys}",
    "Scores are computed tile by tile and never stored as a whole.",
)
NOT_IN_TILES = _TILES.add(
    1,
    "{why}",
    "The call stays torch's, which on a CPU stores all scores: its functions do what tiles do not.",
    "compute scores from places and scores alone, as the sentence says",
)

OTHER_DTYPES = _TILES.add(
    2,
    "its operands are of {dtypes}",
    "The call stays torch's, which on a CPU stores all scores.",
    "give queries, keys and values one dtype: float32, bfloat16 or float16",
)

RUN_TIME_SIZE = _TILES.add(
    3,
    "{what} is known only at run time",
    "The call stays torch's, which on a CPU stores all scores: tiles are made for a fixed number of heads and "
    "features, and a fixed scale.",
    f"mark heads and features as static ({MARK_STATIC}), and pass the scale as a number",
)

OTHER_OPERANDS = _TILES.add(
    4,
    "{what}",
    "The call stays torch's, which on a CPU stores all scores: tiles read dense tensors of the CPU that have elements.",
    "give it dense tensors of the CPU, none of them empty",
)
