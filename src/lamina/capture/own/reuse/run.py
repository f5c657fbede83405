"""What an interpreted call has run, graphs and calls between them, as the trace of the call keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lamina.base.devices import kind_of
from lamina.base.rng_state import rng_state, set_rng_state
from lamina.capture.own.torch_private import is_from_a_hook
from lamina.capture.own.trials import Tried
from lamina.capture.own.writing import Anew

__all__ = ["Called", "Ran", "Run", "begun_anew"]


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
    ``trial`` is as that of ``Run``; where it does not hold, the interpreter makes the call. So it does where a graph
    raises that ``begins_anew``: it has done nothing but draw.
    """

    run: Callable[..., Any]
    given: tuple[str, ...]
    results: int
    within: bool | None
    aliased: bool
    spoils: bool
    autocast: tuple[Any, ...] | None = None
    trial: Tried | None = None
    begins_anew: bool = False


def begun_anew(run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, a graph that draws; where it raises, random generators are as before and ``Anew`` is raised."""

    def called(*inputs: Any) -> Any:
        queued = {one.device for one in inputs if isinstance(one, torch.Tensor) and kind_of(one).queued}
        states = [(rng_state(device), device) for device in (torch.device("cpu"), *queued)]
        try:
            return run(*inputs)
        except Exception as error:
            if isinstance(error, Anew) or is_from_a_hook(error):
                raise
            for state, device in states:
                set_rng_state(state, device)
            raise Anew from error

    return called
