"""Every private torch name that the benchmarks and the test harnesses use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from tempfile import mkdtemp
from types import FunctionType
from typing import Any

import torch
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list, set_eval_frame
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch.aot_autograd import make_boxed_func
from torch._higher_order_ops.associative_scan import associative_scan as scan_by
from torch._higher_order_ops.map import map as each
from torch._higher_order_ops.out_dtype import out_dtype
from torch._higher_order_ops.print import print as print_op
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch._inductor import list_mode_options, metrics
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.testing._internal.two_tensor import TwoTensor

__all__ = [
    "TwoTensor",
    "aot_backend",
    "each",
    "graph_count",
    "group_of_one",
    "kernels_of_inductor",
    "mode_options",
    "out_dtype",
    "print_op",
    "reset_graph_count",
    "scan",
    "scan_by",
    "while_loop",
    "within_entry",
]


def aot_backend(compile_graph: Callable[..., Callable[..., Any]]) -> Any:
    """A torch.compile backend that compiles forward and backward graphs with ``compile_graph(gm, inputs)``."""

    def boxed(gm: Any, example_inputs: Any) -> Any:
        return make_boxed_func(compile_graph(gm, example_inputs))

    return aot_autograd(fw_compiler=boxed, bw_compiler=boxed)


def mode_options() -> dict[str, dict[str, Any]]:
    """The modes of torch.compile, and the options of Inductor that each stands for."""
    return list_mode_options()


@contextmanager
def kernels_of_inductor() -> Iterator[Callable[[], int]]:
    """Gives a function that says how many kernels Inductor has generated since, or taken from its cache."""
    before = metrics.generated_kernel_count
    yield lambda: int(metrics.generated_kernel_count - before)


def graph_count() -> int:
    """Graphs that Dynamo has captured since the last reset."""
    return int(counters["stats"]["unique_graphs"])


def reset_graph_count() -> None:
    """Forget all captured graphs and set the count to zero."""
    torch.compiler.reset()
    counters.clear()


def within_entry(compiled: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Parts of a compiled function that has one graph: the code that Dynamo made, and that under Dynamo's guards."""
    original = compiled.__wrapped__
    cells = dict(zip(compiled.__code__.co_freevars, compiled.__closure__, strict=True))
    callback = cells["callback"].cell_contents
    (graph,) = _debug_get_cache_entry_list(original.__code__)
    code = FunctionType(graph.code, original.__globals__, "code", original.__defaults__, original.__closure__)

    def guarded(*args: Any) -> Any:
        before = set_eval_frame(callback)
        try:
            return original(*args)
        finally:
            set_eval_frame(before)

    return code, guarded


class _Group:
    """Tensors distributed over a group of processes that is this one."""

    def __init__(self) -> None:
        place = f"file://{mkdtemp()}/group"
        torch.distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
        self.mesh = init_device_mesh("cpu", (1,))

    def distribute(self, x: torch.Tensor) -> Any:
        return distribute_tensor(x, self.mesh, [Shard(0)])

    def from_local(self, x: torch.Tensor) -> Any:
        return DTensor.from_local(x, self.mesh, [Shard(0)], run_check=False)


group_of_one = cache(_Group)
"""The group, made when first asked for."""
