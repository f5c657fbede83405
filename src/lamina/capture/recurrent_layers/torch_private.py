"""How torch takes an LSTM on a CPU apart where it is captured (allow_rnn); names as read in torch 2.11 to 2.13."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch._decomp import decompositions

__all__ = ["correct_recurrent_layers"]


@functools.cache
def correct_recurrent_layers() -> None:
    """Have an LSTM of whose weights gradients are asked taken apart into steps, once for the process.

    Torch asks its input alone, and takes one call of a library for the layer, which saves nothing for the backward:
    any compiled training of an LSTM whose input has no gradient raises then, whatever the backend.
    """
    select: Any = decompositions.select_one_layer_lstm_function
    by_steps = decompositions.one_layer_lstm

    @functools.wraps(select)
    def selected(input: torch.Tensor, hx: Sequence[torch.Tensor], params: Sequence[Sequence[torch.Tensor]]) -> Any:
        trained = any(tensor.requires_grad for tensor in chain(hx, *params))
        return by_steps if trained and torch.is_grad_enabled() else select(input, hx, params)

    decompositions.select_one_layer_lstm_function = selected
