"""The private torch names of the front half exist and mean what we take them to mean."""

import operator
import types

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from lamina.aot import torch_private as aot_private
from lamina.aot.autograd import torch_private as autograd_private
from lamina.base.symbolic import torch_private as symbolic
from lamina.capture import torch_private as capture_private
from lamina.decomp import torch_private as decomp_private
from lamina.rewrite import torch_private as rewrite_private


def test_every_listed_name_exists():
    for module in (symbolic, aot_private, autograd_private, capture_private, decomp_private, rewrite_private):
        for name in module.__all__:
            assert getattr(module, name) is not None


def test_outside_a_compilation_there_is_nothing_to_find():
    assert capture_private.guard_empty_hooks() == 0
    assert decomp_private.current_trace() is None
    assert autograd_private.static_input_indices() == frozenset()
    assert aot_private.backend_fakes([torch.ones(2)]) == (None, [])
    assert isinstance(torch.autograd.Function._backward_cls.saved_tensors, types.GetSetDescriptorType)


def test_modes_are_seen():
    assert aot_private.plain_dispatch()
    with torch.autocast("cpu"):
        assert aot_private.autocast_enabled()
        assert not aot_private.plain_dispatch()
        with aot_private.without_autocast():
            assert not aot_private.autocast_enabled()


def test_sizes():
    assert symbolic.hint(3) == 3
    assert symbolic.hint(ShapeEnv().create_unbacked_symint(), 7) == 7
    assert rewrite_private.same_size(3, 3)
    assert not rewrite_private.same_size(3, 4)
    assert symbolic.symbols_of(torch.ones(2)) == []


def test_symbols_that_may_be_negative():
    number = ShapeEnv().create_unbacked_symint()
    assert not symbolic.is_true(number > 0)
    assert symbolic.is_guarded(number != 0)
    assert not symbolic.is_guarded(False)
    assert symbolic.is_zero(0)
    assert not symbolic.is_zero(number)
    assert symbolic.is_quotient(number // 3, float_too=False)
    assert symbolic.is_quotient(number / 2 + 1, float_too=True)
    assert not symbolic.is_quotient(number * 2, float_too=False)


def test_calls_of_one_operation():
    one = rewrite_private.one_operation
    assert all(one(f, True) for f in (torch.exp, F.gelu, "exp", operator.add, torch.ops.aten.exp.default))
    assert one(operator.add, False)
    assert not any(one(f, True) for f in (operator.getitem, F.relu, "norm", operator.floordiv, torch.split))
    assert not one(operator.truediv, False)


def test_symbols_that_nothing_waits_for():
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        x = torch.empty(3)
        with rewrite_private.ignoring_fresh_symbols([x]):
            found = torch.nonzero(x)
    assert rewrite_private.has_fresh_symbols([found])
    assert not rewrite_private.has_fresh_symbols(x)
    assert not mode.shape_env.pending_fresh_unbacked_symbols
