"""What rows have in common is read before their reductions, where registers hold it."""

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lamina.base.target import nvidia
from lamina.codegen.triton.emit import emit
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.plan import make_plan
from tests.codegen.triton.test_plans import planned, run
from tests.lower.torch_private import traced


def norm(x, w, b, r):
    h = torch.nn.functional.layer_norm(x, x.shape[-1:], w, b)
    return h + r


def kernel(rows, columns, dtype=torch.bfloat16):
    with FakeTensorMode():
        common = [torch.empty(columns, dtype=dtype) for _ in range(2)]
        x, r = (torch.empty(rows, columns, dtype=dtype) for _ in range(2))
        graph = traced(norm, (x, *common, r))
    (found,) = make_plan(fuse(lower(graph, "test")), nvidia()).kernels
    return found


def early(made):
    """Loads before the first sum, and behind it."""
    head, _, rest = emit(made, nvidia()).text.partition("tl.sum(")
    return head.count("tl.load("), rest.count("tl.load(")


def with_warps(made, warps):
    return replace(made, schedules=(replace(made.schedules[0], warps=warps),))


def test_weights_are_read_with_the_row_and_what_each_row_has_of_its_own_where_it_is_needed():
    assert early(kernel(16384, 768)) == (3, 1)


@pytest.mark.parametrize(("warps", "found"), [(8, (3, 1)), (4, (3, 1)), (2, (1, 3))])
def test_not_where_a_thread_has_many_points(warps, found):
    assert early(with_warps(kernel(16384, 4096), warps)) == found


def test_no_more_operands_than_a_thread_has_room_for():
    made = kernel(16384, 4096, torch.float64)
    assert early(with_warps(made, 8)) == (3, 1)  # 128 bytes of each
    assert early(with_warps(made, 4)) == (2, 2)  # 256


@pytest.mark.parametrize("shape", [(64, 768), (37, 1000), (3, 40)])
def test_values(shape, interpreter):
    g = torch.Generator().manual_seed(0)
    x, r = (torch.randn(shape, generator=g) for _ in range(2))
    w, b = (torch.randn(shape[1], generator=g) for _ in range(2))
    (found,) = run(planned(norm, x, w, b, r), interpreter, (x, w, b, r))
    assert torch.allclose(found.double(), norm(*(t.double() for t in (x, w, b, r))), rtol=1e-4, atol=1e-4)


def test_tiles_of_short_rows_have_two_thousand_points():
    with FakeTensorMode():
        graph = traced(lambda x: x.softmax(-1), (torch.empty(65536, 1024, dtype=torch.bfloat16),))
    (made,) = make_plan(fuse(lower(graph, "test")), nvidia()).kernels
    (schedule,) = made.schedules
    assert ([b.size for b in schedule.blocks], schedule.warps) == ([2, 1024], 4)
