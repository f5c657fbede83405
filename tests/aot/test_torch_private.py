"""The private torch names of the front half exist and mean what we take them to mean."""

import torch

from lamina.aot import torch_private as aot_private
from lamina.capture import torch_private as capture_private
from lamina.decomp import torch_private as decomp_private
from lamina.rewrite import torch_private as rewrite_private


def test_every_listed_name_exists():
    for module in (aot_private, capture_private, decomp_private, rewrite_private):
        for name in module.__all__:
            assert getattr(module, name) is not None


def test_outside_a_compilation_there_is_nothing_to_find():
    assert capture_private.guard_empty_hooks() == 0
    assert decomp_private.current_trace() is None
    assert aot_private.static_input_indices() == frozenset()
    assert aot_private.backend_fakes([torch.ones(2)]) == (None, [])


def test_modes_are_seen():
    assert aot_private.plain_dispatch()
    with torch.autocast("cpu"):
        assert aot_private.autocast_enabled()
        assert not aot_private.plain_dispatch()
        with aot_private.without_autocast():
            assert not aot_private.autocast_enabled()


def test_sizes():
    assert aot_private.hint(3) == 3
    assert rewrite_private.same_size(3, 3)
    assert not rewrite_private.same_size(3, 4)
    assert aot_private.symbols_of(torch.ones(2)) == []
