"""Products of odd rows on padded operands: which, what comes out, and what stays."""

import pytest
import torch

from lamina.base.devices import on_host
from lamina.rewrite import aligned_products
from lamina.rewrite.aligned_products import align_products
from lamina.rewrite.odd_rows import mm_odd_rows
from lamina.rewrite.passes import clean
from lamina.rewrite.verify import verify_fx

from .test_passes import aten, count, graph_of


@pytest.fixture(autouse=True)
def _any_size_pays(monkeypatch):
    monkeypatch.setattr(aligned_products, "_LOST", 1e9)


def draw(*shape, dtype=torch.bfloat16):
    return torch.randn(shape).to(dtype)


def rewritten(function, *inputs):
    notes = []
    before = graph_of(function, *inputs)
    after = align_products(before, notes.append, where=on_host)
    verify_fx(after, "test")
    found, wanted = after(*inputs)[0], before(*inputs)[0]
    assert found.stride() == wanted.stride() == after.graph.output_node().args[0][0].meta["val"].stride()
    torch.testing.assert_close(found.float(), wanted.float(), rtol=2e-2, atol=2e-2)
    return before, after, notes


def rows_of_products(gm):
    """Lengths of the memory rows of every product's factors and result."""
    for node in gm.graph.nodes:
        if node.target in (aten.mm.default, aten.addmm.default):
            for part in (*node.args[-2:], node):
                yield max(part.meta["val"].stride())


@pytest.mark.parametrize(
    ("sizes", "left_transposed", "right_transposed"),
    [
        ((16, 24, 57), False, True),  # logits of an odd vocabulary
        ((16, 57, 24), False, False),  # their gradient times the table
        ((57, 16, 24), True, False),  # the table's gradient
        ((16, 57, 24), False, True),
        ((57, 9, 11), True, True),
    ],
)
def test_odd_rows_are_padded(sizes, left_transposed, right_transposed):
    m, k, n = sizes
    left = draw(k, m).t() if left_transposed else draw(m, k)
    right = draw(n, k).t() if right_transposed else draw(k, n)
    before, after, (note,) = rewritten(lambda a, b: (a @ b,), left, right)
    assert note.taken
    assert any(length % 8 for length in rows_of_products(before))
    assert not any(length % 8 for length in rows_of_products(after))


@pytest.mark.parametrize("bias", [(57,), (1,), (16, 57), (16, 1), (1, 57), ()])
def test_a_bias_is_padded_with_its_product(bias):
    inputs = draw(*bias), draw(16, 24), draw(57, 24)
    _, after, (note,) = rewritten(lambda b, x, w: (torch.addmm(b, x, w.t()),), *inputs)
    assert note.taken
    assert not any(length % 8 for length in rows_of_products(after))


def test_the_layout_of_a_factor_stays():
    _, after, _ = rewritten(lambda x, w: (x @ w.t(),), draw(16, 24), draw(57, 24))
    (product,) = after.graph.find_nodes(op="call_function", target=aten.mm.default)
    assert product.args[1].meta["val"].stride() == (1, 24)
    assert product.args[1].meta["val"].shape == (24, 64)


@pytest.mark.parametrize(
    "inputs",
    [
        (draw(16, 24), draw(24, 64)),  # aligned
        (draw(16, 24, dtype=torch.float32), draw(24, 57, dtype=torch.float32)),
        (draw(16, 24), draw(24, 57)[:, :3]),  # fewer than eight columns
        (draw(16, 48)[:, ::2], draw(24, 57)),  # neither rows nor columns are contiguous
    ],
)
def test_what_gains_nothing_stays(inputs):
    gm = graph_of(lambda a, b: (a @ b,), *inputs)
    assert align_products(gm, where=on_host) is gm


def test_only_products_on_the_device():
    gm = graph_of(lambda a, b: (a @ b,), draw(16, 24), draw(24, 57))
    assert align_products(gm) is gm


def test_small_sums_are_left_alone_and_said_so(monkeypatch):
    monkeypatch.setattr(aligned_products, "_LOST", 2.0)
    notes = []
    gm = graph_of(lambda a, b: (a @ b,), draw(64, 8), draw(8, 57))
    assert align_products(gm, notes.append, where=on_host) is gm
    assert [note.taken for note in notes] == [False]
    large = graph_of(lambda a, b: (a @ b,), draw(2048, 768), draw(768, 4097))
    after = align_products(large, notes.append, where=on_host)
    assert notes[-1].taken
    assert count(after, aten.constant_pad_nd.default) == 1


def test_a_factor_of_two_products_is_padded_once():
    def gradients(g, x, w):
        return g @ w, g.t() @ x

    gm = align_products(graph_of(gradients, draw(16, 57), draw(16, 24), draw(57, 24)), where=on_host)
    factors = [n.args[0] for n in gm.graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default)]
    assert len({factor.name for factor in factors}) == 2
    assert count(clean(gm), aten.constant_pad_nd.default) == 2


@pytest.mark.parametrize("columns", [9, 57, 60, 100])
def test_returned_odd_rows_are_written_eight_apart(columns):
    def logits(x, w):
        return ((x @ w.t()).view(2, 1026, columns),)

    _, after, (note,) = rewritten(logits, draw(2052, 24), draw(columns, 24))
    assert note.taken
    (call,) = after.graph.find_nodes(op="call_function", target=mm_odd_rows)
    assert call.meta["val"].is_contiguous()


@pytest.mark.parametrize("columns", [9, 57, 60, 58])
def test_returned_odd_rows_with_a_bias_are_written_eight_apart(columns):
    inputs = draw(columns), draw(2052, 24), draw(columns, 24)
    _, after, (note,) = rewritten(lambda b, x, w: (torch.addmm(b, x, w.t()),), *inputs)
    assert note.taken
    (call,) = after.graph.find_nodes(op="call_function", target=mm_odd_rows)
    assert len(call.args) == 3
    rounded_once = torch.addmm(*(t.double() for t in (inputs[0], inputs[1], inputs[2].t()))).bfloat16()
    assert (after(*inputs)[0] != rounded_once).float().mean() < 0.01


@pytest.mark.parametrize("bias", [(1,), (2052, 1), (2052, 57), ()])
def test_another_bias_is_padded(bias):
    inputs = draw(*bias), draw(2052, 24), draw(57, 24)
    _, after, _ = rewritten(lambda b, x, w: (torch.addmm(b, x, w.t()),), *inputs)
    assert not after.graph.find_nodes(op="call_function", target=mm_odd_rows)


def test_odd_rows_that_are_read_again_are_padded():
    _, after, _ = rewritten(lambda x, w: ((x @ w.t()).relu(),), draw(2048, 24), draw(57, 24))
    assert count(after, aten.constant_pad_nd.default) == 1
