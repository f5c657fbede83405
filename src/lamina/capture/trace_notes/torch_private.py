"""What a trace came to that its graph does not tell; names as read in torch 2.11 to 2.13.

Each note is left on the trace's output, by methods of Dynamo that are replaced by ones around them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

import torch
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables import functions, misc, torch_function

__all__ = ["calls_custom_function", "classes_of_tensors", "generators_left", "take_notes", "unseen"]

_CUSTOM_FUNCTION, _GENERATORS, _TENSORS = "lamina_custom_function", "lamina_generators", "lamina_tensors"
"""Attributes of a trace's output: whether the trace came to a custom autograd function, which generators it made, and
of which classes its tensors are that have a ``__torch_function__``."""


def take_notes() -> None:
    """Leave the notes, from now on."""
    _note_custom_functions()
    _note_generators()
    _note_classes_of_tensors()


def _note_custom_functions() -> None:
    """Remember which traces came to a custom autograd function, however the program names it."""
    apply_any = misc.AutogradFunctionVariable.call_apply

    @functools.wraps(apply_any)
    def apply(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        setattr(tx.output, _CUSTOM_FUNCTION, True)
        return apply_any(self, tx, *args, **kwargs)

    misc.AutogradFunctionVariable.call_apply = apply  # type: ignore[method-assign]


def calls_custom_function(output: Any) -> bool:
    """Whether the trace with this ``output`` came to a custom autograd function."""
    return getattr(output, _CUSTOM_FUNCTION, False)


def _note_generators() -> None:
    """Remember the generators that traces make."""
    init_any = functions.LocalGeneratorObjectVariable.__init__

    @functools.wraps(init_any)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        init_any(self, *args, **kwargs)
        vars(self.inline_tracer.output).setdefault(_GENERATORS, []).append(self)

    functions.LocalGeneratorObjectVariable.__init__ = init  # type: ignore[method-assign]


def generators_left(output: Any) -> list[tuple[CodeType, Mapping[str, Any]]]:
    """The code and the globals of generators that the trace with this ``output`` has begun and not ended.

    Those of context managers, whose ``with`` may go on behind a graph, are none.
    """
    made = getattr(output, _GENERATORS, ())
    own = [g for g in made if type(g) is functions.LocalGeneratorObjectVariable]
    left = [g for g in own if not (g._is_generator_just_started() or g._is_generator_exhausted())]
    return [(g.get_code(), g.inline_tracer.f_globals) for g in left]


def _note_classes_of_tensors() -> None:
    """Remember the classes of tensors with a ``__torch_function__`` that traces come to."""
    install_any = torch_function.TensorWithTFOverrideVariable.install_global

    @functools.wraps(install_any)
    def install(self: Any, tx: Any) -> None:
        vars(tx.output).setdefault(_TENSORS, []).append(self.class_type)
        install_any(self, tx)

    torch_function.TensorWithTFOverrideVariable.install_global = install  # type: ignore[method-assign]


def classes_of_tensors(output: Any) -> list[type]:
    """The classes of tensors with a ``__torch_function__`` that the trace with this ``output`` came to."""
    return getattr(output, _TENSORS, [])


def unseen(made: Callable[..., Any]) -> Callable[..., Any]:
    """What was ``made`` of the graph, such that it shows no class of tensors what it does with tensors of this class.

    What such a class does to the program's calls is in the graph.
    """
    try:
        tx = InstructionTranslator.current_tx()
    except AttributeError:  # none has ever run in this thread
        return made
    if tx is None or not classes_of_tensors(tx.output):
        return made

    def call(*given: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return made(*given)

    return call
