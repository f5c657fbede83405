"""Generated modules as Python modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


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
