"""What is saved and what is computed again, and the flow that decides it."""

import copy
import itertools
import math
import random

import pytest
import torch
import torch.nn.functional as F

import lamina
from lamina.aot import graph_compiler
from lamina.aot.autograd.torch_private import torch_partition
from lamina.aot.min_cut import INFINITE, Network
from lamina.aot.partition import Partition, partition

from .models import GPT, Residual
from .reference import Reference, operations


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def brute_force(vertices, edges):
    """Capacity of a minimum cut by trying every set of vertices."""
    best = None
    for side in itertools.product((False, True), repeat=vertices - 2):
        sink = [False, True, *side]
        cut = sum(c for tail, head, c in edges if not sink[tail] and sink[head])
        best = cut if best is None else min(best, cut)
    return best


def test_the_cut_is_minimal_on_random_networks():
    chance = random.Random(0)
    for _ in range(200):
        vertices = chance.randint(2, 8)
        edges = [
            (chance.randrange(vertices), chance.randrange(vertices), chance.randint(0, 9))
            for _ in range(chance.randint(0, 20))
        ]
        network = Network()
        for _ in range(vertices - 2):
            network.vertex()
        for edge in edges:
            network.edge(*edge)
        capacity, sink = network.min_cut()
        assert capacity == brute_force(vertices, edges)
        assert sum(c for tail, head, c in edges if not sink[tail] and sink[head]) == capacity


def test_no_finite_cut_is_an_error():
    network = Network()
    middle = network.vertex()
    network.edge(0, middle, INFINITE)
    network.edge(middle, 1, INFINITE)
    with pytest.raises(OverflowError):
        network.min_cut()


def partition_of(function, *inputs, table=None) -> tuple[Partition, Reference]:
    reference = Reference(table=table)
    out = reference.compile(function)(*inputs)
    out.sum().backward()
    return reference.partition(), reference


def test_a_norm_s_backward_reads_the_narrow_input_and_widens_it_again():
    x = torch.randn(64, 64, dtype=torch.bfloat16, requires_grad=True)
    part, _ = partition_of(lambda x: F.layer_norm((x * 2).float(), (64,)), x)
    wide = [n.name for n in part.forward.graph.nodes if n.target is torch.ops.aten._to_copy.default]
    assert wide
    assert not set(wide) & set(part.saved)
    assert part.saved[0] == "mul"  # eager saves neither it nor the input, which the user may write to


def test_cheap_work_on_inputs_is_done_again():
    """From what reaches memory anyway, and from a copy of an input that eager does not save."""
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    bias = torch.randn(64, requires_grad=True)
    part, _ = partition_of(lambda x, w, b: F.gelu(x @ w + b), x, w, bias)
    assert set(part.saved) == {"primals_1", "primals_2", "primals_3", "mm"}
    assert part.copied == ("primals_3",)
    assert part.saved_bytes == (3 * 64 + 1) * 64 * 4
    assert part.recomputed == ("add",)
    (decision,) = [d for d in part.decisions if d.kind == "recompute"]
    assert "costs less" in decision.reason
    assert dict(decision.facts)["bytes"] == 64 * 64 * 4


def test_a_large_input_is_not_copied_where_eager_saves_what_is_made_of_it():
    x, y = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    part, _ = partition_of(lambda x, y: F.gelu(x + y), x, y)
    assert part.saved == ("add",)
    assert not part.copied


def test_dear_work_is_saved():
    x = torch.randn(64, 64, requires_grad=True)
    part, _ = partition_of(lambda x: torch.erf(x).sin().tanh() * 2, x)
    assert "tanh" in part.saved
    assert "tanh" not in part.recomputed


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
def test_a_loss_that_is_not_reduced_is_work_on_each_element(loss):
    x, y = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64)

    def function(x, y, reduction):
        error = loss(x * 2, y, reduction=reduction)
        return (error * error).sin()

    name = loss.__name__
    part, _ = partition_of(lambda x, y: function(x, y, "none"), x, y)
    assert part.recomputed[0] == name
    assert part.saved_bytes == 2 * x.nbytes
    torch._dynamo.reset()
    part, _ = partition_of(lambda x, y: function(x, y, "mean"), x, y)
    assert name not in part.recomputed


