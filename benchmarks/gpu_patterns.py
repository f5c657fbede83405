"""Speed and error of the GPU patterns: a compile function against eager and every mode of torch.compile, by turns.

``python -m benchmarks.gpu_patterns --rows softmax_50257 layer_norm --only training --rivals eager torch``
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.gpu_driver import run
from benchmarks.gpu_programs import PROGRAMS
from benchmarks.report import RESULTS

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON; 1 if a result is wrong."""
    return run("GPU patterns", PROGRAMS, RESULTS / "gpu_patterns.json", __doc__, argv, "benchmarks.gpu_patterns")


if __name__ == "__main__":
    raise SystemExit(main())
