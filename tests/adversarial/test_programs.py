"""Programs written by hand to find what a compiled one shows and eager does not, in more ways than a generator draws.

Each function ``name(compile)`` of the files beside this one is a program as ``lamina fuzz`` writes them: it yields what
is to be looked at, and everything that it yields is compared.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from lamina.testing.fuzz import check

SOURCES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted(Path(__file__).parent.glob("*.py"))
    if path.stem not in ("__init__", "test_programs")
}
PROGRAMS = [(stem, name) for stem, text in SOURCES.items() for name in re.findall(r"^def (\w+)\(compile\)", text, re.M)]
SAMPLE = PROGRAMS[::3]


def _check(stem: str, name: str, target: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verdict = check(f"{SOURCES[stem]}\n\nprogram = {name}\n", target)
    assert verdict.ok, "\n".join(map(str, verdict.differences))


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize(("stem", "name"), SAMPLE)
def test_sample(stem: str, name: str) -> None:
    _check(stem, name, "lamina:interp")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["lamina", "lamina:interp", "lamina:turns"])
@pytest.mark.parametrize(("stem", "name"), PROGRAMS)
def test_every_program(stem: str, name: str, target: str) -> None:
    _check(stem, name, target)


@pytest.mark.parametrize("name", [name for stem, name in PROGRAMS if stem == "ends"])
def test_ends_are_noticed_by_our_own_front_end(name: str) -> None:
    _check("ends", name, "lamina:interp+capture=own")


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("target", ["lamina:interp", "lamina:interp+capture=own"])
@pytest.mark.parametrize(
    ("stem", "name"), [(stem, name) for stem, name in PROGRAMS if stem in ("copied", "ended", "raised", "seen")]
)
def test_objects_and_what_they_are_shown(stem: str, name: str, target: str) -> None:
    _check(stem, name, target)


def test_places_that_only_data_tell_in_kernels() -> None:
    """Kernels read memory by the place that they are given."""
    _check("found", "places_that_only_data_tell", "lamina")


def test_a_program_that_differs_is_seen() -> None:
    """Compiling for a compiler that is known to differ: AOTAutograd runs a hook of the function's own too late."""
    assert not check(f"{SOURCES['autograd']}\n\nprogram = hooks_on_results_and_leaves\n", "aot_eager").ok