def test_library_calls_and_reductions_are_saved():
    x, w = torch.randn(32, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    part, reference = partition_of(lambda x, w: F.softmax(x @ w, -1).exp(), x, w)
    assert not {"mm", "_softmax"} & set(part.recomputed)
    assert operations(reference.graph("backward")).count("aten._softmax.default") == 0
    assert "reduction" in {d.reason for d in part.decisions if d.subject == ("_softmax",)}.pop()


@pytest.mark.parametrize("shape", [(64, 32), (2, 32, 32)])
def test_what_a_product_of_the_backward_reads_is_not_computed_again(shape, monkeypatch):
    """It would have to be written once more; in three dimensions the product reads a view of it."""
    monkeypatch.setattr(graph_compiler, "device_of", lambda joint: "cuda")
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))
    part, _ = partition_of(model, torch.randn(*shape))
    assert "gelu" in part.saved
    assert not part.recomputed


@pytest.mark.parametrize(
    ("function", "shape", "saved"),
    [
        pytest.param(lambda x: torch.cumsum(x, 1), (8, 64), True, id="a scan"),
        pytest.param(lambda x: F.softmax(x, 0), (64, 8), True, id="columns"),
        pytest.param(lambda x: F.log_softmax(x, 1), (2, 20000), True, id="rows that nothing holds"),
        pytest.param(lambda x: F.softmax(x, 1), (8, 64), False, id="rows"),
        pytest.param(lambda x: F.softmax(x, 0), (4, 64), False, id="a short axis"),
        pytest.param(lambda x: F.softmax(x.t(), 0), (8, 64), False, id="rows of a transposed tensor"),
        pytest.param(lambda x: F.softmax(x.t(), 1), (64, 8), True, id="columns of a transposed tensor"),
    ],
)
def test_what_a_gpu_needs_a_kernel_for_is_not_computed_again(function, shape, saved, monkeypatch):
    """In another kernel it would be written once more, and read, as it is where it is saved."""
    monkeypatch.setattr(graph_compiler, "device_of", lambda joint: "cuda")
    part, _ = partition_of(lambda x: function(x.exp()).square(), torch.randn(*shape, requires_grad=True))
    (name,) = {n.name for n in part.forward.graph.nodes if n.op == "call_function"} & {
        "cumsum",
        "_softmax",
        "_log_softmax",
    }
    assert (name in part.saved) == saved
    assert (name in part.recomputed) != saved


def test_a_view_is_not_saved_but_its_base():
    x, w = torch.randn(16, 32, requires_grad=True), torch.randn(32, 32, requires_grad=True)

    def f(x, w):
        a, b = (x @ w).split(16, dim=1)
        return a.t() * b.t()

    part, _ = partition_of(f, x, w)
    assert "mm" in part.saved
    assert not any("getitem" in n or n.startswith("t") for n in part.saved)


def test_dropout_is_recomputed_from_one_seed():
    x = torch.randn(32, 32, requires_grad=True)

    def f(x):
        return F.dropout(F.dropout(x, 0.5).sin(), 0.25)

    part, reference = partition_of(f, x)
    assert operations(reference.graph("forward")).count("lamina.philox_seed.default") == 1
    offsets = {n.args[2] for n in reference.graph("forward").nodes if "philox_uniform" in str(n.target)}
    assert offsets == {0, 1}
    backward = operations(reference.graph("backward"))
    assert backward.count("lamina.philox_uniform.default") == 2
    assert "lamina.philox_seed.default" not in backward
    assert "philox_seed" in part.saved


def test_dropout_gradient_uses_the_forwards_mask():
    compiled = Reference().compile(lambda x: F.dropout(x, 0.3))
    x = torch.ones(1000, requires_grad=True)
    torch.manual_seed(3)
    out = compiled(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach())
    assert 600 < (out != 0).sum() < 800
    torch.manual_seed(3)
    torch.testing.assert_close(compiled(x), out)
    assert not torch.equal(compiled(x), out)


