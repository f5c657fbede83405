"""A compiled module is the original to everything but the clock."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import lamina
from lamina.capture.dynamo import compile_callable
from lamina.capture.module import is_transparent, original_of
from lamina.record import Record


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.first(x))) * self.scale


class Counting:
    """A backend that counts graphs and runs them as they are."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm, example_inputs):
        self.graphs += 1
        return gm.forward


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make(**kwargs):
    torch.manual_seed(0)
    module, backend = Net(), Counting()
    return module, compile_callable(module, backend_callable=backend, **kwargs), backend


def test_state_and_type_are_the_originals():
    module, compiled, _ = make()
    assert isinstance(compiled, Net)
    assert type(compiled).__name__ == "Net"
    assert list(compiled.state_dict()) == list(module.state_dict())
    assert [n for n, _ in compiled.named_parameters()] == [n for n, _ in module.named_parameters()]
    assert all(a is b for a, b in zip(compiled.parameters(), module.parameters(), strict=True))
    assert repr(compiled) == f"compiled by Lamina\n{module!r}"
    assert compiled.train() is compiled
    compiled.eval()
    assert not module.training
    assert not module.norm.training


def test_attributes_are_shared_both_ways():
    module, compiled, backend = make()
    x = torch.randn(3, 4)
    compiled.eval()
    compiled(x)
    compiled.scale = 5.0
    assert module.scale == 5.0
    torch.testing.assert_close(compiled(x), module(x))
    module.extra = nn.Linear(4, 4)
    assert "extra.weight" in compiled.state_dict()
    del compiled.extra
    assert not hasattr(module, "extra")
    assert backend.graphs >= 1


def test_it_compiles_and_recompiles_with_the_mode():
    module, compiled, backend = make()
    x = torch.randn(3, 4)
    compiled(x)
    first = backend.graphs
    compiled(x)
    assert backend.graphs == first
    compiled.eval()
    torch.testing.assert_close(compiled(x), module(x))
    assert backend.graphs > first


def test_load_state_dict_and_device_moves_keep_identity():
    module, compiled, _ = make()
    other = Net()
    compiled.load_state_dict(other.state_dict())
    assert torch.equal(module.first.weight, other.first.weight)
    assert compiled.double() is compiled
    assert module.first.weight.dtype is torch.float64


def test_pickles_as_the_original_class():
    _, compiled, _ = make()
    back = pickle.loads(pickle.dumps(compiled))
    assert type(back) is Net
    assert torch.equal(back.first.weight, compiled.first.weight)
    stream = io.BytesIO()
    torch.save(compiled, stream)
    stream.seek(0)
    assert type(torch.load(stream, weights_only=False)) is Net


def test_its_class_makes_uncompiled_modules():
    _, compiled, _ = make()
    for maker in (type(compiled), compiled.__class__):
        other = maker(6)
        assert type(other) is Net
        assert other(torch.randn(2, 6)).shape == (2, 6)


def test_deepcopy_gives_a_compiled_copy():
    _, compiled, backend = make()
    twin = copy.deepcopy(compiled)
    assert is_transparent(twin)
    assert original_of(twin) is not original_of(compiled)
    assert twin.first.weight is not compiled.first.weight
    with torch.no_grad():
        twin.first.weight.zero_()
    assert compiled.first.weight.abs().sum() > 0
    before = backend.graphs
    twin(torch.randn(2, 4))
    assert backend.graphs > before


def test_compiling_twice_starts_from_the_original():
    module, compiled, _ = make()
    again = compile_callable(compiled, backend_callable=Counting())
    assert original_of(again) is module


@pytest.mark.parametrize("place", ["module", "child"])
@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward"])
def test_hooks_registered_after_the_first_call_fire(place, kind):
    _, compiled, _ = make()
    x = torch.randn(3, 4, requires_grad=True)
    compiled(x).sum().backward()
    calls = []
    target = compiled if place == "module" else compiled.first
    handle = getattr(target, f"register_{kind}_hook")(lambda *a: calls.append(kind))
    compiled(x).sum().backward()
    assert calls == [kind]
    handle.remove()
    compiled(x).sum().backward()
    assert calls == [kind]


def test_forward_hook_may_change_the_result():
    module, compiled, _ = make()
    compiled.eval()
    x = torch.randn(3, 4)
    before = compiled(x)
    compiled.first.register_forward_hook(lambda m, args, out: out + 1)
    assert not torch.allclose(before, compiled(x))
    torch.testing.assert_close(compiled(x), module(x))


def test_instances_of_one_class_share_their_graphs():
    backend = Counting()
    blocks = [compile_callable(Net(), backend_callable=backend) for _ in range(12)]
    x = torch.randn(3, 4)
    for block in blocks:
        block(x)
    assert backend.graphs == 1


def test_inside_another_compiled_module():
    module, compiled, _ = make()
    outer = nn.Sequential(compiled, nn.Linear(4, 2)).eval()
    reference = nn.Sequential(module, outer[1])
    x = torch.randn(3, 4)
    torch.testing.assert_close(torch.compile(outer, backend="eager")(x), reference(x))


