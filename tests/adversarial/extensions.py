"""Subclasses, sparse tensors, operators and devices: what each program yields is compared with eager."""

from __future__ import annotations

import warnings

import torch

from lamina.testing.fuzz import attempt, backward, sample


def deterministic_mode(compile):
    def f(x, i):
        y = x.index_add(0, i, x[: len(i)])
        return y, torch.empty(3), x.cumsum(0), torch.are_deterministic_algorithms_enabled()

    g = compile(f)
    for on in (False, True, False):
        torch.use_deterministic_algorithms(on, warn_only=True)
        try:
            out = g(sample(4, 3), torch.tensor([0, 0]))
            yield out[0], out[1] if on else None, out[2:]
        finally:
            torch.use_deterministic_algorithms(False)


class Unit(torch.Tensor):
    """A tensor that carries a name through functions and counts them."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, Unit):
            out.unit = next((a.unit for a in args if isinstance(a, Unit) and hasattr(a, "unit")), "none")
        return out


def subclass_of_tensors(compile):
    g = compile(lambda x, y: (x + y, (x * 2).sum(0), x[0], x.view(-1)))
    x = sample(3, 2).as_subclass(Unit)
    x.unit = "m"
    out = attempt(g, x, sample(3, 2, seed=1))
    if isinstance(out, Exception):
        yield out
        return
    yield (
        [o.as_subclass(torch.Tensor) for o in out],
        [type(o).__name__ for o in out],
        [getattr(o, "unit", None) for o in out],
    )


def sparse_arguments(compile):
    def f(s, x):
        return (
            s @ x,
            (s * 2).to_dense(),
            s.coalesce().values() + 1,
            torch.sparse.mm(s, x).relu(),
            s.is_sparse,
            s.t().to_dense(),
        )

    g = compile(f)
    for n in range(2):
        s = torch.eye(3).mul(n + 1.5).to_sparse()
        yield attempt(g, s, sample(3, 2, seed=n))
        x = sample(3, 2, grad=True)
        out = attempt(g, s, x)
        yield out, backward(out[3:4]) if isinstance(out, tuple) else None, x.grad
    c = torch.eye(3).to_sparse_csr()
    yield attempt(compile(lambda s, x: s @ x), c, sample(3, 2))


def warnings_and_prints(compile):
    def f(x, n):
        if n:
            warnings.warn(f"given {n}", UserWarning, stacklevel=2)
        return x * n

    g = compile(f)
    for n in (0, 1, 2, 1):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            out = g(sample(2), n)
        yield out, [str(w.message) for w in seen if w.category is UserWarning and "given" in str(w.message)]


def control_flow_operations(compile):
    def f(x, k):
        y = torch.cond(x.sum() > 0, lambda a: a.sin() * k, lambda a: a.cos(), (x,))
        return y, torch.where(x > 0, x, k)

    g = compile(f)
    for n in range(4):
        x = sample(3, seed=n, grad=n % 2 == 1)
        out = attempt(g, x, n)
        yield out, backward(out) if isinstance(out, tuple) else None, x.grad


def custom_operators(compile):
    name = "lamina_hand::" + "scale_" + str(id(compile))
    seen = []

    @torch.library.custom_op(name, mutates_args=("out",))
    def scale(x: torch.Tensor, out: torch.Tensor, k: float) -> torch.Tensor:
        seen.append(k)
        out.copy_(x * k)
        return x + k

    @scale.register_fake
    def _(x, out, k):
        return torch.empty_like(x)

    def f(x, k):
        out = torch.zeros_like(x)
        y = scale(x, out, k)
        return y, out * 2

    g = compile(f)
    for k in (1.5, 2.0, 1.5):
        yield attempt(g, sample(3), k), list(seen)


def meta_and_fake_devices(compile):
    g = compile(lambda x: (x + 1, x.sum(0), x.t()))
    x = torch.empty(3, 4, device="meta")
    out = attempt(g, x)
    yield (
        [o.device.type for o in out] if isinstance(out, tuple) else out,
        [tuple(o.shape) for o in out] if isinstance(out, tuple) else None,
    )
    with torch.device("meta"):
        out = attempt(compile(lambda: torch.ones(3)))
        yield out.device.type if isinstance(out, torch.Tensor) else out
    yield attempt(g, sample(3, 4))
