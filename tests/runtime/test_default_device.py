"""Memory that kernels write to is where they expect it, whatever torch's default device is."""

from __future__ import annotations

import pytest
import torch

from lamina.runtime.cuda_host import Flags


def test_flags_are_in_the_host_s_memory() -> None:
    with torch.device("meta"):
        flags = Flags([[("IndexError", "index 9 is out of bounds")]])
    assert flags.address != 0
    flags.report()
    flags.cells[0].value = 1
    with pytest.raises(IndexError, match="index 9"):
        flags.report()
