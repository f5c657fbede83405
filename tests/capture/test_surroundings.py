"""A graph is used again only while what it read besides its arguments is as it was."""

import abc
import collections
import sys
import types
import warnings

import numpy as np
import pytest
import torch

import lamina
from lamina.capture.external_state import reads
from lamina.errors import LaminaWarning

WAYS = {"lamina": lamina.compile, "torch": lambda f: torch.compile(f, backend="lamina")}
X = torch.arange(1.0, 5.0)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def program(text, **names):
    scope = {"torch": torch, **names}
    exec(text, scope)
    return scope["program"], scope


def global_that_hides_a_builtin():
    function, scope = program("def program(x): return x * max(1, 2)")
    return function, lambda: scope.update(max=lambda *a: 50)


def global_of_a_helper_that_hides_a_builtin():
    helper, scope = program("def program(x): return x * len([1, 2])")
    return lambda x: helper(x) + 1, lambda: scope.update(len=lambda a: 50)


def attribute_that_hides_that_of_a_base():
    class Base:
        k = 2

    class Kind(Base):
        pass

    kind = Kind()
    return lambda x: x * kind.k, lambda: setattr(Kind, "k", 5)


def attribute_that_hides_that_of_a_second_base():
    class Base:
        k = 2

    class Middle(Base):
        pass

    class Kind(Middle):
        pass

    return lambda x: x * Kind.k, lambda: setattr(Middle, "k", 5)


def property_that_hides_an_attribute_of_a_base():
    class Base:
        k = 2

    class Kind(Base):
        pass

    kind = Kind()
    return lambda x: x * kind.k, lambda: setattr(Kind, "k", property(lambda self: 7))


def attribute_of_a_class():
    class Kind:
        k = 2

    return lambda x: x * Kind.k, lambda: setattr(Kind, "k", 5)


def attribute_of_the_class_of_an_object():
    class Kind:
        k = 2

    kind = Kind()
    return lambda x: x * kind.__class__.k, lambda: setattr(Kind, "k", 5)


def attribute_of_the_class_of_a_module():
    class Net(torch.nn.Module):
        k = 2

        def forward(self, x):
            return x * self.__class__.k

    return Net(), lambda: setattr(Net, "k", 5)


def attribute_of_a_class_of_tensors():
    class Kind(torch.Tensor):
        scale = 2.0

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            result = super().__torch_function__(func, types, args, kwargs or {})
            return result * cls.scale if func is torch.Tensor.add else result

    return lambda x: x.as_subclass(Kind).add(1).as_subclass(torch.Tensor), lambda: setattr(Kind, "scale", 5.0)


def defaults_of_a_function():
    def helper(x, k=2):
        return x * k

    return lambda x: helper(x), lambda: setattr(helper, "__defaults__", (5,))


def list_among_the_defaults():
    held = [1]

    def helper(x, k=held):
        return x * len(k)

    return lambda x: helper(x), lambda: held.append(1)


def data_of_a_parameter():
    class Kind(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return x * self.weight * self.weight.shape[0]

    module = Kind()
    return module, lambda: setattr(module.weight, "data", torch.full((4,), 2.0))


def attribute_of_a_module_class():
    class Base(torch.nn.Module):
        k = 2

        def forward(self, x):
            return x * self.k

    class Kind(Base):
        pass

    return Kind(), lambda: setattr(Kind, "k", 5)


def order_of_a_dictionary():
    held = collections.OrderedDict(a=1, b=2)

    def run(x):
        for value in held.values():
            x = x * 2 + value
        return x

    return run, lambda: held.move_to_end("a")


def registered_class():
    class Base(abc.ABC):  # noqa: B024
        pass

    class Kind:
        pass

    kind = Kind()
    return lambda x: x * 2 if isinstance(kind, Base) else x * 5, lambda: Base.register(Kind)


def hook_of_all_modules():
    module = torch.nn.Linear(4, 4).eval()
    return lambda x: module(x), lambda: torch.nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 3)


def hook_before_all_modules():
    module = torch.nn.Linear(4, 4).eval()
    register = torch.nn.modules.module.register_module_forward_pre_hook
    return lambda x: module(x), lambda: register(lambda m, i: (i[0] * 3,))


OLD_GUARDS = (defaults_of_a_function, list_among_the_defaults, data_of_a_parameter)
"""What Dynamo of torch 2.11 and 2.12 passes over unless it is told not to, which Lamina's own way in does."""

