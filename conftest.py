"""Every test run has a cache folder of its own, removed at the end, and asks no network for model files."""

from __future__ import annotations

import os
import shutil
import tempfile

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


def pytest_unconfigure(config: pytest.Config) -> None:
    if os.environ.get(OWNED) == str(os.getpid()):
        shutil.rmtree(os.environ[CACHE], ignore_errors=True)
        del os.environ[CACHE], os.environ[OWNED]
