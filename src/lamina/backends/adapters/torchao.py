"""TorchAO: the weights of linear layers quantised as the graph is first called, the rest as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from lamina.backends.adapters.optional import optional
from lamina.backends.api import Backend
from lamina.base.torch_private import version_of

__all__ = ["TORCHAO", "torchao"]


def torchao(config: Any = None) -> Backend:
    """Inference with parameters of ``nn.functional.linear`` quantised by TorchAO's ``config``.

    Without one: int8 weights, a scale for each row. The results are those of the quantised model, not eager's. A weight
    is quantised again when it was written to.
    """

    def compile(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        places = _weights(gm, example_inputs)
        if not places:
            raise NotImplementedError("no linear layer with parameters")
        made: dict[int, tuple[tuple[int, int], Tensor]] = {}

        def run(*inputs: Any) -> Any:
            given = list(inputs)
            for place in places:
                weight = given[place]
                state = (weight.data_ptr(), version_of(weight))
                if place not in made or made[place][0] != state:
                    made[place] = (state, _quantised(weight, config))
                given[place] = made[place][1]
            return gm.forward(*given)

        return run

    return Backend("torchao", compile, graph="torch", training=False, requires=("torchao",))


def _weights(gm: GraphModule, example_inputs: Sequence[Any]) -> list[int]:
    """Positions of inputs that are parameters and nothing but weights of linear layers."""

    def is_weight(node: Node) -> bool:
        uses = list(node.users)
        linear = all(u.target is nn.functional.linear and len(u.args) > 1 and u.args[1] is node for u in uses)
        return bool(uses) and linear and all(u.args[0] is not node for u in uses)

    placeholders = gm.graph.find_nodes(op="placeholder")
    return [
        place
        for place, (node, example) in enumerate(zip(placeholders, example_inputs, strict=True))
        if isinstance(example, nn.Parameter) and example.dim() == 2 and is_weight(node)
    ]


def _quantised(weight: Tensor, config: Any) -> Tensor:
    quantization = optional("torchao.quantization")
    holder = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    holder.weight = nn.Parameter(weight.detach(), requires_grad=False)
    with torch.no_grad():
        quantization.quantize_(holder, quantization.Int8WeightOnlyConfig() if config is None else config)
    return holder.weight


TORCHAO = torchao()
"""Int8 weights in every linear layer."""