CHANGES = (
    global_that_hides_a_builtin,
    global_of_a_helper_that_hides_a_builtin,
    attribute_that_hides_that_of_a_base,
    attribute_that_hides_that_of_a_second_base,
    property_that_hides_an_attribute_of_a_base,
    attribute_of_a_class,
    attribute_of_the_class_of_an_object,
    attribute_of_the_class_of_a_module,
    attribute_of_a_class_of_tensors,
    *OLD_GUARDS,
    attribute_of_a_module_class,
    order_of_a_dictionary,
    registered_class,
    hook_of_all_modules,
    hook_before_all_modules,
)


@pytest.mark.sampled(one_in=16)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", CHANGES, ids=lambda make: make.__name__)
def test_a_change_is_seen(make, way):
    if make in OLD_GUARDS and way == "torch" and torch.__version__ < "2.13":
        pytest.skip("torch.compile's own settings pass over these guards")
    function, change = make()
    compiled = WAYS[way](function)
    before = function(X)
    assert torch.allclose(compiled(X), before)
    handle = change()
    try:
        after = function(X)
        assert not torch.allclose(before, after)
        assert torch.allclose(compiled(X), after)
    finally:
        if hasattr(handle, "remove"):
            handle.remove()


def test_a_buffer_that_gets_a_history():
    """Gradients of earlier calls go through what a module wrote to its buffer."""

    class Kind(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(1.0, 4.0))
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            self.seen.add_(self.weight)
            return torch.sin(self.seen) * x

    gradients = []
    for compile_it in (lambda module: module, lamina.compile):
        module = Kind()
        run = compile_it(module)
        for _ in range(3):
            result = run(X[:3])
        result.sum().backward()
        gradients.append(module.weight.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "of"), [("sinh", lambda x: x.sinh()), ("__pow__", lambda x: x**2), ("norm", torch.norm)]
)
def test_a_patched_method_of_tensors(name, of, way, monkeypatch):
    run = (lambda x: x.norm()) if name == "norm" else of
    compiled = WAYS[way](run)
    assert torch.allclose(compiled(X), run(X))
    monkeypatch.setattr(torch.Tensor, name, lambda self, *args: self * 7)
    assert torch.equal(run(X), X * 7)
    assert torch.equal(compiled(X), X * 7)


@pytest.mark.parametrize("way", WAYS)
def test_the_first_tensor_that_is_stored(way, monkeypatch, tmp_path):
    """Storing it puts an attribute into the class of tensors, which hides no method: nothing is compiled again."""
    if "__slotnames__" in vars(torch.Tensor):
        monkeypatch.delattr(torch.Tensor, "__slotnames__")

    def run(x):
        return x.sinh()

    compiled = WAYS[way](run)
    compiled(X)
    torch.save(X, tmp_path / "x.pt")
    assert "__slotnames__" in vars(torch.Tensor)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.allclose(compiled(X), X.sinh())
    monkeypatch.setattr(torch.Tensor, "sinh", lambda self: self * 7)
    assert torch.equal(compiled(X), X * 7)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("line", ["import {0}; k = {0}.k", "from {0} import k", "import {0} as other; k = other.k"])
def test_a_module_imported_by_name(line, way, monkeypatch):
    name = "imported_while_it_runs"

    def put(value):
        module = types.ModuleType(name)
        module.k = value
        monkeypatch.setitem(sys.modules, name, module)

    put(2)
    run, _ = program(f"def program(x):\n    {line.format(name)}\n    return x * k")
    compiled = WAYS[way](run)
    assert torch.equal(compiled(X), X * 2)
    put(5)
    assert torch.equal(compiled(X), X * 5)


class Plain:
    pass


ONE, OTHER = Plain(), Plain()
LIST = [1]


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "same",
    [
        lambda p, q: p is q,
        lambda p, q: p is not q,
        lambda p, q: p == q,
        lambda p, q: p in [q],
    ],
    ids=["is", "is not", "equal", "in"],
)
@pytest.mark.parametrize("calls", [[(ONE, OTHER), (ONE, ONE), (OTHER, ONE)], [(LIST, LIST), ([1], [1]), (LIST, LIST)]])
def test_values_that_are_the_same_object(calls, same, way):
    def run(x, p, q):
        return x * 2 if same(p, q) else x * 5

    compiled = WAYS[way](run)
    for p, q in calls:
        assert torch.equal(compiled(X, p, q), run(X, p, q))


def leaf():
    return torch.ones(4, requires_grad=True)