def test_with_eager_numerics_dropout_draws_what_eager_draws():
    compiled = Reference(numerics="eager").compile(lambda x: F.dropout(x, 0.3) * F.dropout(x, 0.5))
    x = torch.randn(1000, requires_grad=True)
    torch.manual_seed(3)
    actual = compiled(x)
    torch.manual_seed(3)
    expected = F.dropout(x, 0.3) * F.dropout(x, 0.5)
    assert torch.equal(actual, expected)
    assert torch.equal(torch.autograd.grad(actual.sum(), x)[0], torch.autograd.grad(expected.sum(), x)[0])


def test_dropout_edges():
    x = torch.randn(10, requires_grad=True)
    assert torch.equal(Reference().compile(lambda x: F.dropout(x, 0.0) + 0)(x), x)
    assert not Reference().compile(lambda x: F.dropout(x, 1.0))(x).any()


def test_a_returned_tensor_is_not_saved_unless_eager_saves_it():
    def f(x):
        y = x + 1
        return y, torch.sigmoid(y * 2)

    x = torch.randn(4, requires_grad=True)
    y, z = Reference().compile(f)(x)
    with torch.no_grad():
        y.zero_()
    z.sum().backward()
    s = torch.sigmoid((x + 1) * 2)
    torch.testing.assert_close(x.grad, 2 * s * (1 - s))


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x.sin(), torch.where(x > 0, y, 0.0)),
        lambda x, y: (y.masked_fill(x.abs() > 1, 0.0) * 2, x.exp() * x),
        lambda x, y: ((x * 2).tanh(), (y.relu() * torch.sigmoid(x.detach())).view(-1)),
        lambda x, y: ((z := x * x), z.cos(), y * (z.detach() < 1)),
        lambda x, y: (x.sin(), x.exp(), (y * 2).tanh()),
        lambda x, y: (x * y, torch.sigmoid(x), x.cos()),
    ],
)
def test_a_gradient_asks_for_nothing_that_eager_saves_for_another(function, dynamic):
    """What a backward of some results reads is left alone, whatever becomes of what that of others reads."""
    compiled = lamina.compile(function, dynamic=dynamic)
    for place in range(len(function(torch.ones(4), torch.ones(4)))):
        outcomes = []
        for call in (function, compiled):
            x, y = (torch.linspace(-2, 2, 12).view(4, 3).requires_grad_() for _ in range(2))
            results = call(x, y)
            with torch.no_grad():
                x.zero_()
                if results[place] is not results[0]:
                    results[0].zero_()
            try:
                results[place].sum().backward()
                outcomes.append([x.grad, y.grad])
            except RuntimeError:
                outcomes.append([True])
        torch.testing.assert_close(outcomes[1], outcomes[0])


def test_a_buffer_is_not_saved_unless_eager_saves_it():
    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.ones(4))

        def forward(self, x):
            return x.masked_fill(self.mask == 0, 0.0)

    module = Masked()
    compiled = Reference().compile(module)
    x = torch.randn(4, requires_grad=True)
    out = compiled(x)
    module.mask.zero_()
    out.sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(4))


def saved_by_both(monkeypatch, model, *inputs) -> tuple[int, int]:
    """Bytes of tensors other than parameters and buffers that torch's min-cut partitioner and ours save."""
    found = []

    def both(joint, outputs, static, device, *more):
        twin = copy.deepcopy(joint)
        forward, _ = torch_partition(twin, (), num_fwd_outputs=outputs, static_lifetime_input_indices=list(static))
        names = {n.name for i, n in enumerate(forward.graph.find_nodes(op="placeholder")) if i in set(static)}
        kept = [n for n in forward.graph.output_node().args[0][outputs:] if n.name not in names]
        found.append(sum(n.meta["val"].numel() * n.meta["val"].element_size() for n in kept))
        return partition(joint, outputs, static, device, *more)

    monkeypatch.setattr(graph_compiler, "partition", both)
    reference = Reference()
    reference.compile(model)(*inputs).sum().backward()
    return found[0], reference.partition().saved_bytes


