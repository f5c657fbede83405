"""Submodules of models, with what each was given in a call of the whole model: harvested by forward hooks.

Models are made from their configurations with one or two layers and random weights; nothing is downloaded. What is not
installed is left out, and said so.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.patterns import private_copy
from benchmarks.sweeping.case import Case, Problem, Skipped, Variant
from lamina.base.reference import mapped
from lamina.testing import tensors

__all__ = ["Harvested", "cases", "harvested", "missing"]

MOST = 6
"""Submodules of one model: the first of each class and shape of inputs, the largest first."""

PARAMETERS = 60_000_000
"""Models with more are left out: each rival has a copy of a submodule."""

LAYERS = 2
LIMITS = {
    "num_hidden_layers n_layer num_layers n_layers encoder_layers decoder_layers": LAYERS,
    "hidden_size n_embd d_model dim": 768,
    "intermediate_size ffn_dim d_ff n_inner encoder_ffn_dim decoder_ffn_dim": 3072,
    "num_attention_heads n_head num_heads n_heads": 12,
    "num_key_value_heads": 4,
    "num_local_experts num_experts": 4,
}
"""The largest value of each setting of a configuration."""

IMAGE, WORDS, LENGTH = 224, 1000, 128

TRANSFORMERS = (
    "albert", "bart", "bert", "bloom", "convbert", "convnext", "deberta-v2", "deit", "distilbert", "electra", "esm",
    "falcon", "fnet", "gemma2", "gpt2", "gpt_neox", "gptj", "granite", "levit", "llama", "longformer", "mamba",
    "mistral", "mixtral", "mobilebert", "mobilevit", "mpnet", "opt", "phi", "poolformer", "qwen2", "qwen3", "regnet",
    "roformer", "segformer", "swin", "t5", "vit", "xlnet",
)  # fmt: skip
TIMM = (
    "coatnet_0_rw_224", "convnext_atto", "edgenext_xx_small", "efficientnet_b0", "fastvit_t8", "ghostnet_100",
    "levit_128s", "maxvit_tiny_tf_224", "mixer_s32_224", "mobilenetv3_small_100", "mobilevit_xxs", "pit_ti_224",
    "poolformer_s12", "pvt_v2_b0", "regnety_002", "res2net50_26w_4s", "resnest14d", "swin_tiny_patch4_window7_224",
    "twins_svt_small", "xcit_nano_12_p16_224",
)  # fmt: skip
TORCHVISION = (
    "densenet121", "efficientnet_b0", "googlenet", "maxvit_t", "mnasnet0_5", "mobilenet_v3_small", "regnet_y_400mf",
    "resnet18", "shufflenet_v2_x0_5", "squeezenet1_0", "swin_v2_t", "vit_b_16",
)  # fmt: skip
LIBRARIES = {"transformers": TRANSFORMERS, "timm": TIMM, "torchvision": TORCHVISION}


@dataclass(frozen=True, slots=True)
class Harvested:
    """A submodule and the arguments that it was called with."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def missing() -> list[str]:
    """A line for each library that is not installed."""
    return [f"no submodules of {name}: it is not installed" for name in LIBRARIES if find_spec(name) is None]


def cases() -> list[Case]:
    """``MOST`` programs for each model whose library is installed; those that a model does not have are skipped."""
    return [
        Case(f"harvested/{library}/{model}/{place}", (f"model {model}",), partial(_problem, library, model, place))
        for library, models in LIBRARIES.items()
        if find_spec(library) is not None
        for model in models
        for place in range(MOST)
    ]


def harvested(model: nn.Module, inputs: dict[str, Any]) -> list[Harvested]:
    """Submodules that have parts of their own, one of each class and shapes of inputs, as the model calls them."""
    found: dict[Any, Harvested] = {}

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        given = tensors((args, dict(kwargs)))
        key = (type(module), *(t.shape for t in given))
        if given and key not in found:
            found[key] = Harvested(module, mapped(args, _detached), mapped(dict(kwargs), _detached))

    hooks = [
        module.register_forward_pre_hook(note, with_kwargs=True)
        for module in model.modules()
        if module is not model and next(module.children(), None) is not None and not isinstance(module, nn.ModuleList)
    ]
    try:
        with torch.no_grad():
            model(**inputs) if inputs.keys() != {"x"} else model(inputs["x"])
    finally:
        for hook in hooks:
            hook.remove()
    kept: dict[type[nn.Module], Harvested] = {}
    for part in sorted(found.values(), key=_elements, reverse=True):
        kept.setdefault(type(part.module), part)
    return list(kept.values())[:MOST]