def has_history():
    return leaf() * 1


def keeps_its_gradient():
    x = has_history()
    x.retain_grad()
    return x


@pytest.mark.filterwarnings("ignore::lamina.errors.LaminaWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("ask", "inputs"),
    [
        (lambda x: x._base is None, (lambda: torch.ones(4), lambda: torch.ones(4)[:])),
        (lambda x: x._is_view(), (lambda: torch.ones(4), lambda: torch.ones(4)[:])),
        (lambda x: x.retains_grad, (keeps_its_gradient, has_history)),
        (lambda x: x.is_leaf, (leaf, has_history)),
        (lambda x: x.grad_fn is None, (leaf, has_history)),
        (lambda x: x.output_nr == 0, (has_history, lambda: torch.ones(2, 4, requires_grad=True).unbind()[1])),
        (lambda x: x._version == 0, (lambda: torch.ones(4), lambda: torch.ones(4).add_(0))),
    ],
    ids=["base", "view", "gradient", "leaf", "history", "output", "version"],
)
def test_what_a_tensor_is_part_of(ask, inputs, way):
    def run(x):
        return (x * 2 if ask(x) else x * 5).detach()

    compiled = WAYS[way](run)
    for make in (*inputs, *inputs):
        x = make()
        assert torch.equal(compiled(x), run(x))


@pytest.mark.filterwarnings("ignore::lamina.errors.LaminaWarning")
@pytest.mark.parametrize("way", WAYS)
def test_how_often_a_tensor_was_written(way):
    kept = {}

    def run(x, w):
        if kept.get("version") != w._version:  # as caches of converted weights do
            kept.update(version=w._version, cast=w * 2)
        before = x._version
        x.add_(1)
        return x * kept["cast"], before, x._version

    w, compiled = torch.ones(4), WAYS[way](run)
    for factor in (2, 2, 4, 4):
        w.fill_(factor / 2)
        found, *versions = compiled(torch.ones(4), w)
        assert torch.equal(found, torch.full((4,), 2.0 * factor))
        assert versions == [0, 1]


@pytest.mark.by_dynamo("asks for Dynamo's words", "2.0-lamina", "value1-lamina", "value2-lamina")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [np.float64(2), np.float32(2), np.int64(2)])
def test_the_type_of_a_numpy_scalar(value, way):
    def run(x, s):
        return x.double() * float(s) if isinstance(s, np.float64) else x * 2

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        got = WAYS[way](run)(X, value)
    expected = run(X, value)
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)
    assert any(issubclass(w.category, LaminaWarning) for w in told)


class Zeroed(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g * 0


@pytest.mark.by_dynamo("asks for Dynamo's words", "lamina")
@pytest.mark.parametrize("way", WAYS)
def test_a_custom_derivative_within_a_transform(way):
    def run(x):
        return torch.func.grad(lambda y: Zeroed.apply(y).sum())(x)

    with pytest.warns(LaminaWarning, match="custom autograd function"):
        got = WAYS[way](run)(X)
    assert torch.equal(got, run(X))


def test_no_compilation_for_what_does_not_matter():
    """Facts that change without an effect on the answers, and equal calls, compile nothing again."""

    class Base(abc.ABC):  # noqa: B024
        pass

    held = collections.OrderedDict(a=1, b=2)
    compiled = torch.compile(lambda x: x.sinh() * max(1, 2) + sum(held.values()), backend="lamina")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(3):
            compiled(X)
            Base.register(type("Other", (), {}))


def test_codes_are_read_as_they_are():
    def compares(p, q):
        return p is q

    def constant(p):
        return p is None

    assert reads.compares_identity([compares.__code__])
    assert not reads.compares_identity([constant.__code__])
    assert not reads.users_own([torch.nn.Linear.forward.__code__])


@pytest.mark.by_dynamo("asks for Dynamo's words", "lamina")
@pytest.mark.parametrize("way", WAYS)
def test_the_dtype_of_numbers_drawn_by_tensors_of_two_dtypes(way):
    def scale(mean, deviation):
        drawn = torch.normal(mean, deviation)
        return drawn.float() * (2 if drawn.dtype == torch.float16 else 3)

    mean, deviation = torch.ones(3, dtype=torch.float16), torch.zeros(3)
    with pytest.warns(LaminaWarning, match="of two dtypes"):
        found = WAYS[way](scale)(mean, deviation)
    assert torch.equal(found, scale(mean, deviation))
