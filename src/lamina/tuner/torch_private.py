"""Modules that share everything with another but the children or the forward function that are replaced, where a
module holds its tensors, and what compiling it in place leaves there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from lamina.runtime.torch_private import version_of

__all__ = [
    "COMPILER_OF_CPU",
    "MARKS",
    "as_called",
    "calls_in_place_through",
    "children_of",
    "compiled_in_place",
    "find_instructions",
    "shadow",
    "slots_of",
    "stamp_of",
    "with_forward",
    "without_hooks",
]

COMPILER_OF_CPU = ("torch._inductor.compile_fx", "lamina.tuner.preloaded")
"""Modules that ``torch.compile`` loads in its first call, which takes longer than to compile a small model, and what it
finds out of a CPU. Where torch sees a GPU, they ask for it, and a process that has asked has no forks that can use it.
"""

MARKS = ("_is_torch_compile", "_compiled", "_dynamo", "_torchdynamo", "_lamina")
"""How attributes begin that compilers leave at a module: they say nothing of what it computes."""


def find_instructions() -> None:
    """Have torch's compiler find out the vector instructions of this processor, which it does once in a process: it
    runs a program for each set of them, and before torch 2.13 each imports torch.
    """
    pick: Any = import_module("torch._inductor.cpu_vec_isa").pick_vec_isa
    pick()


def children_of(module: nn.Module) -> dict[str, nn.Module]:
    """The direct children by name, one that is there twice twice; ``named_children`` leaves the second out."""
    return {name: child for name, child in module._modules.items() if child is not None}


_IN_PLACE = "_compiled_call_impl"
"""Where ``module.compile()`` leaves the compiled call, which pickle leaves out."""


def compiled_in_place(module: nn.Module) -> bool:
    """Whether ``module.compile()`` was called."""
    return vars(module).get(_IN_PLACE) is not None


def as_called(module: nn.Module) -> nn.Module:
    """The module without what ``module.compile()`` left."""
    other = shadow(module)
    other.__dict__.pop(_IN_PLACE, None)
    return other


@contextmanager
def calls_in_place_through(
    module: nn.Module, around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Within it, calls of a module that is compiled in place go through what ``around`` makes of its compiled call."""
    held = vars(module)
    call = held[_IN_PLACE]
    held[_IN_PLACE] = around(call)
    try:
        yield
    finally:
        held[_IN_PLACE] = call


def slots_of(module: nn.Module) -> list[tuple[dict[str, Tensor | None], str]]:
    """Where the parameters and buffers of a module and of those within stand: mappings with the names in them."""
    held: list[Any] = [places for m in module.modules() for places in (m._parameters, m._buffers)]
    return [(places, name) for places in held for name in places]


def stamp_of(slots: list[tuple[dict[str, Tensor | None], str]]) -> list[tuple[int, int] | None]:
    """What changes when one of the tensors is written to or replaced: addresses and versions. A write that torch does
    not count, such as one to ``tensor.data``, is not seen, nor are those to tensors of inference mode.
    """
    found = [places.get(name) for places, name in slots]
    try:
        return [None if t is None else (t.data_ptr(), version_of(t)) for t in found]
    except RuntimeError:  # one is of inference mode
        return [None if t is None else (t.data_ptr(), 0 if t.is_inference() else version_of(t)) for t in found]


def shadow(module: nn.Module, children: Mapping[str, nn.Module] | None = None) -> nn.Module:
    """A module of the same class with the same parameters, buffers and attributes, and ``children`` in place of its own
    of these names. A buffer that one of the two sets is set in both.
    """
    other: nn.Module = object.__new__(type(module))
    other.__dict__.update(module.__dict__)
    other.__dict__["_modules"] = {**module._modules, **(children or {})}
    return other


def without_hooks(module: nn.Module) -> nn.Module:
    """The same without the hooks of calls, which ``with_forward`` keeps around what is made of it."""
    other = shadow(module)
    other.__dict__.update({name: OrderedDict() for name in _hooks(module)})
    return other


def with_forward(module: nn.Module, forward: Callable[..., Any], hooked: nn.Module) -> nn.Module:
    """A module that is ``module`` in all but its forward function, with the hooks of ``hooked``."""
    other = shadow(module)
    other.__dict__.update(_hooks(hooked))
    other.__dict__["forward"] = forward
    return other


def _hooks(module: nn.Module) -> dict[str, Any]:
    prefixes = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {name: value for name, value in vars(module).items() if name.startswith(prefixes)}
