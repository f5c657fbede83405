"""What the first call of a compiled region was like, beside its graph run by ATen."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RegionCheck", "StepCheck"]


@dataclass(frozen=True, slots=True)
class StepCheck:
    """The first step of a region whose result differs from that of the graph's nodes it stands for.

    ``kernel`` is the generated function's name, or the ATen operation of a library call. ``place`` is the user's line,
    with the operations; ``value`` the buffer that differs, ``text`` how. ``stage`` says whose fault it is: "code
    generation" where the kernel does not do what its loop nest says, "lowering" where the nest itself is not the
    graph's nodes, "library" for a call. ``file`` holds the generated source, where there is one.
    """

    kernel: str
    place: str
    value: str
    text: str
    stage: str
    file: str = ""

    def __str__(self) -> str:
        file = f", in {self.file}" if self.file else ""
        return f"kernel {self.kernel} ({self.place}) gives another {self.value}: {self.text} ({self.stage}{file})"


@dataclass(frozen=True, slots=True)
class RegionCheck:
    """One region's first call against its graph run by ATen.

    ``values`` is how many outputs and written inputs were compared, ``different`` what is wrong with the first that
    differs (empty where none does), ``step`` the first step that does, where it could be found. ``error`` and
    ``eager_error`` are the largest errors, relative to the largest element, against the graph in double precision.
    """

    region: str
    values: int
    different: str = ""
    step: StepCheck | None = None
    error: float = 0.0
    eager_error: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.different

    def __str__(self) -> str:
        if self.ok:
            return f"{self.region}: {self.values} values are those of its graph"
        where = f"; the first that differs: {self.step}" if self.step else "; no single step of it differs"
        return f"{self.region}: {self.different}{where}"
