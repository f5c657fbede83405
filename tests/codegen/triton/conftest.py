from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("triton")

from tests.codegen.triton.harness import Interpreter


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """Triton's interpreter in a process of its own: it must be chosen before Triton is imported."""
    made = Interpreter()
    yield made
    made.close()
