"""One autograd function around the compiled forward and backward of a joint graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import is_inference_mode_enabled

from lamina.aot.backwards import Backwards, Boxed, CompileBackward, Tangent
from lamina.aot.engine.layouts import restored
from lamina.aot.engine.returned import Returned, all_unchanged
from lamina.aot.engine.torch_private import (
    SET_GRAD,
    autocast_enabled,
    direct_apply,
    graph_is_kept,
    has_storage,
    is_grad_enabled,
    never_captured,
    saved_and_changed,
    saving_is_hooked,
    transforms_are_active,
    without_autocast,
)
from lamina.base.recipes import made_of
from lamina.base.torch_private import boxed, version_of
from lamina.errors import DoubleBackward

if TYPE_CHECKING:
    from lamina.aot.differentiable import Rerun
    from lamina.aot.engine.again import Again, Kept

__all__ = [
    "apart",
    "detaching",
    "inference_function",
    "refusing",
    "training_function",
    "without_gradients",
]


def inference_function(compiled: Boxed, mutated: Sequence[int], trained: bool = False) -> Callable[..., Any]:
    """``compiled`` as a function of its inputs, those at ``mutated`` being written to.

    ``trained`` says that gradients are on and an input requires one, though no result does (an ``argmax`` of what a
    layer computes): library calls with ``out=`` refuse such operands unless gradients are off.
    """

    def run(*inputs: Any) -> Any:
        return tuple(compiled(list(inputs)))

    def run_and_note(*inputs: Any) -> Any:
        written = [inputs[i] for i in mutated]
        results = compiled(list(inputs))
        _note_writes(written)
        return tuple(results)

    function = run_and_note if mutated else run
    never_captured(function)
    if not trained:
        return made_of(function, "inference", compiled=compiled, mutated=mutated, trained=trained)

    def run_without_gradients(*inputs: Any) -> Any:
        SET_GRAD(False)
        try:
            return function(*inputs)
        finally:
            SET_GRAD(True)

    never_captured(run_without_gradients)
    return made_of(run_without_gradients, "inference", compiled=compiled, mutated=mutated, trained=trained)


def detaching(compiled: Callable[..., Any], places: Sequence[int]) -> Callable[..., Any]:
    """``compiled`` with the inputs at ``places``, to which no gradient flows, outside of autograd.

    Else the history of such an input would belong to the region's results: it would be gone through, and freed, with
    them.
    """

    def run(*inputs: Any) -> Any:
        given = list(inputs)
        for i in places:
            given[i] = given[i].detach()
        return compiled(*given)

    never_captured(run)
    return made_of(run, "detaching", compiled=compiled, places=places)


def apart(compiled: Boxed, pairs: Sequence[Sequence[int]]) -> Boxed:
    """``compiled`` with the results at ``pairs`` as two tensors: autograd gives only one of them a history."""

    def call(arguments: list[Any]) -> list[Any]:
        results = list(compiled(arguments))
        for one, other in pairs:
            if results[one] is results[other]:
                results[other] = results[one].detach()
        return results

    return made_of(boxed(call), "apart", compiled=compiled, pairs=pairs)


def without_gradients(compiled: Boxed) -> Boxed:
    """``compiled``, which gives no gradients, also where they are on: the graph itself may switch them off.

    Library calls that write into memory of ours refuse operands that require a gradient where gradients are on.
    """

    def run(arguments: list[Any]) -> Any:
        if not is_grad_enabled():
            return compiled(arguments)
        with torch.no_grad():
            return compiled(arguments)

    return made_of(boxed(run), "without gradients", compiled=compiled)


def training_function(
    forward: Boxed,
    compile_backward: CompileBackward,
    results: int,
    tangents: Sequence[Tangent | None],
    tangents_of: Sequence[frozenset[int] | None],
    mutated: Sequence[int],
    *,
    rereads: Sequence[int] = (),
    compile_rereading: CompileBackward | None = None,
    again: Again,
    rerun: Rerun,
    name: str = "graph",
    where: str = "",
) -> Callable[..., Any]:
    """A differentiable function from a compiled forward and, compiled when first needed, its backward.

    The backward is compiled for the strides the gradients come in, and again for a few others if such come later.

    ``forward`` returns ``results`` outputs and then the tensors to save. ``tangents`` has None for an output without
    gradient, ``tangents_of`` for each input the outputs its gradient comes from: where none of those has a gradient,
    neither has the input. Of the results ``rereads`` the last of the saved tensors are digests; while they
    exist unchanged, which nothing here sees to, the backward of ``compile_rereading`` runs, which takes the digests and
    them. ``again`` knows which backwards may follow others, ``rerun`` gives gradients that can be differentiated again
    (``create_graph=True``). Where it does not, that raises ``DoubleBackward``, with the ``name`` of the region and
    ``where`` it is in the user's code, when it comes to that.
    """
    constant_of = _items([i for i, t in enumerate(tangents) if t is None])
    constant = None in tangents
    results_of, saved_of = _items(range(results)), itemgetter(slice(results, None))
    made_with = _versions_noted(results)
    wanted_of = _items([i for i, s in enumerate(tangents_of) if s is not None])
    rereading = compile_rereading is not None
    layouts = [t for t in tangents if t is not None]
    backwards = Backwards(compile_backward, layouts)
    others = None if compile_rereading is None else Backwards(compile_rereading, layouts, alone=True)
    run_backward = _backward_function(
        backwards, others, tangents, tangents_of, len(rereads), again, rerun, (name, where)
    )

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            values = forward(list(inputs))
            if mutated:
                _note_writes([inputs[i] for i in mutated])
            saved = saved_of(values)
            if saved:
                ctx.save_for_backward(*saved)
                made_with(ctx, values)
                # What the user's hooks give back holds the same values, not always at the same places.
                ctx.strides = [t.stride() for t in saved] if saving_is_hooked(True) else ()
            ctx.anchors = wanted_of(inputs)  # kept as they are: only a second differentiation asks for them
            ctx.taken = rerun.taken(inputs)
            if rereading:
                ctx.returned = [Returned(values[place]) for place in rereads]
            ctx.set_materialize_grads(False)
            if constant:
                ctx.mark_non_differentiable(*constant_of(values))
            return results_of(values)

        backward = staticmethod(run_backward)

    direct = direct_apply(Compiled, strides=None, freed=None, kept=None, made={})
    apply: Callable[..., Any] = Compiled.apply

    # Dynamo does not guard on inference mode, in which there is no history even where gradients are on.
    def run(*inputs: Any) -> Any:
        if is_inference_mode_enabled():
            with torch.no_grad():
                return direct(*inputs)
        return apply(*inputs) if transforms_are_active() else direct(*inputs)

    def run_with_gradients(*inputs: Any) -> Any:
        with torch.enable_grad():
            return run(*inputs)

    # The program switches gradients on inside where its caller has them off: Dynamo guards on the caller's mode.
    function = run if torch.is_grad_enabled() else run_with_gradients
    never_captured(run)
    never_captured(function)
    return made_of(
        function,
        "training",
        forward=forward,
        compile_backward=compile_backward,
        compile_rereading=compile_rereading,
        backwards=backwards,
        results=results,
        tangents=tangents,
        tangents_of=tangents_of,
        mutated=mutated,
        again=again,
        rerun=rerun,
        name=name,
        where=where,
        grad=function is run,
    )


def _backward_function(  # noqa: C901
    backwards: Backwards,
    rereading: Backwards | None,
    tangents: Sequence[Tangent | None],
    tangents_of: Sequence[frozenset[int] | None],
    rereads: int,
    again: Again,
    rerun: Rerun,
    region: tuple[str, str],
) -> Callable[..., Any]:
    """What the engine calls with a context and the gradients of all outputs.

    ``rereads`` is how many outputs are read again, ``region`` what the region is called and where it is.
    """
    if all(s is None for s in tangents_of):
        return _without_gradients(len(tangents_of))
    taken = tuple(i for i, t in enumerate(tangents) if t is not None)
    constant, taken_of = len(taken) < len(tangents), _items(taken)

    # On a GPU another thread runs this, and each call of a function costs it more than the caller: what is usual is
    # one function, without torch's in front of it.
    def run_backward(ctx: Any, *gradients: Any) -> Any:  # noqa: C901
        if is_grad_enabled():
            return differentiable(ctx, gradients)
        kept, anchors = ctx.kept, ctx.anchors
        first = bool(anchors)  # there is an input with a gradient, until a backward frees what is saved
        if not first:
            if again.refused(ctx, there(gradients)):
                return ctx.saved_tensors  # torch raises its error for that
        elif not graph_is_kept():
            ctx.anchors = ()
        incoming: Sequence[Any] = taken_of(gradients) if constant else gradients
        made, returned = backwards, None
        if rereading is not None and (returned := all_unchanged(ctx.returned)) is not None:
            made = rereading
        backward = made.usual(incoming)
        undefined: set[int] = set()
        if backward is None:
            if first and any(map(_is_sparse, incoming)):
                again.goes(ctx, there(gradients), first)
                if (found := rerun.gradients(ctx.taken, anchors, gradients, sparse=True)) is not None:
                    return found
            backward, incoming = made.search(incoming)
            undefined = {i for i in taken if gradients[i] is None}
        if backward.partial or undefined or not first:
            again.goes(ctx, there(gradients), first)
        if backward.partial:
            incoming = [gradient for gradient in incoming if gradient is not None]
        strides = ctx.strides
        if strides is None or backward.alone:
            arguments = list(incoming)
        else:
            whole = kept is None and not backward.partial
            saved = ctx.saved_tensors if whole else _as_far_as_read(ctx, kept, backward.reads)
            if strides:
                saved = [restored(t, stride) for t, stride in zip(saved, strides, strict=True)]
            if rereading is None:
                arguments = [*saved, *incoming]
            else:
                digests = len(saved) - (rereads if returned is None else 0)
                arguments = [*saved[:digests], *(returned or ()), *incoming]
            del saved, returned
            ctx.maybe_clear_saved_tensors()  # the compiled backward lets each go after its last use, or it runs again
        del incoming
        try:
            if autocast_enabled():
                with without_autocast():
                    found = backward.run(arguments)
            else:
                found = backward.run(arguments)
        except RuntimeError:
            if not first or not any(map(_is_batch, gradients)):
                raise
            again_batched = rerun.gradients(ctx.taken, anchors, gradients, sparse=True)
            if again_batched is None:
                raise
            return again_batched
        if undefined:
            return tuple(None if s and s <= undefined else g for g, s in zip(found, tangents_of, strict=True))
        return tuple(found)

    def there(gradients: Sequence[Any]) -> list[int]:
        """Which of the gradients that the backward takes are there."""
        return [k for k, i in enumerate(taken) if gradients[i] is not None]

    def differentiable(ctx: Any, gradients: Sequence[Any]) -> Any:
        """The gradients, as functions of the inputs; what refuses to be differentiated again where that cannot be."""
        anchors = ctx.anchors
        with torch.no_grad():
            found = run_backward(ctx, *gradients)
        if anchors and (again_differentiable := rerun.gradients(ctx.taken, anchors, gradients)) is not None:
            return again_differentiable
        return refusing(region, (*anchors, *(g for g in gradients if g is not None and g.requires_grad)), found)

    never_captured(run_backward)
    return run_backward


def _versions_noted(results: int) -> Callable[[Any, Sequence[Any]], None]:
    """What notes in a context the versions of saved tensors that are among the first ``results``: torch tells none."""
    twice: list[tuple[int, int]] | None = None  # places among the saved tensors, and among the results

    def note(ctx: Any, values: Sequence[Any]) -> None:
        nonlocal twice
        if twice is None:
            known = {id(value): i for i, value in enumerate(values[:results])}
            twice = [(i, known[id(value)]) for i, value in enumerate(values[results:]) if id(value) in known]
        if twice:
            ctx.made = {place: version_of(values[own]) for place, own in twice}

    return note


def _as_far_as_read(ctx: Any, kept: Kept | None, reads: Sequence[int] | None) -> Sequence[Any]:
    """The saved tensors of a context, or those ``kept``: somebody may have written to those that are not read."""
    if kept is not None:
        return kept.tensors(reads)
    try:
        saved: Sequence[Any] = ctx.saved_tensors
    except RuntimeError:
        saved, changed = saved_and_changed(ctx)
        if changed.intersection(range(len(saved)) if reads is None else reads):
            raise
    return saved


def _without_gradients(count: int) -> Callable[..., Any]:
    """The backward of results that require gradients and give none to any of ``count`` inputs: a norm of order zero."""

    def nothing(ctx: Any, *gradients: Any) -> tuple[None, ...]:
        return (None,) * count

    never_captured(nothing)
    return nothing


def _items(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """The function from a sequence to its items at ``places``, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    part = itemgetter(slice(places[0], places[0] + 1) if places else slice(0))
    return lambda sequence: tuple(part(sequence))


