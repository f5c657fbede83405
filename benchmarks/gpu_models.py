"""Speed and error of whole models on a GPU: inference, and a training step up to the gradients. bf16, random weights.

``python -m benchmarks.gpu_models --rows gpt2 resnet50 --only forward --rivals eager torch``

Models come from their configurations; nothing is downloaded. Needs timm and transformers. The two language models that
have dropout train with it, and are compared in inference only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu_driver import run
from benchmarks.gpu_programs import GpuData, GpuProgram, Program
from benchmarks.report import RESULTS

__all__ = ["MODELS", "image", "language", "main"]


def _optional(name: str) -> Any:
    """The package ``timm`` or ``transformers``."""
    # The one place where optional packages are imported: a row without its package fails alone, with this message.
    try:
        return __import__(name)
    except ImportError as error:
        raise RuntimeError(f"this row needs the package {name!r}: pip install {name}") from error


def image(name: str, batch: int, size: int = 224) -> Callable[[GpuData], Program]:
    """The model of that name in timm; trained on cross entropy."""

    def build(data: GpuData) -> Program:
        model = data.module(lambda: _optional("timm").create_model(name, pretrained=False))
        images, labels = data.randn(batch, 3, size, size), data.integers(1000, batch)
        if data.training:
            state = tuple(model.buffers())
            return Program(lambda x, y: F.cross_entropy(model(x), y), (images, labels), state)
        return Program(lambda x: model(x), (images,))

    return build


Make = Callable[[Any], nn.Module]


def language(make: Make, batch: int, length: int, words: int) -> Callable[[GpuData], Program]:
    """A model of the package transformers, made by ``make(transformers)``; trained on its own loss."""

    def build(data: GpuData) -> Program:
        model = data.module(lambda: make(_optional("transformers")))
        tokens = data.integers(words, batch, length)
        if data.training:

            def step(tokens: Tensor) -> Tensor:
                return model(input_ids=tokens, labels=tokens).loss

            return Program(step, (tokens,))
        return Program(lambda tokens: model(input_ids=tokens).logits, (tokens,))

    return build


def _bert(transformers: Any) -> nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig())  # type: ignore[no-any-return]


def _gpt2(transformers: Any) -> nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))  # type: ignore[no-any-return]


def _llama(transformers: Any) -> nn.Module:
    """The sizes of Llama 3.2 1B."""
    config = transformers.LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)  # type: ignore[no-any-return]


def _rows() -> list[GpuProgram]:
    both, forward, training = ("forward", "training"), ("forward",), ("training",)
    bert, gpt2 = language(_bert, 32, 512, 30522), language(_gpt2, 8, 1024, 50257)
    rows: tuple[tuple[str, Callable[[GpuData], Program], tuple[str, ...], bool], ...] = (
        ("resnet50", image("resnet50", 128), both, False),
        ("vit_base", image("vit_base_patch16_224", 64), both, False),
        ("convnext_tiny", image("convnext_tiny", 64), both, False),
        ("bert_base", bert, forward, False),
        ("bert_base", bert, training, True),
        ("gpt2", gpt2, forward, False),
        ("gpt2", gpt2, training, True),
        ("llama_1b", language(_llama, 2, 2048, 128256), both, False),
    )
    return [GpuProgram(name, build, modes, random, bound_by_bytes=False) for name, build, modes, random in rows]


MODELS = tuple(_rows())


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON; 1 if a result is wrong."""
    return run("GPU models", MODELS, RESULTS / "gpu_models.json", __doc__, argv, "benchmarks.gpu_models")


if __name__ == "__main__":
    raise SystemExit(main())
