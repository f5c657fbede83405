"""Trains and runs one small model again and again, each time in a fork of this process with another environment.

Reads one JSON object a line: "environment" (variables to set, or to remove where null) and "obedient" (give up the
superuser's right to write to read-only folders). Answers each with one JSON object on one line.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import lamina

_CAPABILITIES = 0x20080522  # version 3 of the structure
_OVERRIDE = 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


def obey_permissions() -> None:
    """Drop the capabilities by which the superuser ignores the modes of files."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0, os.strerror(ctypes.get_errno())
    for part in range(3):  # effective, permitted, inheritable
        data[part] &= ~_OVERRIDE
    assert libc.capset(header, data) == 0, os.strerror(ctypes.get_errno())


def results(model: nn.Module, function: Any) -> list[Tensor]:
    """Outputs of one training step and one inference, and the gradients."""
    x = torch.linspace(-2, 2, 40).reshape(5, 8).requires_grad_()
    y = function(x)
    gradients = torch.autograd.grad(y.softmax(-1).square().sum(), [x, *model.parameters()])
    with torch.no_grad():
        return [y, *gradients, function(x)]


def report(request: dict[str, Any]) -> dict[str, Any]:
    """Run the model as asked and say what came of it."""
    for name, value in request["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if request["obedient"]:
        obey_permissions()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    eager = results(model, model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = lamina.compile(model, dynamic=False)
        ours = results(model, compiled)
    built = [stage.value for stage in compiled.record.stages if stage.name == "build"]
    return {
        "largest_error": max(float((a - b).abs().max()) for a, b in zip(ours, eager, strict=True)),
        "warnings": [str(w.message) for w in caught],
        "reused": sum(b.reused for b in built),
        "compiled": sum(b.compiled for b in built),
        "missing": sum(len(b.errors) for b in built),
        "damages": [d.reason for b in built for d in b.damages],
    }


def main() -> None:
    """Answer requests until the input ends."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                answer = report(json.loads(line))
            except BaseException:
                answer = {"failed": traceback.format_exc()}
            print(json.dumps(answer), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
