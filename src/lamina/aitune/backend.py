"""A frozen config for each backend, and the backend that it configures, as a candidate of the tuner."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch

from lamina.errors import BadArgument
from lamina.options import MODES
from lamina.tuner.values import Candidate

__all__ = [
    "Backend",
    "BackendConfig",
    "LaminaBackend",
    "LaminaBackendConfig",
    "ONNXRuntimeBackend",
    "ONNXRuntimeBackendConfig",
    "OpenVINOBackend",
    "OpenVINOBackendConfig",
    "TorchAOBackend",
    "TorchAOBackendConfig",
    "TorchEagerBackend",
    "TorchEagerBackendConfig",
    "TorchInductorBackend",
    "TorchInductorBackendConfig",
    "TorchTensorRTBackend",
    "TorchTensorRTBackendConfig",
]

_QUANTISED = {"int8wo": "Int8WeightOnlyConfig", "int8dq": "Int8DynamicActivationInt8WeightConfig"}
_OWN = {"fullgraph": False}
"""Settings with a value of the compilers' own that is not None."""


@dataclass(frozen=True)
class BackendConfig:
    """What the configs of backends that compile have in common; the fields of ``torch.compile`` and of autocast.

    ``fullgraph``: code that cannot be captured is an error. ``dynamic``: kernels for all sizes (True), for the sizes
    that are met (False), or for all after the first that differs (None). ``mode`` is one of torch.compile's,
    ``options`` the backend's own; one of the two. With ``autocast_enabled`` the model runs under autocast, in
    ``autocast_dtype`` or torch's own choice for the device. Raises ``BadArgument`` for values that do not go together.
    """

    fullgraph: bool = False
    dynamic: bool | None = None
    mode: str | None = None
    options: dict[str, Any] | None = None
    autocast_enabled: bool = False
    autocast_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if self.mode is not None and self.options is not None:
            raise BadArgument(
                f"{type(self).__name__} has both mode={self.mode!r} and options",
                remedy="give one of them; torch.compile sets options from a mode",
            )
        if self.mode is not None and self.mode not in MODES:
            raise BadArgument(f"{type(self).__name__} has mode={self.mode!r}", remedy=f"use one of {', '.join(MODES)}")
        _check_autocast(self, self.autocast_enabled, self.autocast_dtype)

    def settings(self) -> dict[str, Any]:
        """What the compiler is given, without values that are its own."""
        given = {"fullgraph": self.fullgraph, "dynamic": self.dynamic, "mode": self.mode, "options": self.options}
        return {name: value for name, value in given.items() if value is not None and value is not _OWN.get(name)}


def _check_autocast(config: object, enabled: bool, dtype: torch.dtype | None) -> None:
    name = type(config).__name__
    if dtype is not None and dtype not in (torch.bfloat16, torch.float16):
        raise BadArgument(f"{name} has autocast_dtype={dtype!r}", remedy="use torch.bfloat16 or torch.float16")
    if dtype is not None and not enabled:
        raise BadArgument(f"{name} has an autocast_dtype without autocast", remedy="give autocast_enabled=True too")


@dataclass(frozen=True)
class TorchInductorBackendConfig(BackendConfig):
    """For ``torch.compile`` with Inductor; fields as ``BackendConfig``'s."""


@dataclass(frozen=True)
class LaminaBackendConfig(BackendConfig):
    """For ``lamina.compile``; fields as ``BackendConfig``'s, ``options`` those of ``lamina.Options``."""


@dataclass(frozen=True)
class ONNXRuntimeBackendConfig(BackendConfig):
    """For ONNX Runtime; fields as ``BackendConfig``'s."""


@dataclass(frozen=True)
class OpenVINOBackendConfig(BackendConfig):
    """For OpenVINO; fields as ``BackendConfig``'s."""


@dataclass(frozen=True)
class TorchTensorRTBackendConfig(BackendConfig):
    """For Torch-TensorRT; fields as ``BackendConfig``'s."""


@dataclass(frozen=True)
class TorchEagerBackendConfig:
    """For eager: autocast alone."""

    autocast_enabled: bool = False
    autocast_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        _check_autocast(self, self.autocast_enabled, self.autocast_dtype)


