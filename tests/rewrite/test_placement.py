"""Tensors made of numbers on the CPU are made on the GPU where only that reads them."""

import math

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from lamina.rewrite.placement import made_where_read
from lamina.rewrite.verify import verify_fx

aten = torch.ops.aten


def buckets(rows):
    """Relative positions as MPNet counts them."""
    places = torch.arange(rows)
    apart = places[None, :] - places[:, None]
    buckets = (apart < 0).long() * 16
    apart = apart.abs()
    far = 8 + (torch.log(apart.float() / 8) / math.log(16) * 8).long()
    far = torch.min(far, torch.full_like(far, 15))
    return buckets + torch.where(apart < 8, apart, far)


def attention_bias(table, x):
    return x + torch.nn.functional.embedding(buckets(x.shape[-1]).to(x.device), table).permute(2, 0, 1)


def graph_on_a_gpu(function, *shapes):
    with FakeTensorMode():
        gm = make_fx(function)(*(torch.empty(shape, device="cuda") for shape in shapes))
    output = gm.graph.output_node()
    if not isinstance(output.args[0], (tuple, list)):
        output.args = ((output.args[0],),)
    return gm


def on_the_cpu(gm):
    """The graph with every device the CPU, to run it."""
    for node in gm.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("cpu")}
    gm.recompile()
    return gm


def devices(gm):
    return {n.meta["val"].device.type for n in gm.graph.nodes if n.op == "call_function"}


def test_buckets_of_positions_are_made_on_the_gpu():
    before = graph_on_a_gpu(attention_bias, (32, 12), (12, 24, 24))
    noted = []
    assert devices(before) == {"cpu", "cuda"}
    after = made_where_read(before, noted.append)
    verify_fx(after, "test")
    assert devices(after) == {"cuda"}
    assert [d.kind for d in noted] == ["placement"]
    copies = after.graph.find_nodes(op="call_function", target=aten._to_copy.default)
    assert all("device" not in n.kwargs for n in copies)
    table, x = torch.randn(32, 12), torch.randn(12, 24, 24)
    assert torch.equal(on_the_cpu(after)(table, x)[0], attention_bias(table, x))


def test_what_the_cpu_reads_too_stays():
    def forward(x):
        places = torch.arange(x.shape[0])
        return x + places.to(x.device), places

    gm = graph_on_a_gpu(forward, (5,))
    assert made_where_read(gm) is gm


def test_what_hangs_on_an_input_of_the_cpu_stays():
    with FakeTensorMode():
        inputs = torch.empty(5, device="cuda"), torch.empty(5)
        gm = make_fx(lambda x, y: (x + (torch.arange(5) + y).to(x.device),))(*inputs)
    assert made_where_read(gm) is gm


def test_numbers_drawn_at_random_stay():
    gm = graph_on_a_gpu(lambda x: (x + torch.rand(5).to(x.device),), (5,))
    assert made_where_read(gm) is gm


def test_two_results_are_two_tensors():
    def forward(x):
        places = torch.arange(x.shape[0]) * 2
        return places.to(x.device), places.to(x.device), x + 1

    after = made_where_read(graph_on_a_gpu(forward, (5,)))
    verify_fx(after, "test")
    assert devices(after) == {"cuda"}
    first, second, _ = on_the_cpu(after)(torch.zeros(5))
    assert first.data_ptr() != second.data_ptr()
