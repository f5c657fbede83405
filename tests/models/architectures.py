"""Ten transformers architectures, a residual block, attention by hand and a small GPT: tiny, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from lamina.cli.demo_models import GPT, Attention, ResidualBlock

__all__ = ["ARCHITECTURES", "Architecture", "Case", "case"]

VOCABULARY = 61
BATCH, LENGTH = 2, 10


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model by name: how to make it, and the keyword arguments of one call (with labels: a loss comes first)."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """A model with inputs, in one dtype and on one device; the same seed gives the same numbers."""

    model: nn.Module
    inputs: dict[str, Any]


def case(architecture: Architecture, dtype: torch.dtype, seed: int = 0, device: str = "cpu") -> Case:
    """Build ``architecture`` in evaluation mode; weights and inputs are drawn in fp32 and rounded to ``dtype``.

    They are drawn on the CPU whatever ``device`` they go to.
    """
    torch.manual_seed(seed)
    model = architecture.make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:  # norms with weight 1 and bias 0 hide mistakes
                parameter.add_(torch.randn_like(parameter) * 0.1)
    drawn = {k: v.to(dtype) if _is_float(v) else v for k, v in architecture.inputs().items()}
    inputs = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in drawn.items()}
    if isinstance(model, ResidualBlock):
        model.train()  # batch statistics, without which the block is a chain of pointwise operations
    return Case(model.to(device, dtype), inputs)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _tokens(length: int = LENGTH) -> Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, length))


def _text(**more: Tensor) -> dict[str, Any]:
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[1, 7:] = 0
    return {"input_ids": _tokens(), "attention_mask": mask, "labels": _tokens(), **more}


DEVIATION = 0.06
"""Of the initial weights: with the usual 0.02 models as small as these are almost linear."""

LAYERS: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": DEVIATION}
SMALL: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, **LAYERS}


def _bert() -> nn.Module:
    config = transformers.BertConfig(**SMALL, intermediate_size=48, max_position_embeddings=16)
    return transformers.BertForMaskedLM(_by_hand(config))


def _distilbert() -> nn.Module:
    config = transformers.DistilBertConfig(
        vocab_size=VOCABULARY,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=48,
        max_position_embeddings=16,
        initializer_range=DEVIATION,
    )
    return transformers.DistilBertForMaskedLM(config)


def _gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=16, initializer_range=DEVIATION
    )
    return transformers.GPT2LMHeadModel(_by_hand(config))


def _llama() -> nn.Module:
    config = transformers.LlamaConfig(**SMALL, intermediate_size=48, num_key_value_heads=2, max_position_embeddings=16)
    return transformers.LlamaForCausalLM(config)


def _mixtral() -> nn.Module:
    config = transformers.MixtralConfig(
        **SMALL,
        intermediate_size=48,
        num_key_value_heads=2,
        max_position_embeddings=16,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    return transformers.MixtralForCausalLM(_by_hand(config))


def _mamba() -> nn.Module:
    config = transformers.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=32, state_size=8, num_hidden_layers=2, use_mambapy=False
    )
    return transformers.MambaForCausalLM(config)


def _t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def _vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=32,
        **LAYERS,
        intermediate_size=48,
        image_size=16,
        patch_size=4,
        num_labels=5,
    )
    return transformers.ViTForImageClassification(config)


def _whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=8,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_source_positions=12,
        max_target_positions=16,
        decoder_start_token_id=1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        init_std=DEVIATION,
    )
    return transformers.WhisperForConditionalGeneration(config)


def _clip() -> nn.Module:
    same = {**SMALL, "intermediate_size": 48, "initializer_range": 0.02, "initializer_factor": 3.0}
    text = {**same, "max_position_embeddings": 16, "eos_token_id": 2, "bos_token_id": 1}
    vision = {**same, "image_size": 16, "patch_size": 4}
    del vision["vocab_size"]
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=24, initializer_factor=3.0)
    return transformers.CLIPModel(config)


def _clip_inputs() -> dict[str, Any]:
    # The text feature is taken at the end token, found by an argmax: over integers, so rounding cannot move it.
    tokens = _tokens()
    tokens[0, 6], tokens[1, 9] = 2, 2
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "pixel_values": torch.randn(BATCH, 3, 16, 16),
        "return_loss": True,
    }


class _SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(32, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.attention(x, x, x, mask)


def _attention_inputs() -> dict[str, Any]:
    return {"x": torch.randn(2, 9, 32), "mask": torch.ones(9, 9).tril()}


def _gpt_inputs() -> dict[str, Any]:
    return {"tokens": _tokens(), "targets": _tokens()}


def _by_hand(config: Any) -> Any:
    config._attn_implementation = "eager"
    return config


ARCHITECTURES = (
    Architecture("bert", _bert, _text),
    Architecture("gpt2", _gpt2, _text),
    Architecture("llama", _llama, _text),
    Architecture("t5", _t5, _text),
    Architecture("vit", _vit, lambda: {"pixel_values": torch.randn(BATCH, 3, 16, 16), "labels": torch.tensor([1, 4])}),
    Architecture("whisper", _whisper, lambda: {"input_features": torch.randn(BATCH, 8, 24), "labels": _tokens()}),
    Architecture("mamba", _mamba, lambda: {"input_ids": _tokens(5), "labels": _tokens(5)}),
    # Few tokens: inputs where rounding turns the choice of an expert are left out.
    Architecture("mixtral", _mixtral, lambda: {"input_ids": _tokens(3), "labels": _tokens(3)}),
    Architecture("clip", _clip, _clip_inputs),
    Architecture("distilbert", _distilbert, _text),
    # Many pixels: a rounding that turns one ReLU must not decide a gradient.
    Architecture("resnet_block", lambda: ResidualBlock(6, 8, 2), lambda: {"x": torch.randn(16, 6, 16, 16)}),
    Architecture("attention_by_hand", _SelfAttention, _attention_inputs),
    Architecture("demo_gpt", lambda: GPT(VOCABULARY, 16, 32, 4, 3), _gpt_inputs),
)
