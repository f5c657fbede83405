"""What users do around a model's forward pass: mixed precision, decoding with a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

__all__ = ["Autocast", "Decoding"]


class _Around(nn.Module):
    """Calls ``model`` through ``call``, which is the model itself or what it was compiled to."""

    def __init__(self, model: nn.Module, call: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.model = model
        # In a list it is no submodule: all names are those of the model's own.
        self.calls: list[Callable[..., Any]] = [model if call is None else call]


class Autocast(_Around):
    """The forward pass in bfloat16 where autocast wants it."""

    def forward(self, **inputs: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.calls[0](**inputs)


class Decoding(_Around):
    """Token by token, with the keys and values of the tokens before; returns the logits of each step.

    ``static`` makes the cache one buffer of fixed length, written in place. The tokens are given, so that a tie between
    two of them decides nothing.
    """

    def __init__(self, model: nn.Module, call: Callable[..., Any] | None = None, static: bool = False) -> None:
        super().__init__(model, call)
        self.static = static

    def forward(self, tokens: Tensor, prompt: int) -> list[Tensor]:
        config: Any = self.model.config
        length = tokens.size(1)
        cache = transformers.StaticCache(config, max_cache_len=length) if self.static else transformers.DynamicCache()
        pieces = [tokens[:, :prompt], *tokens[:, prompt:].split(1, dim=1)]
        steps, start = [], 0
        for piece in pieces:
            position = torch.arange(start, start + piece.size(1))
            out = self.calls[0](
                input_ids=piece, past_key_values=cache, use_cache=True, position_ids=position[None].expand(2, -1)
            )
            steps.append(out.logits[:, -1])
            cache, start = out.past_key_values, start + piece.size(1)
        return steps
