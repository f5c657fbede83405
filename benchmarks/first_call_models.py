"""Forty small models of three libraries, with random weights, whose first calls are measured."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import nn

__all__ = ["MODELS", "build"]

Inputs = dict[str, Any]

_TIMM = {
    "ghostnet_050": 64, "tf_efficientnetv2_b0": 64, "hrnet_w18_small": 64, "res2net50_14w_8s": 64, "fastvit_t8": 64,
    "xcit_nano_12_p16_224": 224, "mobilenetv3_small_050": 64, "efficientnet_lite0": 64, "mobilevit_xxs": 64,
    "resnet10t": 64, "regnetx_002": 64, "repvgg_a0": 64, "convnext_atto": 64, "edgenext_xx_small": 64,
    "densenet121": 64, "dla34": 64, "mixer_s32_224": 224, "deit_tiny_patch16_224": 224, "levit_128s": 224,
    "poolformerv2_s12": 64, "tinynet_e": 64, "lcnet_050": 64,
}  # fmt: skip
"""Models of timm, and the side of an image for each."""

_TORCHVISION = ("mobilenet_v2", "shufflenet_v2_x0_5", "squeezenet1_1", "mnasnet0_5", "googlenet", "efficientnet_b0")

_IMAGES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "hf_resnet": ("ResNet", {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 96], "depths": [2, 2, 2, 2]}),
    "hf_mobilenet_v2": ("MobileNetV2", {"depth_multiplier": 0.35}),
    "hf_regnet": ("RegNet", {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 96], "depths": [1, 2, 2, 1]}),
    "hf_convnext": ("ConvNext", {"hidden_sizes": [16, 32, 64, 96], "depths": [2, 2, 3, 2]}),
    "hf_swin": ("Swin", {"image_size": 64, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}),
    "hf_efficientnet": ("EfficientNet", {"width_coefficient": 0.25, "hidden_dim": 320, "image_size": 64}),
}
"""Models of images of transformers, with what their configurations have of its own."""

_WORDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "hf_bert": ("Bert", {}),
    "hf_gpt2": ("GPT2", {"n_embd": 64, "n_layer": 4, "n_head": 4}),
    "hf_llama": ("Llama", {"num_key_value_heads": 2}),
    "hf_t5_encoder": ("T5Encoder", {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 4, "num_heads": 4}),
    "hf_distilbert": ("DistilBert", {"dim": 64, "n_layers": 4, "n_heads": 4, "hidden_dim": 128}),
    "hf_qwen2": ("Qwen2", {"num_key_value_heads": 2}),
}
"""Models of words of transformers."""

_SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}


def build(name: str, size: int = 0) -> tuple[nn.Module, Inputs]:
    """The model called ``name`` and the keywords of its call: two images, or two rows of 24 words.

    ``size`` is the side of the images (0: the model's own). Raises ``ImportError`` without the model's library.
    """
    torch.manual_seed(0)
    return MODELS[name](name, size)


def _timm(name: str, size: int) -> tuple[nn.Module, Inputs]:
    _import_torchvision()
    model = import_module("timm").create_model(name, num_classes=10)
    return model, {"x": _images(size or _TIMM[name])}


def _torchvision(name: str, size: int) -> tuple[nn.Module, Inputs]:
    _import_torchvision()
    given = {"aux_logits": False, "init_weights": True} if name == "googlenet" else {}
    model = getattr(import_module("torchvision.models"), name)(num_classes=10, **given)
    return model, {"x": _images(size or 64)}


def _import_torchvision() -> None:
    """Import torchvision, without its own operators where they are built for another torch: no model needs them."""
    try:
        import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")
        import_module("torchvision")


def _hf_images(name: str, size: int) -> tuple[nn.Module, Inputs]:
    family, given = _IMAGES[name]
    return _transformers(family, given), {"pixel_values": _images(size or 64)}


def _hf_words(name: str, size: int) -> tuple[nn.Module, Inputs]:
    del size
    family, given = _WORDS[name]
    small = {} if "n_layer" in given or "n_layers" in given or "num_layers" in given else _SMALL
    model = _transformers(family, {"vocab_size": 128, **small, **given})
    return model, {"input_ids": torch.randint(2, 120, (2, 24))}


def _transformers(family: str, given: Mapping[str, Any]) -> nn.Module:
    with contextlib.suppress(ImportError):
        _import_torchvision()  # transformers imports it where it is there
    library = import_module("transformers")
    config = getattr(library, f"{family.removesuffix('Encoder')}Config")(**given)
    model: nn.Module = getattr(library, f"{family}Model")(config)
    return model


def _images(side: int) -> torch.Tensor:
    return torch.randn(2, 3, side, side)


MODELS: Mapping[str, Callable[[str, int], tuple[nn.Module, Inputs]]] = {
    **dict.fromkeys(_TIMM, _timm),
    **dict.fromkeys(_TORCHVISION, _torchvision),
    **dict.fromkeys(_IMAGES, _hf_images),
    **dict.fromkeys(_WORDS, _hf_words),
}
"""How each model is made, by name."""
