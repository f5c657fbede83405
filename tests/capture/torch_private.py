"""Settings of Dynamo's that tests of capture take; names as read in torch 2.11 to 2.13."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch._dynamo import config

__all__ = ["recurrent_layers_captured"]


def recurrent_layers_captured() -> AbstractContextManager[None]:
    """Within, Dynamo captures LSTM, GRU and RNN."""
    return config.patch(allow_rnn=True)
