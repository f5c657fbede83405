"""Imported by the server that candidates' processes are forks of: what torch's compiler finds out of a CPU, once.

It takes longer than to compile a small model, and would be done anew for each candidate of torch's compiler.
"""

from __future__ import annotations

import contextlib

from lamina.tuner.torch_private import find_instructions

with contextlib.suppress(Exception):  # a candidate that needs it says what is wrong
    find_instructions()
