"""Every test run has a cache folder of its own, removed at the end, and asks no network for model files."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Generator, Sequence

import pytest

CACHE = "LAMINA_CACHE_DIR"
OWNED = "LAMINA_TEST_OWNS_CACHE"
_TOLD: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("LAMINA_PROGRESS", "0")
    # What is tested are compiled graphs, at each call.
    os.environ.setdefault("LAMINA_COMPARE_EAGER", "off")
    # Worker processes inherit the environment, so that one kernel is compiled once for all of them.
    if CACHE not in os.environ:
        os.environ[CACHE] = tempfile.mkdtemp(prefix="lamina-test-")
        os.environ[OWNED] = str(os.getpid())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and parameters, some millions of objects, are there for good: no collection is to go through them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """What is left after a module of tests (caches of torch's, modules that were imported) is there for good too: in a
    process that has run thousands of tests, a collection that goes through all of it takes seconds.
    """
    done = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Tell of the first test after which the cache that all share is not used any more, and why: others then compile
    what is compiled already, and find less of what was stored.
    """
    done = yield
    if OWNED in os.environ and (caches := sys.modules.get("lamina.backends.caches")) is not None:
        kept = caches.open_cache(sys.modules["lamina.options"].Options.of(None, None))
        if kept.problem and kept.problem not in _TOLD:
            _TOLD.append(kept.problem)
            item.warn(pytest.PytestWarning(f"the cache of the test run is not used any more: {kept.problem}"))
    return done


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Of the cases of a test that is marked ``sampled(one_in=n)`` all but one in ``n``, at least one, are slow.

    Which ones is decided by their names alone, so that it is the same everywhere, and by a hash of them, so that no
    parameter is left out because it comes at every n-th case. Names with an address are refused: processes that share
    the tests would each have others.
    """
    addressed = next((item.nodeid for item in items if " at 0x" in item.nodeid), None)
    if addressed is not None:
        raise pytest.UsageError(f"{addressed}: give the parameters names that are the same in each process (ids=)")
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for several in cases.values():
        mark = several[0].get_closest_marker("sampled")
        assert mark is not None
        several.sort(key=lambda item: (zlib.crc32(item.nodeid.encode()), item.nodeid))
        for item in several[-(-len(several) // mark.kwargs["one_in"]) :]:
            item.add_marker(pytest.mark.slow)


def pytest_unconfigure(config: pytest.Config) -> None:
    if os.environ.get(OWNED) == str(os.getpid()):
        shutil.rmtree(os.environ[CACHE], ignore_errors=True)
        del os.environ[CACHE], os.environ[OWNED]