@dataclass(frozen=True)
class TorchAOBackendConfig:
    """For TorchAO: ``quantization`` of linear layers is "int8wo" (weights) or "int8dq" (activations too, as they come).

    ``compiled``: torch.compile runs what is quantised. Raises ``BadArgument`` for another quantisation.
    """

    quantization: str = "int8wo"
    compiled: bool = True

    def __post_init__(self) -> None:
        if self.quantization not in _QUANTISED:
            raise BadArgument(
                f"TorchAOBackendConfig has quantization={self.quantization!r}",
                remedy=f"use one of {', '.join(_QUANTISED)}",
            )


class Backend:
    """A backend with its config: ``config_class`` or the fields' own values."""

    config_class: ClassVar[type] = BackendConfig
    name: ClassVar[str] = ""
    compiler: ClassVar[str] = "lamina"
    """Kind of the candidate."""
    backend: ClassVar[str] = ""
    """Name that ``lamina.compile`` knows the backend by."""

    def __init__(self, config: Any = None) -> None:
        if config is not None and type(config) is not self.config_class:
            raise BadArgument(
                f"{type(self).__name__} was given a {type(config).__name__}",
                remedy=f"give a {self.config_class.__name__}",
            )
        self.config: Any = self.config_class() if config is None else config

    def candidate(self) -> Candidate:
        """The candidate that ``lamina.tune`` tries."""
        settings = self.config.settings()
        if self.backend:
            settings["backend"] = self.backend
        if not self.config.autocast_enabled:
            return Candidate(self._title(), self.compiler, settings, 3 if settings else 2)
        by = "torch" if self.compiler == "torch.compile" else "lamina"
        return Candidate(self._title(), "autocast", {**_narrow(self.config), "compiled": by, **settings}, 3, True)

    def _title(self) -> str:
        """The name of the backend, with the fields that are not their own values."""
        given = [(f.name, getattr(self.config, f.name), f.default) for f in fields(self.config)]
        told = [f"{name}={value}" for name, value, default in given if value != default]
        return f"{self.name} ({', '.join(told)})" if told else self.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config!r})"


def _narrow(config: Any) -> dict[str, Any]:
    return {"dtype": str(config.autocast_dtype or "").removeprefix("torch.")}


class TorchInductorBackend(Backend):
    """torch.compile's own compiler."""

    config_class = TorchInductorBackendConfig
    name = compiler = "torch.compile"


class LaminaBackend(Backend):
    """Lamina's compiler."""

    config_class = LaminaBackendConfig
    name = "lamina"


class ONNXRuntimeBackend(Backend):
    """ONNX Runtime, where it is installed."""

    config_class = ONNXRuntimeBackendConfig
    name = backend = "onnxruntime"


class OpenVINOBackend(Backend):
    """OpenVINO, where it is installed."""

    config_class = OpenVINOBackendConfig
    name = backend = "openvino"


class TorchTensorRTBackend(Backend):
    """Torch-TensorRT, where it is installed."""

    config_class = TorchTensorRTBackendConfig
    name = backend = "torch_tensorrt"


class TorchEagerBackend(Backend):
    """PyTorch as it is, or under autocast."""

    config_class = TorchEagerBackendConfig
    name = "eager"

    def candidate(self) -> Candidate:
        """Eager, or a candidate under autocast."""
        if not self.config.autocast_enabled:
            return Candidate("eager", "eager", cost=0)
        return Candidate(self._title(), "autocast", _narrow(self.config), 2, True)


class TorchAOBackend(Backend):
    """Linear layers quantised by TorchAO, where it is installed."""

    config_class = TorchAOBackendConfig
    name = "torchao"

    def candidate(self) -> Candidate:
        """The candidate that ``lamina.tune`` tries."""
        settings = {
            "config": _QUANTISED[self.config.quantization],
            "compiled": "torch" if self.config.compiled else "",
        }
        how = self.config.quantization if self.config.compiled else f"{self.config.quantization}, compiled=False"
        return Candidate(f"torchao ({how})", "torchao", settings, 4, True)
