"""Assertions of captured graphs: where one fails, the error has the class that the program's own has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule

from lamina.aot.torch_private import ASSERT, never_captured

__all__ = ["raising_assertions"]


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
