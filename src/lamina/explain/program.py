"""``lamina.explain``: run a callable once, compiled, and say what was made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from lamina.backends.registry import as_backend
from lamina.backends.settings import check_arguments, options_for
from lamina.base.region_names import callable_name
from lamina.compile import compile_recorded
from lamina.explain.explanation import Explanation
from lamina.explain.torch_private import tree_leaves
from lamina.options import Options
from lamina.record import Record

__all__ = ["explain"]


class _OwnRecord(Record):
    """The record of a callable that is compiled to be explained: graphs that others made say nothing in it."""

    compares_stages: ClassVar[bool] = True


def explain(
    model: Any,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | Options | None = None,
    backward: bool = True,
) -> Callable[..., Explanation]:
    """A function that calls ``model`` with its arguments, compiled, and returns what was made of it.

    ``model`` is a function or module, and is compiled as ``lamina.compile`` does; or what that returned, and then its
    record is explained after the call. With ``backward``, gradients of all results that have some are taken, and
    dropped, so that the backward pass is compiled, too. Raises ``BadArgument`` for wrong arguments.
    """
    compiled, record = model, getattr(model, "record", None)
    if not isinstance(record, Record):
        check_arguments(model, fullgraph, dynamic, False)
        backend = as_backend("lamina")
        record = _OwnRecord(callable_name(model))
        compiled = compile_recorded(model, options_for(backend, mode, options), backend, record, fullgraph, dynamic)

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        results = compiled(*args, **kwargs)
        if backward:
            _differentiate(results, (args, kwargs), model)
        return Explanation(record)

    return explained


def _differentiate(results: Any, given: Any, model: Any) -> None:
    """Take the gradients of ``results`` by what was given and by parameters, and drop them."""
    outputs = [x for x in tree_leaves(results) if isinstance(x, torch.Tensor) and x.requires_grad]
    parameters = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    inputs = [x for x in (*tree_leaves(given), *parameters) if isinstance(x, torch.Tensor) and x.requires_grad]
    if outputs and inputs:
        torch.autograd.grad(outputs, inputs, [torch.ones_like(x) for x in outputs], allow_unused=True)
