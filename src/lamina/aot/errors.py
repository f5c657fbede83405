"""Errors of compiled graphs that write to inputs: eager's errors, with the inputs as eager leaves them.

A compiled graph writes to inputs once and late, eager as it goes. Where an error left inputs as they were, the captured
graph runs in the compiled one's place: it ends in the same error, in eager's words, after the writes before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import is_inference_mode_enabled
from torch.fx import GraphModule

from lamina.aot import eager_reasons
from lamina.aot.torch_private import ASSERT, forward_of, never_captured
from lamina.base.reasons import Reason
from lamina.base.recovery import brief
from lamina.base.retryable import is_retryable, set_retryable
from lamina.base.torch_private import set_versions, version_of

__all__ = ["raising_as_captured", "raising_assertions"]


def raising_as_captured(
    compiled: Callable[..., Any],
    captured: GraphModule,
    written: Sequence[int],
    tell: Callable[[Reason], None],
    strict: bool,
) -> Callable[..., Any]:
    """``compiled``, and ``captured`` in its place where it raises before it has written to its inputs.

    So it is where eager refuses the write: of the inputs ``written`` to, one was made in inference mode, which is over.
    Where ``captured`` has a result nevertheless, that is returned and ``tell`` is told, or the error is raised if
    ``strict``. AOTAutograd raises the versions of inputs before it runs what writes to them: they are set back.
    """

    def run(*inputs: Any) -> Any:
        for place in written:
            if inputs[place].is_inference() and not is_inference_mode_enabled():
                return forward_of(captured)(*inputs)
        versions = [version_of(inputs[place]) for place in written]
        try:
            return compiled(*inputs)
        except Exception as error:
            if not is_retryable(error):
                raise
            set_retryable(error, False)
            raised = error
        set_versions([inputs[place] for place in written], versions)
        results = forward_of(captured)(*inputs)
        if strict:
            raise raised
        tell(eager_reasons.KERNELS_RAISE(error=brief(raised)))
        return results

    never_captured(run)
    return run


class FailedAssertion(AssertionError, RuntimeError):
    """An ``assert`` of the program's, which Dynamo captures as a call that raises ``RuntimeError``."""


def raising_assertions(compiled: Callable[..., Any], captured: GraphModule) -> Callable[..., Any]:
    """``compiled``, whose failed assertions on tensors are of the program's class as well as ``RuntimeError``."""
    asserts = captured.graph.find_nodes(op="call_function", target=ASSERT)
    messages = {node.args[1] for node in asserts if len(node.args) == 2}
    if not messages:
        return compiled

    def run(*inputs: Any) -> Any:
        try:
            return compiled(*inputs)
        except RuntimeError as error:
            if str(error) not in messages:
                raise
            failed = FailedAssertion(str(error))
        raise failed

    never_captured(run)
    return run
