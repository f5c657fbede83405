"""Of the cases of a test that is marked as sampled some run in ``make test``, the same ones everywhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from conftest import pytest_collection_modifyitems


@dataclass
class Case:
    """An item of pytest's as far as sampling asks of it."""

    nodeid: str
    one_in: int = 0
    slow: list[pytest.MarkDecorator] = field(default_factory=list)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return pytest.mark.sampled(one_in=self.one_in).mark if self.one_in and name == "sampled" else None

    def add_marker(self, marker: pytest.MarkDecorator) -> None:
        self.slow.append(marker)


def _run(cases: list[Case]) -> list[str]:
    pytest_collection_modifyitems(cast("list[pytest.Item]", cases))
    return [case.nodeid for case in cases if not case.slow]


@pytest.mark.parametrize(("number", "one_in", "left"), [(10, 3, 4), (9, 3, 3), (2, 8, 1), (1, 8, 1)])
def test_one_in_so_many_cases_are_left_and_at_least_one(number: int, one_in: int, left: int) -> None:
    assert len(_run([Case(f"a.py::test[{n}]", one_in) for n in range(number)])) == left


def test_which_ones_is_decided_by_their_names_alone() -> None:
    names = [f"a.py::test[{n}-{kind}]" for n in range(20) for kind in ("on", "off")]
    some = _run([Case(name, 4) for name in names])
    assert set(some) == set(_run([Case(name, 4) for name in reversed(names)]))
    assert {name.rpartition("-")[2] for name in some} == {"on]", "off]"}


def test_cases_that_are_not_sampled_are_left_as_they_are() -> None:
    assert len(_run([Case(f"a.py::test[{n}]") for n in range(5)])) == 5