def _is_batch(gradient: Any) -> bool:
    """Whether a gradient is one of ``is_grads_batched``, which has no memory of its own."""
    return gradient is not None and not has_storage(gradient)


def _is_sparse(gradient: Any) -> bool:
    return gradient is not None and gradient.layout is not torch.strided


class _Once(torch.autograd.Function):
    """Gives back its tensors and raises when a gradient would flow through them to one of the anchors."""

    @staticmethod
    def forward(ctx: Any, region: tuple[str, str], anchors: int, *tensors: torch.Tensor) -> Any:
        ctx.region = region
        return tuple(t.view_as(t) for t in tensors[anchors:])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        name, where = ctx.region
        raise DoubleBackward(
            f"double backward: {name}, a compiled region, cannot be differentiated twice (create_graph=True)",
            where=where,
            remedy="compute what is differentiated and its gradients within one function that runs uncompiled, as with "
            'torch.compiler.disable, or compile this one with backend="eager"',
        )


def refusing(region: tuple[str, str], anchors: Sequence[torch.Tensor], gradients: Sequence[Any]) -> tuple[Any, ...]:
    """``gradients`` as results that look like functions of the ``anchors`` and refuse to be differentiated."""
    places = [i for i, g in enumerate(gradients) if isinstance(g, torch.Tensor)]
    apply: Callable[..., Any] = _Once.apply
    marked = apply(region, len(anchors), *anchors, *(gradients[i] for i in places))
    found = list(gradients)
    for place, tensor in zip(places, marked, strict=True):
        found[place] = tensor
    return tuple(found)


def _note_writes(tensors: Sequence[Any]) -> None:
    """Tell autograd that compiled code wrote to ``tensors``."""
    for tensor in tensors:
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
