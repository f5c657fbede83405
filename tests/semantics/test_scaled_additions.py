"""``addcdiv`` and ``addcmul`` scale where eager does: it matters where a product or a quotient overflows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import lamina

CALLS: dict[str, Callable[..., torch.Tensor]] = {
    "addcdiv": lambda x, y, z: torch.addcdiv(x, y, z, value=0.0),
    "addcdiv as a method": lambda x, y, z: x.addcdiv(y, z, value=1e-10),
    "addcdiv_": lambda x, y, z: x.clone().addcdiv_(y, z, value=1e-10),
    "addcmul": lambda x, y, z: torch.addcmul(x, y, y, value=1e-30),
    "addcmul_": lambda x, y, z: x.clone().addcmul_(y, y, value=1e-30),
    "foreach addcdiv": lambda x, y, z: torch._foreach_addcdiv([x], [y], [z], 1e-10)[0],
    "foreach addcdiv by a list": lambda x, y, z: torch._foreach_addcdiv([x], [y], [z], [0.0])[0],
    "foreach addcmul": lambda x, y, z: torch._foreach_addcmul([x], [y], [y], 1e-30)[0],
}


@pytest.mark.parametrize("name", CALLS)
def test_what_overflows_is_eagers(name: str) -> None:
    x, y = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.5, 3e38, 1.0])
    z = torch.tensor([1e-45, 1e-3, 3.0])
    torch.testing.assert_close(lamina.compile(CALLS[name])(x, y, z), CALLS[name](x, y, z))
