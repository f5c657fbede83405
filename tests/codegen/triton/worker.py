"""A process whose Triton interprets: runs kernels that arrive on standard input as pickles, and sends results back."""

from __future__ import annotations

import ctypes
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from tests.codegen.triton.loading import load

_patch = interpreter._patch_lang_tensor


def _patch_index(tensor: Any, scope: Any) -> None:
    """Loop bounds are arrays of one element, which NumPy from 2.4 on does not take for numbers."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def _splat(self: Any, kind: Any, arg: Any) -> Any:
    """A scalar in every place. What comparisons give says that it is of its operands' type: the data knows better."""
    return interpreter.TensorHandle(np.full(kind.shape, arg.data.item(), dtype=arg.data.dtype), arg.dtype.scalar)


def _atomic(self: Any, operation: Any, pointer: Any, value: Any, mask: Any, *rest: Any) -> Any:
    """Sums of bfloat16 numbers, which the interpreter does not know, one after the other."""
    if value.dtype.scalar != tl.bfloat16:
        return _atomic_rmw(self, operation, pointer, value, mask, *rest)
    assert "ADD" in str(operation)
    before = np.zeros_like(value.data)
    for place in np.flatnonzero(mask.data):
        cell = np.ctypeslib.as_array(ctypes.cast(int(pointer.data.flat[place]), ctypes.POINTER(ctypes.c_uint16)), (1,))
        before.flat[place] = cell[0]
        given = np.array([value.data.flat[place]], np.uint16)
        left, right = (torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16) for bits in (cell, given))
        left += right
    return interpreter.TensorHandle(before, value.dtype.scalar)


_atomic_rmw = interpreter.InterpreterBuilder.create_atomic_rmw
interpreter._patch_lang_tensor = _patch_index
interpreter.InterpreterBuilder.create_splat = _splat
interpreter.InterpreterBuilder.create_atomic_rmw = _atomic


def run(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Launch one kernel on copies of the tensors; the tensors afterwards, and the number of a failed Check."""
    function = load(job["text"], job["name"], folder)
    tensors: list[torch.Tensor] = job["tensors"]
    seen = [t.view(d) if d else t for t, d in zip(tensors, job["eights"], strict=True)]
    args: list[Any] = [*seen, *job["sizes"]]
    zeros = [torch.zeros(nbytes // 4, dtype=torch.int32) for nbytes, zero in job["workspace"] if zero]
    left = iter(zeros)
    args += [next(left) if zero else torch.full((nbytes // 4,), float("nan")) for nbytes, zero in job["workspace"]]
    failed = torch.zeros(1, dtype=torch.int32)
    if job["checks"]:
        args.append(failed)
    # Interpreted programs run one after the other: those that meet see all that was exchanged in a further round.
    for _ in range(job["rounds"] if job["grid"] else 0):
        function[(job["grid"],)](*args)
    if job["then"]:
        load(job["then"]["text"], job["then"]["name"], folder)[(job["then"]["grid"],)](*args)
    if any(bool(z.any()) for z in zeros):
        raise RuntimeError("the kernel does not leave its zero memory zero")
    return {"tensors": tensors, "failed": int(failed)}


def main() -> None:
    out = sys.stdout.buffer
    sys.stdout = sys.stderr
    torch.set_num_threads(1)
    for count in range(1 << 30):
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        place = Path(sys.argv[1]) / str(count)
        place.mkdir()
        try:
            answer = run(job, place)
        except Exception:
            answer = {"error": traceback.format_exc()}
        pickle.dump(answer, out)
        out.flush()


if __name__ == "__main__":
    main()