@pytest.mark.parametrize("kind", ["gpt", "resnet"])
def test_saves_no_more_than_eager_and_near_torchs_partitioner(kind, monkeypatch):
    if kind == "gpt":
        model = GPT(layers=3, dropout=0.1)
        inputs = torch.randint(0, 64, (4, 16)), torch.randint(0, 64, (4, 16))
    else:
        model, inputs = torch.nn.Sequential(Residual(), Residual()), (torch.randn(2, 8, 8, 8),)
    eager = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: eager.setdefault(t.untyped_storage().data_ptr(), t), id):
        kept = model(*inputs)
    static = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    eager_bytes = sum(t.untyped_storage().nbytes() for p, t in eager.items() if p not in static)
    assert kept is not None
    torchs, ours = saved_by_both(monkeypatch, model, *inputs)
    print(f"saved: eager {eager_bytes}, torch {torchs}, ours {ours}")
    assert ours <= eager_bytes
    assert ours <= 1.05 * torchs


def test_a_thin_product_s_operand_is_widened_again_on_a_gpu(monkeypatch):
    """A router: kernels of our own read the narrow tensor for the logits and for the weight's gradient."""
    found = []

    def both(joint, outputs, static, device, *more):
        twin = copy.deepcopy(joint)
        for node in twin.graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                node.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        found.append(partition(twin, outputs, static, "cuda", *more))
        return partition(joint, outputs, static, device, *more)

    monkeypatch.setattr(graph_compiler, "partition", both)
    x = torch.randn(512, 256, dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(8, 256, dtype=torch.bfloat16, requires_grad=True)
    on_cpu, _ = partition_of(lambda x, w: F.linear(x.float(), w.float()).softmax(-1), x, w)
    assert {"primals_1", "_to_copy"} & set(on_cpu.saved) == {"_to_copy"}
    assert {"primals_1", "_to_copy"} & set(found[0].saved) == {"primals_1"}


@pytest.mark.parametrize("extreme", ["amax", "vector_norm"])
def test_what_a_maximum_was_taken_of_is_not_computed_again(extreme):
    """Its gradient looks for the elements that equal it: computed again they may be rounded otherwise."""

    def function(x, y):
        made = (x * y + x).abs()
        return made.amax(-1) if extreme == "amax" else torch.linalg.vector_norm(made, math.inf, dim=-1)

    x, y = (torch.randn(64, 64, requires_grad=True) for _ in range(2))
    part, _ = partition_of(function, x, y)
    assert "add" not in part.recomputed
    assert "add" in part.saved


def test_what_a_formula_asks_for_and_does_not_read_is_not_saved_for_it():
    x = torch.randn(2, 4, 8, 8, requires_grad=True)
    part, _ = partition_of(lambda x: F.avg_pool2d(F.silu(x * 2), 2) * 3, x)
    assert part.saved == ("mul",), part.saved
    torch._dynamo.reset()
    part, _ = partition_of(lambda x: F.logsigmoid(x * 2), x)
    assert part.saved == ("mul",), part.saved


@pytest.mark.parametrize("view", [lambda y: y, lambda y: y.flatten()])
def test_an_operand_that_is_not_read_and_that_the_user_sees_is_left_as_it_is(view):
    def function(x):
        y = F.silu(x * 2)
        return view(y), F.avg_pool2d(y, 2)

    x = torch.randn(2, 4, 8, 8, requires_grad=True)
    y, pooled = Reference().compile(function)(x)
    with torch.no_grad():
        y.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        pooled.sum().backward()


def test_elements_from_a_place_each_are_saved_before_costly_functions():
    x, places = torch.randn(64, 64, requires_grad=True), torch.randint(0, 64, (64, 64))
    part, _ = partition_of(lambda x: (x.tanh().gather(0, places) * 2).exp().sin(), x)
    assert "gather" not in part.recomputed, part.recomputed


@pytest.mark.parametrize(("exponent", "saved"), [(2, False), (3.0, False), (2.5, True)])
def test_a_power_that_is_a_few_products_is_computed_again(exponent, saved):
    x, y = (torch.randn(64, 64, requires_grad=True) for _ in range(2))
    part, _ = partition_of(lambda x, y: (1 - x.tanh()) ** exponent * y.sin(), x, y)
    assert any("pow" in name for name in part.saved) == saved
