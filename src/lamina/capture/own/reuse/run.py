"""What an interpreted call has run, graphs and calls between them, as the trace of the call keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lamina.capture.own.trials import Tried

__all__ = ["Called", "Ran", "Run"]


@dataclass(frozen=True, slots=True)
class Run:
    """A graph that was run on ``inputs`` in grad mode ``grad`` and autocast's state ``autocast``, giving ``results``.

    ``switches``: it changes the grad mode within; ``draws``: it draws random numbers; ``writes``: it writes to
    tensors; ``aliased``: a result was an input, or another result, of which a view was made. ``numbers``: integers
    that it is given after its inputs. ``written``: the inputs that it may write to. ``handled``: it may raise what the
    program goes on after, and is known not to where there is a ``trial`` and that holds.
    """

    run: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    results: tuple[torch.Tensor, ...]
    grad: bool
    autocast: tuple[Any, ...]
    switches: bool
    draws: bool
    writes: bool
    aliased: bool
    numbers: tuple[int, ...] = ()
    written: tuple[torch.Tensor, ...] = ()
    handled: bool = False
    trial: Tried | None = None


@dataclass(frozen=True, slots=True)
class Called:
    """A call of torch's between graphs as a step of a trace: ``function(*operands, **keywords)``.

    Tensors among the operands, also within lists and tuples, are ``Ref``s. ``names`` are variables for what it gives,
    one for each part of a tuple. ``within`` and ``autocast`` are as those of ``Ran``.
    """

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    keywords: dict[str, Any]
    names: tuple[str, ...]
    in_tuple: bool
    within: bool | None
    autocast: tuple[Any, ...] | None
    spoils: bool


@dataclass(frozen=True, slots=True)
class Ran:
    """The same as a step of a trace: ``given`` are variables of the driver, ``results`` is the number of results.

    ``within`` and ``autocast`` are the grad mode and autocast's state, None for those in which the call began.
    ``trial`` is as that of ``Run``; where it does not hold, the interpreter makes the call.
    """

    run: Callable[..., Any]
    given: tuple[str, ...]
    results: int
    within: bool | None
    aliased: bool
    spoils: bool
    autocast: tuple[Any, ...] | None = None
    trial: Tried | None = None
