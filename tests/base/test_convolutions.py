"""What Lamina puts in the place of torch's choice of a convolution's algorithm takes what that takes."""

from __future__ import annotations

import torch

from lamina.base.symbolic.environment import torch_private
from tests.semantics.torch_private import convolution_algorithm


def test_operands_may_be_given_by_their_names() -> None:
    assert torch_private.OpenShapes  # with whose module the choice is Lamina's
    x, w = torch.ones(2, 3, 8, 8), torch.ones(4, 3, 3, 3)
    more = {"bias": None, "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "transposed": False}
    more |= {"output_padding": [0, 0], "groups": 1, "bias_sizes": None}
    assert convolution_algorithm(input=x, weight=w, **more) == convolution_algorithm(x, w, **more)