def _elements(part: Harvested) -> int:
    return sum(t.numel() for t in tensors((part.args, part.kwargs)))


def _detached(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


@lru_cache(maxsize=4)
def _parts(library: str, model: str, batch: int) -> list[Harvested]:
    torch.manual_seed(0)
    try:
        made, inputs = _made(library, model, batch)
        return harvested(made.eval(), inputs)
    except Skipped:
        raise
    except Exception as problem:
        raise Skipped(f"{library}/{model} cannot be made: {type(problem).__name__}: {str(problem)[:80]}") from None


@cache
def _library(name: str) -> Any:
    return import_module(name)


def _made(library: str, model: str, batch: int) -> tuple[nn.Module, dict[str, Any]]:
    if library == "timm":
        return _library("timm").create_model(model, pretrained=False), {"x": torch.randn(batch, 3, IMAGE, IMAGE)}
    if library == "torchvision":
        made = _library("torchvision.models").get_model(model, weights=None)
        return made, {"x": torch.randn(batch, 3, IMAGE, IMAGE)}
    transformers = _library("transformers")
    config = _configuration(transformers, model)
    with torch.device("meta"):
        size = sum(p.numel() for p in transformers.AutoModel.from_config(config).parameters())
    if size > PARAMETERS:
        raise Skipped(f"{library}/{model} cannot be made: too many parameters")
    made = transformers.AutoModel.from_config(config)
    if getattr(made, "main_input_name", "input_ids") == "pixel_values":
        size = getattr(config, "image_size", IMAGE)
        sides = size if isinstance(size, (list, tuple)) else (size, size)
        return made, {"pixel_values": torch.randn(batch, getattr(config, "num_channels", 3), *sides)}
    tokens = torch.randint(5, WORDS, (batch, LENGTH))
    inputs = {"input_ids": tokens}
    return made, inputs | ({"decoder_input_ids": tokens} if config.is_encoder_decoder else {})


def _configuration(transformers: Any, model: str) -> Any:
    """The default one with fewer layers, words and experts, and narrower where it is of a large model."""
    config = transformers.AutoConfig.for_model(model)
    for names, most in LIMITS.items():
        for name in names.split():
            value = getattr(config, name, None)
            if type(value) is int and value > most:
                setattr(config, name, most)
    if getattr(config, "layer_types", None):
        config.layer_types = list(config.layer_types)[:LAYERS]
    if hasattr(config, "vocab_size"):
        config.vocab_size = max(WORDS, 1 + max(_special(config), default=0))
    config.use_cache = False
    return config


def _special(config: Any) -> list[int]:
    """Tokens that the model looks up by number."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    return [value for name in names if isinstance(value := getattr(config, name, None), int)]


def _problem(library: str, model: str, place: int, variant: Variant) -> Problem:
    parts = _parts(library, model, max(1, round(variant.scale / 4)))
    if place >= len(parts):
        raise Skipped("the model has fewer kinds of submodules")
    part = parts[place]
    module = copy.deepcopy(part.module).to(variant.device, variant.torch_dtype).eval()
    module.requires_grad_(variant.training)

    def placed(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if not leaf.is_floating_point():
            return leaf.to(variant.device)
        return leaf.to(variant.device, variant.torch_dtype, copy=True).requires_grad_(variant.training)

    def program(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return module(*args, **kwargs)

    args, kwargs = mapped(part.args, placed), mapped(part.kwargs, placed)
    function: Callable[..., Any] = private_copy(program)
    leaves = (*module.parameters(), *(t for t in tensors((args, kwargs)) if t.requires_grad))
    return Problem(function, (args, kwargs), leaves if variant.training else (), module=module)
