"""Memory that is freed stays with the process of a candidate: where its heap happens to end has no part in timings."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import json, resource, sys
import torch
from lamina.tuner.memory import keep_freed_memory

def pages():
    "New pages of twenty calls that take two blocks of 4 MiB."
    for count in (3, 20):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(count):
            one, other = torch.ones(1 << 20), torch.ones(1 << 20)
            del one, other
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = pages()
keep_freed_memory()
print(json.dumps([first, pages()]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such settings")
def test_freed_memory_is_kept() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    given_back, kept = json.loads(done.stdout)
    assert given_back > 20 * 100
    assert kept < 20 * 10
