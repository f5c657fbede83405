"""The code of algorithms that libraries are asked for."""

from __future__ import annotations

from lamina.base.reasons import Codes

_ALGORITHMS = Codes(82, "Algorithms of libraries")

ALGORITHM = _ALGORITHMS.add(
    0,
    "{source}: {why}",
    "Which of cuBLAS's algorithms multiplies, or whether the library applies a GELU to its result. The source is "
    "model (an estimate), measured (timed in this process) or remembered (timed by an earlier one); the facts have "
    "the candidates' microseconds.",
    'mode="max-autotune" times more of them',
)
