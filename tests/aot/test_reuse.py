"""What was returned is read again only while it is what the forward wrote; gradients are right whatever happens."""

import gc
import threading
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from lamina.aot import graph_compiler, reuse, run
from lamina.base.row_digest import row_digest, unless_changed

from .reference import Reference, operations

ROWS, COLUMNS = 6, 256


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    """Small tensors of a CPU are treated as large ones of a GPU."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    for module in (run, graph_compiler):
        monkeypatch.setattr(module, "device_of", lambda joint: "cuda")
    monkeypatch.setattr(reuse, "_LEAST_BYTES", 0)
    yield
    torch._dynamo.reset()


def norm(x, residual, weight):
    """A residual stream's sum, of results of products, and its norm, computed in float32 as models do."""
    one = torch.eye(x.shape[-1], dtype=x.dtype)
    total = x @ one + residual @ one
    wide = total.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    return (wide * scale).to(x.dtype) * weight, total


class Backwards(Reference):
    """Keeps what each backward was given, weakly."""

    def __init__(self) -> None:
        super().__init__(rereads=True)
        self.given: list[dict[str, int]] = []

    def compile_region(self, region):
        inner = super().compile_region(region)
        names = [str(n.target) for n in region.gm.graph.find_nodes(op="placeholder")]

        def run(args):
            if region.kind == "backward":
                self.given.append({n: a.data_ptr() for n, a in zip(names, args, strict=True)})
            return inner(args)

        run._boxed_call = True
        return run


def leaves(dtype=torch.bfloat16, seed=1):
    g = torch.Generator().manual_seed(seed)
    shapes = ((ROWS, COLUMNS), (ROWS, COLUMNS), (COLUMNS,))
    return [torch.randn(s, generator=g).to(dtype).requires_grad_() for s in shapes]


def incoming(seed=2):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(ROWS, COLUMNS, generator=g).bfloat16() for _ in range(2)]


def right(found, inputs, gradients) -> None:
    """Gradients as exact as eager's, both measured against float64."""

    def of(dtype):
        again = [t.detach().to(dtype).requires_grad_() for t in inputs]
        out = norm(*again) if dtype != torch.float64 else exact(*again)
        return torch.autograd.grad(out, again, [g.to(dtype) for g in gradients])

    def exact(x, residual, weight):
        total = x + residual
        scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6)
        return total * scale * weight, total

    for mine, eager, true in zip(found, of(torch.bfloat16), of(torch.float64), strict=True):
        error, allowed = (mine.double() - true).abs().max(), (eager.double() - true).abs().max()
        assert error <= 2 * allowed + 1e-3 * true.abs().max()


def seen_by(compiler: Backwards) -> list[int]:
    """The address at which each backward looked for the returned sum; 0 if it computed it again."""
    return [next((a for n, a in given.items() if n.endswith("_seen")), 0) for given in compiler.given]


def test_the_backward_reads_the_returned_sum_where_it_is():
    compiler, inputs, gradients = Backwards(), leaves(), incoming()
    y, z = compiler.compile(norm)(*inputs)
    found = torch.autograd.grad((y, z), inputs, gradients)
    right(found, inputs, gradients)
    assert seen_by(compiler) == [z.data_ptr()]
    assert operations(compiler.graph("forward")).count("lamina.row_digest.default") == 1
    assert operations(compiler.graph("backward")).count("lamina.unless_changed.default") == 1
    (decision,) = [d for d in compiler.partition().decisions if d.kind == "reread"]
    assert dict(decision.facts)["bytes"] == ROWS * COLUMNS * 2


def in_place(z):
    with torch.no_grad():
        z += 1


def through_a_view(z):
    with torch.no_grad():
        z.view(-1)[::7].zero_()


def one_element(z):
    z.data[3, 5] += 1


def negated(z):
    z.data.neg_()


def rows_swapped(z):
    z.data.copy_(z.data.flip(0))


def elements_swapped(z):
    z.data.copy_(z.data.flip(1))


def by_address(z):
    """As a kernel of the user's own would: no version is counted."""
    torch.from_dlpack(z.detach()).mul_(3)


def moved(z):
    z.data = torch.ones(2, COLUMNS, dtype=z.dtype)


def emptied(z):
    z.untyped_storage().resize_(0)


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize(
    ("change", "unnoticed"),
    [
        *((in_place, 0), (through_a_view, 0), (moved, 0), (emptied, 0)),
        *((one_element, 1), (negated, 1), (rows_swapped, 1), (elements_swapped, 1), (by_address, 1)),
    ],
)
def test_what_became_of_the_sum_does_not_matter(change, unnoticed):
    """As in eager, which keeps a float32 copy of it. Some changes only the digests tell."""
    compiler, inputs, gradients = Backwards(), leaves(), incoming()
    y, z = compiler.compile(norm)(*inputs)
    through = z * 1  # the gradient of z comes in even if z itself is no place to ask for it any more
    change(z)
    found = torch.autograd.grad((y, through), inputs, gradients)
    right(found, inputs, gradients)
    assert seen_by(compiler) == [z.data_ptr() if unnoticed else 0]


def test_a_dropped_sum_is_not_kept_alive():
    compiler, inputs, gradients = Backwards(), leaves(), incoming()
    y, z = compiler.compile(norm)(*inputs)
    gone = weakref.ref(z)
    del z
    gc.collect()
    assert gone() is None
    found = torch.autograd.grad(y, inputs, gradients[0])
    right(found, inputs, [gradients[0], torch.zeros_like(gradients[1])])
    assert seen_by(compiler) == [0]


