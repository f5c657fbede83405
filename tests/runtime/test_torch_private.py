"""The private torch names of the runtime exist, or have something that stands in for them."""

from __future__ import annotations

import torch

from lamina.runtime import torch_private


def test_every_listed_name_exists() -> None:
    for name in torch_private.__all__:
        assert getattr(torch_private, name) is not None


def test_memory_of_the_cpu() -> None:
    made = torch_private.empty_strided_cpu((2, 3), (3, 1), torch.float32)
    part = torch_private.reinterpret(made.fill_(1), (3,), (1,), 3)
    assert part.tolist() == [1, 1, 1]
    assert part.untyped_storage().data_ptr() == made.untyped_storage().data_ptr()
    if torch_private.CAN_COUNT_USES:
        storage = made.untyped_storage()
        uses = torch_private.storage_uses(storage)
        more = torch_private.reinterpret(made, (1,), (1,), 0)
        assert torch_private.storage_uses(storage) == uses + 1
        del more
        assert torch_private.storage_uses(storage) == uses
