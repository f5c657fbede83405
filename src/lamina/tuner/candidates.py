"""The candidates that are tried, those that promise most first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from lamina.backends.adapters.optional import absent
from lamina.backends.registry import BUILT_IN
from lamina.base.devices import CUBLAS, kind_of
from lamina.options import MODES
from lamina.tuner.objects import tensors_in
from lamina.tuner.parts import tensors_of
from lamina.tuner.programs import Subject
from lamina.tuner.values import Candidate, parts_in

__all__ = ["by_torch", "candidates_for", "device_of", "devices_of", "drawing_alike", "lacking"]


_EAGERS = ("channels-last", "autocast", "tf32")
"""Kinds whose candidates run eager's operators, unless they are ``compiled`` as well."""


def device_of(subject: Subject) -> torch.device:
    """The device of the model's parameters, or of the first tensor of the inputs, those on a GPU before others."""
    return devices_of(subject)[0]


def devices_of(subject: Subject) -> tuple[torch.device, ...]:
    """All devices of parameters, buffers and the tensors of the inputs, those that are no CPUs first."""
    sample = subject.samples[0]
    found = dict.fromkeys(t.device for t in (*tensors_of(subject.model), *tensors_in((sample.args, sample.kwargs))))
    return tuple(sorted(found, key=lambda device: kind_of(device).host)) or (torch.device("cpu"),)


def candidates_for(subject: Subject, *, lossy: bool) -> tuple[Candidate, ...]:
    """Candidates for a model on its device; ``lossy``: those too that compute in fewer bits than eager."""
    device = device_of(subject)
    graphs = MODES if kind_of(device).queued else ("default", "max-autotune-no-cudagraphs")
    found = [
        Candidate("lamina", "lamina", cost=2),
        Candidate("torch.compile", "torch.compile", cost=2),
        *(Candidate(f"lamina, {mode}", "lamina", {"mode": mode}, cost=3) for mode in graphs[1:]),
    ]
    if isinstance(subject.model, nn.Module) and _convolves(subject.model):
        weights = {"own_weights": False} if subject.training else {}
        found += [
            Candidate("channels-last", "channels-last", weights, cost=2),
            Candidate("lamina, channels-last", "channels-last", {"compiled": "lamina", **weights}, cost=3),
        ]
    if not subject.training:
        found.append(Candidate("lamina, frozen", "lamina", {"options": {"freeze": True}}, cost=3))
        found += _runtimes(device)
    found += [Candidate(f"torch.compile, {mode}", "torch.compile", {"mode": mode}, cost=3) for mode in graphs[1:]]
    return (*found, *(_lossy(subject, device) if lossy else ()))


def drawing_alike(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Those of ``candidates`` that draw eager's random numbers, the compilers among them with the option to do so: of
    a model with dropout in training the others give something else.
    """
    found = []
    for candidate in candidates:
        given = dict(candidate.settings)
        if candidate.kind == "lamina" and not {"backend", "options"} & {*given}:
            given["options"] = {"numerics": "eager"}
        elif candidate.kind == "torch.compile" and not given:
            given["options"] = {"fallback_random": True}
        elif candidate.kind not in _EAGERS or given.get("compiled"):
            continue
        named = f"{candidate.name}, eager's random numbers" if given != candidate.settings else candidate.name
        found.append(replace(candidate, name=named, settings=given))
    return tuple(found)


def _runtimes(device: torch.device) -> list[Candidate]:
    names = ("openvino", "onnxruntime") if kind_of(device).host else ("torch_tensorrt",)
    return [Candidate(name, "lamina", {"backend": name}, cost=4) for name in names]


def _lossy(subject: Subject, device: torch.device) -> list[Candidate]:
    dtypes = ("bfloat16", "float16") if kind_of(device).has(CUBLAS) else ("bfloat16",)
    found = [
        Candidate(
            f"autocast {dtype}{f', {by}' if by else ''}", "autocast", {"dtype": dtype, "compiled": by}, cost, True
        )
        for dtype in dtypes
        for by, cost in (("", 2), ("lamina", 3), ("torch", 3))
    ]
    if kind_of(device).has(CUBLAS):
        found += [
            Candidate("tf32", "tf32", {}, 2, True),
            Candidate("lamina, tf32", "tf32", {"compiled": "lamina"}, 3, True),
        ]
    if not subject.training and isinstance(subject.model, nn.Module):
        found += [
            Candidate(f"torchao {short}{', torch.compile' if by else ''}", "torchao", settings, 4, True)
            for short, config in (
                ("int8 weights", "Int8WeightOnlyConfig"),
                ("int8 dynamic", "Int8DynamicActivationInt8WeightConfig"),
            )
            for by in ("torch", "")
            for settings in ({"config": config, "compiled": by},)
        ]
    return found


def _convolves(owner: nn.Module) -> bool:
    return any(isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)) for m in owner.modules())


def by_torch(candidate: Candidate) -> bool:
    """Whether torch's own compiler runs a candidate."""
    return candidate.kind == "torch.compile" or dict(candidate.settings).get("compiled") == "torch"


def lacking(candidate: Candidate) -> str:
    """The package that a candidate needs and that is not installed, as a command to type; "" if all are there."""
    if candidate.kind == "mix":
        return next(filter(None, (lacking(part) for _, part in parts_in(candidate))), "")
    backend = BUILT_IN.get(str(dict(candidate.settings).get("backend", candidate.kind)))
    missing = [] if backend is None else absent(backend.requires)
    return f"pip install {' '.join(p.replace('_', '-') for p in missing)}" if missing else ""