def test_a_sum_that_only_autograd_holds_is_found():
    compiler, inputs, gradients = Backwards(), leaves(), incoming()
    y, z = compiler.compile(norm)(*inputs)
    address, squared = z.data_ptr(), z * z
    twice = 2 * z.detach()
    del z
    gc.collect()
    found = torch.autograd.grad((y, squared), inputs, gradients, retain_graph=True)
    right(found, inputs, [gradients[0], gradients[1] * twice])
    assert seen_by(compiler) == [address]


def test_hooks_on_saved_tensors_see_what_is_saved_and_nothing_of_the_sum():
    compiler, inputs, gradients = Backwards(), leaves(), incoming()
    packed = []

    def pack(tensor):
        packed.append(tensor.data_ptr())
        return tensor.detach().clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y, z = compiler.compile(norm)(*inputs)
    right(torch.autograd.grad((y, z), inputs, gradients), inputs, gradients)
    assert inputs[2].data_ptr() in packed
    assert z.data_ptr() not in packed


def test_a_kept_graph_runs_again_after_the_sum_was_written_to():
    compiler, inputs, gradients = Backwards(), leaves(), incoming()
    y, z = compiler.compile(norm)(*inputs)
    for change in (lambda z: None, in_place, negated):
        change(z)
        right(torch.autograd.grad((y, z), inputs, gradients, retain_graph=True), inputs, gradients)
    assert seen_by(compiler) == [z.data_ptr(), 0, 0]


def test_each_call_reads_its_own_sum():
    compiler = Backwards()
    compiled = compiler.compile(norm)
    calls = [(leaves(seed=s), incoming(s + 1)) for s in (3, 5)]
    results = [compiled(*inputs) for inputs, _ in calls]
    for (inputs, gradients), out in zip(calls, results, strict=True):
        right(torch.autograd.grad(out, inputs, gradients), inputs, gradients)
    assert seen_by(compiler) == [z.data_ptr() for _, z in results]


def test_checkpoints_compute_the_digests_again():
    compiler, inputs, gradients = Backwards(), leaves(), incoming()
    y, z = checkpoint(compiler.compile(norm), *inputs, use_reentrant=False)
    right(torch.autograd.grad((y, z), inputs, gradients), inputs, gradients)


def test_another_thread_may_run_the_backward():
    compiler, inputs, gradients = Backwards(), leaves(), incoming()
    y, z = compiler.compile(norm)(*inputs)
    found = []
    thread = threading.Thread(target=lambda: found.extend(torch.autograd.grad((y, z), inputs, gradients)))
    thread.start()
    thread.join()
    right(found, inputs, gradients)


def test_a_second_derivative_is_eagers():
    compiler, inputs, gradients = Backwards(), leaves(), incoming()
    found = []
    for function in (compiler.compile(norm), norm):
        (first, *_) = torch.autograd.grad(function(*inputs), inputs, gradients, create_graph=True)
        found.append(torch.autograd.grad(first.float().sum(), inputs, allow_unused=True))
    torch.testing.assert_close(*found)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("kind", ["small", "short rows", "no row is reduced", "eager saves it", "other backends"])
def test_where_it_is_not_worth_it(kind, monkeypatch):
    compiler, inputs, function = Backwards(), leaves(), norm
    if kind == "small":
        monkeypatch.setattr(reuse, "_LEAST_BYTES", 1 << 20)
    if kind == "short rows":
        inputs = [t.detach()[..., :32].requires_grad_() for t in inputs]
    if kind == "no row is reduced":

        def function(x, residual, weight):
            total = x + residual
            return total.float().tanh().to(x.dtype) * weight, total

    if kind == "eager saves it":

        def function(x, residual, weight):
            total = x + residual
            return torch.nn.functional.layer_norm(total, (COLUMNS,), weight), total

    if kind == "other backends":
        compiler = Reference()
    out = compiler.compile(function)(*inputs)
    torch.autograd.grad(out, inputs, [torch.ones_like(t) for t in out])
    assert "lamina.row_digest.default" not in operations(compiler.graph("forward"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_no_change_of_one_element_goes_unseen(dtype):
    """The low word of a place's factor is not zero, so that no difference of two elements becomes zero by it."""
    row = torch.randn(64).to(dtype)
    bits = row.view(torch.int16 if dtype != torch.float32 else torch.int32)
    others = bits.repeat(4096, 1)
    places = torch.randint(64, (4096,))
    values = torch.randint(-(2**15), 2**15, (4096,)).to(bits.dtype)
    others[torch.arange(4096), places] = values
    same = (others == bits).all(-1)
    found = (row_digest(others.view(dtype)) == row_digest(row[None])).flatten()
    assert torch.equal(found, same)
    assert len(row_digest(torch.randn(5000, 64).to(dtype)).unique()) == 5000


def test_places_have_factors_of_their_own():
    """A row of zeros with the bit pattern 1 in one place has that place's factor as its digest."""
    rows = torch.eye(4096, dtype=torch.int16).view(torch.bfloat16)
    factors = row_digest(rows).flatten()
    assert [len(half.unique()) for half in (factors & 0xFFFFFFFF, factors >> 32)] == [4096, 4096]
    assert (factors & 0xFFFFFFFF).all()


def test_digests_of_rows_of_zeros_and_of_shuffled_rows_differ():
    row = torch.randn(64).bfloat16()
    rows = torch.stack([row, row.flip(0), -row, row.roll(1), torch.zeros_like(row), -torch.zeros_like(row)])
    assert len(row_digest(rows).unique()) == 6


def test_unless_changed_takes_each_row_for_itself():
    seen, again = torch.randn(4, 32), torch.randn(4, 32)
    noted = row_digest(seen)
    seen[2, 7] += 1
    found = unless_changed(seen, noted, again)
    assert torch.equal(found, torch.stack([seen[0], seen[1], again[2], seen[3]]))
