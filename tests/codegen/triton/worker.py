"""A process whose Triton interprets: runs kernels that arrive on standard input as pickles, and sends results back."""

from __future__ import annotations

import importlib.util
import pickle
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch


def load(text: str, name: str, folder: Path) -> Any:
    """The jitted function of a module's text; Triton reads sources from files."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(f"generated_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def run(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Launch one kernel on copies of the tensors; the tensors afterwards, and the number of a failed Check."""
    function = load(job["text"], job["name"], folder)
    tensors: list[torch.Tensor] = job["tensors"]
    args: list[Any] = [*tensors, *job["sizes"]]
    failed = torch.zeros(1, dtype=torch.int32)
    if job["checks"]:
        args.append(failed)
    if job["grid"]:
        function[(job["grid"],)](*args)
    return {"tensors": tensors, "failed": int(failed)}


def main() -> None:
    out = sys.stdout.buffer
    sys.stdout = sys.stderr
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for count in range(1 << 30):
            try:
                job = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            place = Path(folder) / str(count)
            place.mkdir()
            try:
                answer = run(job, place)
            except Exception:
                answer = {"error": traceback.format_exc()}
            pickle.dump(answer, out)
            out.flush()


if __name__ == "__main__":
    main()
