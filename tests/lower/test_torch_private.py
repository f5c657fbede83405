"""The private names of torch that lowering uses, each at work."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from lamina.base.symbolic import torch_private as symbolic
from lamina.base.torch_private import OpOverload, OpOverloadPacket
from lamina.lower import torch_private
from lamina.lower.sizes import expr_of, stride_of
from lamina.lower.torch_private import is_one, lowest
from tests.kernels import operations as ops


def functionalized(function: Any, *tensors: torch.Tensor) -> torch.fx.Node:
    """The node by which functionalization calls an operation that writes to its arguments."""
    found: list[torch.fx.Node] = []

    def keep(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        found.extend(n for n in gm.graph.nodes if "auto_functionalized" in str(n.target))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=torch._dynamo.backends.common.aot_autograd(fw_compiler=keep))(*tensors)
    (node,) = found
    return node


def described(node: torch.fx.Node) -> dict[str, Any]:
    arguments = {k: v for k, v in node.kwargs.items() if k not in ("_all_bases", "_op_schema")}
    op = node.args[0]
    assert isinstance(op, OpOverload)
    return torch_private.written_views(op, arguments)


def whole(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    ops.add_(y, 2.0)
    return y


def rows(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    ops.add_(y[1:3], 2.0)
    return y


def columns(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    ops.add_(y[:, ::2], 2.0)
    return y


def test_written_views_says_what_part_of_a_base_is_written_to() -> None:
    x = torch.randn(4, 6)
    assert isinstance(described(functionalized(whole, x))["x"], torch_private.NotView | torch_private.AliasViewInfo)
    part = described(functionalized(rows, x))["x"]
    assert isinstance(part, torch_private.SliceViewInfo)
    assert (part.base_index, part.dim, part.start, part.end) == (0, 0, 1, 3)
    strided = described(functionalized(columns, x))["x"]
    assert isinstance(strided, torch_private.AsStridedViewInfo)
    assert (list(strided.size), list(strided.stride), strided.storage_offset) == ([4, 3], [6, 2], 0)


def test_operators_and_their_packets() -> None:
    assert isinstance(torch.ops.aten.add, OpOverloadPacket)
    assert isinstance(torch.ops.aten.add.Tensor, OpOverload)


def test_kernels_and_constants_are_found_by_number() -> None:
    table = torch_private.kernel_side_table
    kernel, constants = object(), {"BLOCK": 64}
    assert torch_private.triton_kernel(table.add_kernel(kernel)) is kernel
    found = torch_private.triton_constants(table.add_constant_args(constants))
    assert found == constants
    assert found is not constants


def test_numbers_of_a_constant_are_read_under_a_fake_mode() -> None:
    table = torch.tensor([[1, -2], [3, 2**40]])
    with FakeTensorMode():
        assert torch_private.elements_of(table) == [[1, -2], [3, 2**40]]


def test_an_environment_proves_ranges() -> None:
    env = ShapeEnv()
    size, number = (env.create_unbacked_symint() for _ in range(2))
    torch._check(size >= 0)
    assert lowest(size.node.expr, env) == 0
    assert lowest(number.node.expr, env) is None
    assert symbolic.is_true(size + 1 > 0)
    assert not symbolic.is_true(number >= 0)
    assert symbolic.depends_on_data(number)
    assert not symbolic.depends_on_data(3)


def test_an_environment_proves_that_a_size_is_one() -> None:
    env = ShapeEnv()
    rows, size, other = (env.create_unbacked_symint() for _ in range(3))
    for number in (rows, size, other):
        torch._check(number >= 3)
    torch._check(size <= 10)
    windows = (size - 3) // 8 + 1
    assert is_one(windows.node.expr, env)
    assert not is_one(((other - 3) // 8 + 1).node.expr, env)
    assert not is_one(size.node.expr, env)
    assert expr_of(windows) == 1
    assert expr_of(rows * windows) == stride_of(rows * torch.sym_max(1, windows)) == expr_of(rows)


def test_symbols_of_a_tensor_are_seen() -> None:
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        assert not symbolic.has_symbols(torch.empty(3))
        assert symbolic.has_symbols(torch.empty(3).expand(mode.shape_env.create_unbacked_symint(), 3))
