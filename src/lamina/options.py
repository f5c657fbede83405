"""Every knob, once: type, default, help and environment name. The only reader of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from lamina.errors import UnknownOption

__all__ = ["MODES", "Options"]

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def _knob(default: Any, help: str, env: str = "", choices: tuple[str, ...] = (), key: bool = True) -> Any:
    return field(default=default, metadata={"help": help, "env": env, "choices": choices, "key": key})


@dataclass(frozen=True, slots=True)
class Options:
    """How to compile. Frozen; every field marked as key is part of every cache key."""

    mode: str = _knob("default", "one of torch.compile's four modes", "LAMINA_MODE", MODES)
    numerics: str = _knob(
        "fast", "fast: fp32 inside a kernel; eager: round and draw as eager does", "LAMINA_NUMERICS", ("fast", "eager")
    )
    simd: str = _knob("auto", "instruction set of CPU kernels", "LAMINA_SIMD", ("auto", "avx512", "avx2", "plain"))
    cxx: str = _knob("", "C++ compiler to use instead of the first one found", "LAMINA_CXX")
    cache_dir: str = _knob("", "folder of the on-disk cache", "LAMINA_CACHE_DIR", key=False)
    cache: bool = _knob(True, "use the on-disk cache", "LAMINA_CACHE", key=False)
    verify: bool = _knob(False, "run every verifier after every stage", "LAMINA_VERIFY", key=False)
    strict: bool = _knob(False, "raise instead of falling back to ATen calls", "LAMINA_STRICT", key=False)
    dump_dir: str = _knob("", "folder for the numbered stage dump", "LAMINA_DUMP_DIR", key=False)
    progress: bool = _knob(True, "print a line when compiling takes over two seconds", "LAMINA_PROGRESS", key=False)
    jobs: int = _knob(0, "C++ compilers run at once; 0 means one per core", "LAMINA_JOBS", key=False)

    @classmethod
    def knobs(cls) -> tuple[str, ...]:
        """Names of all options."""
        return tuple(f.name for f in fields(cls))

    @classmethod
    def from_environment(cls, given: Mapping[str, Any] | None = None) -> Options:
        """Defaults, overridden by the environment, overridden by ``given``.

        Raises ``UnknownOption`` for a name or a value that does not exist.
        """
        values: dict[str, Any] = {}
        for f in fields(cls):
            text = os.environ.get(f.metadata["env"])
            if text is not None:
                values[f.name] = _parse(f.name, f.default, text)
        for name, value in (given or {}).items():
            if name not in cls.knobs():
                raise UnknownOption(f"no option is called {name!r}", remedy=f"use one of {', '.join(cls.knobs())}")
            values[name] = value
        return cls(**values)._checked()

    def replace(self, **changes: Any) -> Options:
        """The same options with some fields changed, checked again."""
        return replace(self, **changes)._checked()

    def key(self) -> tuple[tuple[str, Any], ...]:
        """The fields that change generated code, for cache keys."""
        return tuple((f.name, getattr(self, f.name)) for f in fields(self) if f.metadata["key"])

    def _checked(self) -> Options:
        for f in fields(self):
            value, choices = getattr(self, f.name), f.metadata["choices"]
            if type(value) is not type(f.default):
                raise UnknownOption(
                    f"option {f.name!r} is {value!r}, not of type {type(f.default).__name__}",
                    remedy=f.metadata["help"],
                )
            if choices and value not in choices:
                raise UnknownOption(f"option {f.name!r} is {value!r}", remedy=f"use one of {', '.join(choices)}")
        return self


def _parse(name: str, default: Any, text: str) -> Any:
    try:
        if isinstance(default, bool):
            return {"1": True, "true": True, "0": False, "false": False}[text.strip().lower()]
        return int(text) if isinstance(default, int) else text
    except (KeyError, ValueError):
        raise UnknownOption(
            f"the environment sets option {name!r} to {text!r}", remedy=f"give a value like {default!r}"
        ) from None