def test_functions_methods_and_classes():
    backend = Counting()

    def compiled_with(target):
        return compile_callable(target, backend_callable=backend)

    @compiled_with
    def double(x):
        """Twice x."""
        return x * 2

    class Holder:
        factor = 3

        @compiled_with
        def scale(self, x):
            return x * self.factor

    @compiled_with
    class Small(nn.Module):
        def forward(self, x):
            return x + 1

    x = torch.randn(3)
    torch.testing.assert_close(double(x), x * 2)
    assert double.__name__ == "double"
    assert double.__doc__ == "Twice x."
    torch.testing.assert_close(Holder().scale(x), x * 3)
    small = Small()
    assert isinstance(small, Small)
    torch.testing.assert_close(small(x), x + 1)
    assert backend.graphs == 3


@pytest.mark.parametrize("capture", ["dynamo", "own"])
def test_instances_of_a_compiled_class_are_compiled(capture):
    """Their calls are compiled ones already, of which torch refuses to make more."""

    class Doubling(nn.Module):
        def forward(self, x):
            return x * 2

    class Derived(Doubling):
        pass

    lamina.compile(Doubling)
    for kind in (Doubling, Derived):
        compiled = lamina.compile(kind(), options={"capture": capture})
        assert compiled(torch.ones(3)).tolist() == [2.0] * 3
        assert isinstance(compiled, kind)
        assert compiled.stats().graphs == 1


def test_graph_breaks_split_and_fullgraph_refuses():
    backend = Counting()

    def broken(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    x = torch.randn(3)
    torch.testing.assert_close(compile_callable(broken, backend_callable=backend)(x), (x + 1) * 2)
    assert backend.graphs == 2
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compile_callable(broken, backend_callable=backend, fullgraph=True)(x)


def test_the_record_holds_each_region():
    record = Record()
    _, compiled, _ = make(record=record)
    compiled(torch.randn(3, 4))
    stage, *rest = record.stages
    assert [stage.name, *(other.name for other in rest)] == ["capture", "other", "guards"]
    assert stage.seconds > 0
    assert stage.value.hook_guards > 0
    assert "relu" in stage.value.files()[".py"]


def test_dynamic_compiles_once():
    backend = Counting()
    compiled = compile_callable(lambda x: x.sin() * x.shape[0], backend_callable=backend, dynamic=True)
    for rows in (3, 5, 9):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), x.sin() * rows)
    assert backend.graphs == 1


class Slotted(nn.Module):
    __slots__ = ("scale",)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale = nn.Linear(4, 4), 2.0

    def forward(self, x):
        return self.first(x) * self.scale


def test_slots_are_the_originals():
    module = Slotted()
    compiled, x = compile_callable(module, backend_callable=Counting()), torch.randn(2, 4)
    compiled(x)
    compiled.scale = 5.0
    assert module.scale == 5.0
    torch.testing.assert_close(compiled(x), module.first(x) * 5)
    module.scale = 7.0
    assert compiled.scale == 7.0
    torch.testing.assert_close(compiled(x), module.first(x) * 7)
    del compiled.scale
    assert not hasattr(module, "scale")


@pytest.mark.parametrize("through", ["compiled", "original"])
def test_the_class_is_replaced_on_both(through):
    class Tenfold(Net):
        def forward(self, x):
            return super().forward(x) * 10

        @property
        def tenfold(self):
            return True

    module, compiled, _ = make()
    compiled.eval()
    x = torch.randn(2, 4)
    before = compiled(x)
    (compiled if through == "compiled" else module).__class__ = Tenfold
    torch.testing.assert_close(compiled(x), before * 10)
    assert type(module) is Tenfold
    assert isinstance(compiled, Tenfold)
    assert compiled.tenfold
    assert is_transparent(compiled)
    assert original_of(compiled) is module


def test_parametrizations():
    module = nn.Linear(4, 4)
    plain, x = copy.deepcopy(module), torch.randn(2, 4)
    compiled = compile_callable(module, backend_callable=Counting())
    compiled(x)
    for each in (compiled, plain):
        nn.utils.parametrizations.weight_norm(each)
    torch.testing.assert_close(compiled(x), plain(x))
    torch.testing.assert_close(compiled.weight, plain.weight)
    torch.testing.assert_close(copy.deepcopy(compiled)(x), plain(x))
    for each in (compiled, plain):
        with torch.no_grad():
            each.parametrizations.weight.original0.mul_(2)
    torch.testing.assert_close(compiled(x), plain(x))
    nn.utils.parametrize.remove_parametrizations(compiled, "weight")
    assert type(module) is nn.Linear
    torch.testing.assert_close(compiled(x), plain(x))


def test_fully_shard_takes_a_compiled_module(tmp_path):
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("needs gloo")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        module = nn.Linear(4, 4)
        plain, x = copy.deepcopy(module), torch.randn(2, 4)
        compiled = compile_callable(module, backend_callable=Counting())
        distributed.fsdp.fully_shard(compiled)
        result = compiled(x)
        torch.testing.assert_close(result, plain(x))
        result.sum().backward()
        plain(x).sum().backward()
        torch.testing.assert_close(compiled.weight.grad.full_tensor(), plain.weight.grad)
    finally:
        distributed.destroy_process_group()
