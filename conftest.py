"""Every test run has a cache folder of its own, removed at the end, and asks no network for model files."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Generator

import pytest

CACHE = "LAMINA_CACHE_DIR"
OWNED = "LAMINA_TEST_OWNS_CACHE"


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


def pytest_unconfigure(config: pytest.Config) -> None:
    if os.environ.get(OWNED) == str(os.getpid()):
        shutil.rmtree(os.environ[CACHE], ignore_errors=True)
        del os.environ[CACHE], os.environ[OWNED]
