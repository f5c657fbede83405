"""What nodes of an autograd function do besides what AOTAutograd wrote for them, as read in torch 2.11 to 2.13."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lamina.aot.torch_private import never_captured

__all__ = [
    "node_class",
    "sequence_number",
    "serve_differentiated",
    "serve_nothing",
    "serve_saved",
    "serve_sparse",
]


def node_class(function: Any) -> type:
    """The class of the nodes, and contexts, of an autograd function."""
    found: type = function._backward_cls
    return found


def _put_around(function: Any, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Let nodes of ``function`` run what ``around`` makes of their backward, whichever way the engine calls it."""
    node: Any = node_class(function)
    for name in ("apply", "apply_boxed"):
        usual = getattr(node, name, None)
        if usual is not None:
            setattr(node, name, around(usual))


def serve_saved(function: Any, saved: Callable[[Any], Any], clears: Callable[[Any], None]) -> None:
    """Let contexts of ``function`` answer with ``saved``, and call ``clears`` before theirs are given up."""
    node: Any = node_class(function)

    usual = node.maybe_clear_saved_tensors

    def clear(ctx: Any) -> None:
        clears(ctx)
        usual(ctx)

    never_captured(clear)
    node.saved_tensors = property(saved)
    node.maybe_clear_saved_tensors = clear
    node.freed = node.kept = None
    node.ran, node.saves = False, 1  # as long as it is not known how many


def serve_nothing(function: Any, nothing: Callable[[Any], None]) -> None:
    """Call ``nothing`` with a context of ``function`` that no gradient arrives at; its backward is then not run.

    That shows in contexts that are not to make zeros of what is not there.
    """
    _put_around(function, lambda usual: _unless_nothing(usual, nothing))


def _unless_nothing(usual: Callable[..., Any], nothing: Callable[[Any], None]) -> Callable[..., Any]:
    def apply(ctx: Any, *arguments: Any) -> Any:
        gradients = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], list) else arguments
        for gradient in gradients:
            if gradient is not None:
                return usual(ctx, *arguments)
        nothing(ctx)
        return (None,) * len(ctx.needs_input_grad)

    never_captured(apply)
    return apply


def serve_sparse(function: Any) -> None:
    """Give ``function`` gradients that arrive sparse as dense ones: AOTAutograd asks for their strides."""
    _put_around(function, _made_dense)


def _made_dense(usual: Callable[..., Any]) -> Callable[..., Any]:
    def apply(ctx: Any, *arguments: Any) -> Any:
        boxed = len(arguments) == 1 and isinstance(arguments[0], list)
        gradients = arguments[0] if boxed else arguments
        for gradient in gradients:
            if gradient is not None and gradient.layout is not torch.strided:
                break
        else:
            return usual(ctx, *arguments)
        dense = [g if g is None or g.layout is torch.strided else g.to_dense() for g in gradients]
        return usual(ctx, dense) if boxed else usual(ctx, *dense)

    never_captured(apply)
    return apply


def serve_differentiated(
    function: Any,
    arrived: Callable[[Sequence[Any]], Sequence[Any]],
    made: Callable[[Any, Sequence[Any], Sequence[torch.Tensor], Sequence[Any]], Any],
) -> None:
    """Let the gradients that nodes of ``function`` give with ``create_graph=True`` be what is ``made`` of them.

    It is given the node, the gradients that ``arrived``, what leads to the node's inputs and to gradients that arrive
    with a history, and the node's own gradients. These lead to what AOTAutograd saved only, so that one asked for
    through them seems not to be there. Inputs that are leaves are found from the node; who calls the function notes
    what leads to the others as ``behind``, and may note what the inputs are known by as ``anchors`` and ``taken``.
    """
    node: Any = node_class(function)
    node.behind, node.anchors, node.taken = (), (), None

    def marking(usual: Callable[..., Any]) -> Callable[..., Any]:
        def apply(ctx: Any, *arguments: Any) -> Any:
            if not torch.is_grad_enabled():
                return usual(ctx, *arguments)
            boxed = len(arguments) == 1 and isinstance(arguments[0], list)
            gradients = arrived(arguments[0] if boxed else arguments)
            given = [g for g in gradients if g is not None and g.requires_grad]
            leaves = [before.variable for before, _ in ctx.next_functions if hasattr(before, "variable")]
            with torch.no_grad():  # AOTAutograd writes to what it makes of a gradient with other strides
                found = usual(ctx, *arguments)
            return made(ctx, gradients, [*leaves, *ctx.behind, *given], found)

        never_captured(apply)
        return apply

    _put_around(function, marking)


def sequence_number(node: Any) -> int:
    """When a node was made: of those that are ready, the engine runs the one that was made last."""
    return int(node._sequence_nr())
