"""Options and fixtures shared by all tests."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Generator, Iterator
from typing import Any

import pytest
import torch

from benchmarks.compilers import CompileFunction, compile_function
from benchmarks.compilers import compiler_name as checked_name


def keep_pytest_from(logger: logging.Logger) -> None:
    """``logger`` takes no handlers of pytest's, which hears loggers that do not propagate as well."""
    add = logger.addHandler
    logger.addHandler = lambda handler: type(handler).__module__.startswith("_pytest.") or add(handler)  # type: ignore


# For whoever hears it torch writes all graphs and guards as text, and Lamina each stage: a sixth of the tests' time.
keep_pytest_from(logging.getLogger("torch.__trace"))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lamina")
    group.addoption(
        "--compile", type=checked_name, default="lamina", help="compile function of the tests that run programs"
    )
    group.addoption("--fuzz-examples", type=int, default=0, help="programs per fuzz test; 0 means the small budget")
    group.addoption("--all-ops", action="store_true", help="every operator of the database, not only the fast ones")


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """A test that changes how many threads torch uses changes it for itself alone."""
    before = torch.get_num_threads()
    yield
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """With the own front end as the default, tests marked ``by_dynamo`` have Dynamo; ids name cases of a test.

    What a module of tests shares is made with it if the first of them that needs it is marked.
    """
    marker = item.get_closest_marker("by_dynamo")
    cases = () if marker is None else marker.args[1:]
    marked = marker is not None and (not cases or getattr(item, "callspec").id in cases)  # noqa: B009
    if not marked or os.environ.get("LAMINA_CAPTURE") != "own":
        return (yield)
    os.environ["LAMINA_CAPTURE"] = "dynamo"
    try:
        return (yield)
    finally:
        os.environ["LAMINA_CAPTURE"] = "own"


@pytest.fixture(scope="session")
def compiler_name(request: pytest.FixtureRequest) -> str:
    """Name of the compile function under test."""
    return str(request.config.getoption("--compile"))


@pytest.fixture(scope="session")
def compile_session(compiler_name: str) -> CompileFunction:
    """The compile function under test, for tests that keep compiled programs.

    Lamina is strict here, and its warnings are errors: running a region eagerly because a stage failed would hide it.
    """
    function = compile_function(compiler_name)
    if compiler_name.partition(":")[0] not in ("lamina", "lamina_backend"):
        return function

    def strict(model: Any = None, *, options: dict[str, Any] | None = None, **more: Any) -> Any:
        return function(model, options={**(options or {}), "strict": True}, **more)

    return strict


@pytest.fixture
def compile(compile_session: CompileFunction) -> Iterator[CompileFunction]:
    """The compile function under test; what it captured is forgotten before and after the test."""
    torch.compiler.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="lamina runs")
        yield compile_session
    torch.compiler.reset()
