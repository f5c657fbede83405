"""The private torch names of the backends exist and do what they are used for."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import symbolic_trace

from lamina.backends import torch_private


def test_every_listed_name_exists() -> None:
    for name in torch_private.__all__:
        assert getattr(torch_private, name) is not None


def test_names_of_torchs_backends() -> None:
    every = torch_private.torch_backend_names()
    assert {"inductor", "eager", "aot_eager"} <= set(every)
    assert "eager" not in torch_private.torch_backend_names(("debug",))
    x = torch.ones(2)
    gm = symbolic_trace(lambda x: (x * 2,))
    assert torch.equal(torch_private.torch_backend("eager")(gm, [x])(x)[0], x * 2)


def test_a_mark_copied_to_a_wrapper_does_not_count() -> None:
    def one_list(inputs: list[Any]) -> Any:
        return inputs

    def each(*inputs: Any) -> Any:
        return inputs

    assert not torch_private.takes_one_list(one_list)
    one_list._boxed_call = each._boxed_call = True  # type: ignore[attr-defined]
    assert torch_private.takes_one_list(one_list)
    assert torch_private.takes_one_list(torch.compiler.disable(one_list))
    assert not torch_private.takes_one_list(each)
    assert not torch_private.takes_one_list(torch.compiler.disable(each))


def test_real_tensors_are_made_where_fake_ones_are_traced() -> None:
    with FakeTensorMode():
        assert type(torch.ones(2)) is FakeTensor
        with torch_private.outside_of_tracing():
            assert torch.ones(2).tolist() == [1, 1]
            assert not torch.is_grad_enabled()
