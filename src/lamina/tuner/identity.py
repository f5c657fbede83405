"""What a row depends on: the model's code and layout, inputs, versions and the device."""

from __future__ import annotations

import inspect
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn

from lamina.base.devices import kind_of
from lamina.runtime.cache import digest
from lamina.runtime.toolchain import host_isa, host_processor
from lamina.tuner.parts import modules_in
from lamina.tuner.programs import Subject
from lamina.tuner.samples import structure
from lamina.tuner.torch_private import MARKS

__all__ = ["device_facts", "model_key", "row_key", "subject_key", "versions"]

_PACKAGES = ("lamina", "torch", "triton", "torchao", "onnxruntime", "openvino", "torch_tensorrt")

_PLAIN = (bool, int, float, str, type(None), torch.dtype)
"""Attributes of a module that say how it computes."""


def device_facts(device: torch.device, threads: int) -> dict[str, Any]:
    """The machine as far as times depend on it."""
    facts: dict[str, Any] = {"processor": host_processor(), "instructions": host_isa(), "threads": threads}
    if kind_of(device).queued:
        properties = torch.cuda.get_device_properties(device)
        facts["gpu"] = properties.name
        facts["capability"] = f"{properties.major}.{properties.minor}"
    return facts


def versions() -> dict[str, str]:
    """Versions of what runs models, where it is installed."""
    found = {"python": platform.python_version(), "cuda": str(torch.version.cuda)}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def subject_key(subject: Subject) -> str:
    """A hash of the model's and its inputs' structure, and of the code of the loss and the metric."""
    rest = [text for sample in subject.samples for text in structure(sample)]
    return digest(model_key(subject.model), *_code_of(subject.loss), "metric", *_code_of(subject.metric), *rest)


def model_key(model: Callable[..., Any]) -> str:
    """A hash of the model's code, its numbers and texts, and its weights' layout; not of their values."""
    facts = _code_of(model)
    held = modules_in(model)
    facts += [repr(module) for path, module in held.items() if path.rpartition(".")[0] not in held or not path]
    for path, module in held.items():
        settings = {n: v for n, v in vars(module).items() if isinstance(v, _PLAIN) and not n.startswith(MARKS)}
        facts += [f"{path} {sorted(settings.items())!r}", *_code_of(type(module))]
        for name, tensor in (*module.named_parameters(path, False), *module.named_buffers(path, False)):
            layout = (tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), str(tensor.device))
            facts.append(f"{name} {layout} {tensor.requires_grad}")
    return digest(*facts)


def _code_of(value: Any) -> list[str]:
    """The source of a class or function, its name where there is no source."""
    if value is None or isinstance(value, nn.Module):
        return [] if value is None else _code_of(type(value))
    target: Any = value if isinstance(value, type) else inspect.unwrap(getattr(value, "__func__", value))
    try:
        return [inspect.getsource(target)]
    except (OSError, TypeError):
        kind = type(target)
        return [
            f"{getattr(target, '__module__', kind.__module__)}.{getattr(target, '__qualname__', kind.__qualname__)}"
        ]


def row_key(subject: str, job: Sequence[Any], device: Mapping[str, Any], installed: Mapping[str, str]) -> str:
    """The key of a candidate's row: what the row would be measured from again. ``job``: its facts, as plain data."""
    return digest(subject, *(json.dumps(f, sort_keys=True) for f in (list(job), dict(device), dict(installed))))
