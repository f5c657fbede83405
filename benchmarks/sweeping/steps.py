"""What may follow in a generated program: arithmetic, reductions, scans and everything that moves elements."""

from __future__ import annotations

import math
from collections.abc import Callable

from benchmarks.sweeping.writer import Unfit, Writer

__all__ = ["MOVES", "STEPS", "Step", "fitting", "pointwise"]

Step = Callable[[Writer], object]

UNARY = (
    "torch.sin({0})",
    "torch.cos({0})",
    "torch.tanh({0})",
    "torch.sigmoid({0})",
    "torch.exp(-{0}.abs())",
    "torch.erf({0})",
    "torch.log1p({0}.abs())",
    "torch.sqrt({0}.abs() + 0.1)",
    "torch.rsqrt({0} * {0} + 0.5)",
    "torch.atan({0})",
    "torch.asinh({0})",
    "torch.expm1({0}.clamp(max=1.0))",
    "{0}.abs().pow(1.5).clamp(max=4.0)",
    "F.gelu({0})",
    "F.gelu({0}, approximate='tanh')",
    "F.silu({0})",
    "F.softplus({0})",
    "F.hardswish({0})",
    "F.logsigmoid({0})",
    "F.leaky_relu({0}, 0.1)",
    "F.mish({0})",
    "{0}.clamp(-1.0, 1.0)",
    "torch.where({0} > 0, {0}, 0.25 * {0})",
    "{0}.float().square().to({0}.dtype).clamp(max=4.0)",
    "torch.round({0} * 4.0) * 0.25 + {0} * 0.5",
    "torch.floor({0} * 2.0) * 0.5 + {0} * 0.5",
    "1.0 / (1.0 + {0}.abs())",
)
BINARY = (
    "{0} * {1}",
    "{0} + {1}",
    "{0} - 0.5 * {1}",
    "torch.maximum({0}, {1})",
    "{0} / (1.0 + {1}.abs())",
    "torch.where({1} > 0, {0}, -{0})",
    "torch.addcmul({0}, {0}, {1}, value=0.5)",
    "torch.lerp({0}, {1}, 0.25)",
    "torch.atan2({0}, {1}.abs() + 0.5)",
    "torch.hypot({0}, {1})",
)


def fitting(w: Writer, layouts: bool = True) -> str:
    """An operand that broadcasts to the present value: an earlier value, or a new input."""
    shape = w.shape
    earlier = [n for n, v in w.values.items() if tuple(v.shape) == shape and v.dtype.is_floating_point and n != w.now]
    if earlier and w.rng.random() < 0.4:
        return w.rng.choice(earlier)
    style = w.rng.random()
    if style < 0.35:
        layout = "contiguous"
        if layouts and w.rank >= 2 and w.rng.random() < 0.4:
            layout = w.rng.choice(["strided", "transposed"])
        if layouts and w.rank == 4 and w.rng.random() < 0.3:
            layout = "channels_last"
        return w.input(shape, layout=layout)
    if style < 0.6:
        return w.input(shape[-1:])
    kept = [size if w.rng.random() < 0.5 else 1 for size in shape]
    return w.input(kept)


def pointwise(w: Writer) -> None:
    """One to three functions of one or two operands."""
    for _ in range(w.rng.randint(1, 3)):
        if w.rng.random() < 0.5:
            w.add(w.rng.choice(UNARY).format(w.now))
        else:
            w.add(w.rng.choice(BINARY).format(w.now, fitting(w)))


def masked(w: Writer) -> None:
    mask = w.input([size if w.rng.random() < 0.7 else 1 for size in w.shape], "mask")
    w.add(f"{w.now}.masked_fill({mask}, {w.rng.choice(['0.0', '-1.0'])})")


def bytes_unpacked(w: Writer) -> None:
    """Bytes or their halves as numbers that scale the present value."""
    unit = w.input(w.shape, "bytes")
    half = w.rng.choice(["({0} & 15)", "({0} >> 4)", "{0}"]).format(unit)
    w.add(f"{w.now} * (({half}).to({w.now}.dtype) - 8.0) * 0.125")


def reduction(w: Writer) -> None:
    """Over any axes; kept and combined with what was there before, or not."""
    axes = sorted(w.rng.sample(range(w.rank), w.rng.randint(1, min(w.rank, 3))))
    count = math.prod(w.shape[a] for a in axes)
    where = str(tuple(axes)) if len(axes) > 1 else str(axes[0])
    functions = ["mean({0}, keepdim={1})", "amax({0}, keepdim={1})", "amin({0}, keepdim={1})", "logsumexp({0}, {1})"]
    functions += ["norm(dim={0}, keepdim={1})"]
    if count > 1:
        functions += ["var({0}, keepdim={1})", "std({0}, keepdim={1})"]
    before, keep = w.now, w.rng.random() < 0.75
    size = math.prod(w.shape) / count
    if not keep and size < w.elements / 300:
        keep = True  # what follows would take no time
    w.add(f"{before}." + w.rng.choice(functions).format(where, keep))
    if keep:
        w.add(w.rng.choice(["{1} - {0}", "{1} / (1.0 + {0}.abs())", "{1} * {0}", "{1} > {0}"]).format(w.now, before))
        if not w.values[w.now].dtype.is_floating_point:
            w.add(f"torch.where({w.now}, {before}, 0.5 * {before})")


def normalised(w: Writer) -> None:
    axis, now = w.axis(2), w.now
    last = w.rank - 1
    choices = [f"torch.softmax({now}, {axis})", f"F.log_softmax({now}, {axis}) * 0.1"]
    choices += [f"F.normalize({now}, dim={axis})", f"F.layer_norm({now}, ({w.shape[last]},))"]
    if w.rank >= 3 and w.shape[1] % 2 == 0:
        choices.append(f"F.group_norm({now}, 2)")
    if w.rank >= 3:
        choices.append(f"F.instance_norm({now})")
    w.add(w.rng.choice(choices))


def scan(w: Writer) -> None:
    axis = w.axis(3)
    forms = (
        "torch.cumsum({0} * 0.1, {1})",
        "torch.cummax({0}, {1})[0]",
        "torch.cumprod(torch.sigmoid({0}), {1})",
        "torch.logcumsumexp({0}, {1}) * 0.1",
        "torch.cumsum({0}.flip({1}) * 0.1, {1})",
    )
    w.add(w.rng.choice(forms).format(w.now, axis))


def difference(w: Writer) -> None:
    """Neighbours along an axis."""
    axis = w.axis(3)
    low = f"{w.now}.narrow({axis}, 0, {w.shape[axis] - 1})"
    w.add(w.rng.choice([f"torch.diff({w.now}, dim={axis})", f"{w.now}.narrow({axis}, 1, {w.shape[axis] - 1}) + {low}"]))


def view(w: Writer) -> None:
    """Permutations, splits and merges of axes, flips, expansions."""
    choice, now, rank = w.rng.randrange(6), w.now, w.rank
    if choice == 0 and rank >= 2:
        order = w.rng.sample(range(rank), rank)
        w.add(f"{now}.permute({', '.join(map(str, order))})")
    elif choice == 1 and rank >= 2:
        axis = w.rng.randrange(rank - 1)
        w.add(f"{now}.flatten({axis}, {axis + 1})")
    elif choice == 2:
        axis = w.axis(4)
        factors = [f for f in range(2, 10) if w.shape[axis] % f == 0]
        if not factors or rank > 5:
            raise Unfit
        factor = w.rng.choice(factors)
        parts = [factor, w.shape[axis] // factor]
        w.rng.shuffle(parts)
        w.add(f"{now}.unflatten({axis}, {tuple(parts)})")
    elif choice == 3:
        w.add(f"{now}.flip({w.axis(2)})")
    elif choice == 4 and rank >= 2:
        w.add(f"{now}.transpose({rank - 2}, {rank - 1}).contiguous()")
    elif rank <= 4:
        w.add(f"{now}.unsqueeze({w.rng.randint(0, rank)}) * {w.rng.choice(['1.0', '0.5'])}")
    else:
        raise Unfit


def selection(w: Writer) -> None:
    """Slices with steps and selections at constants, combined."""
    axis, now = w.axis(2), w.now
    size = w.shape[axis]
    if size <= 9:
        picks = [f"{now}.select({axis}, {k})" for k in w.rng.sample(range(size), 2)]
        forms = ["{0} * {1}", "torch.maximum({0}, {1})", "{0} - {1}", "{0} / (1.0 + {1}.abs())"]
        w.add(w.rng.choice(forms).format(*picks))
        return
    start, step = w.rng.randint(0, 2), w.rng.choice([1, 2, 2, 3])
    w.add(f"{now}[{':, ' * axis}{start}:{size - w.rng.randint(0, 1)}:{step}]")


def rolled(w: Writer) -> None:
    axes = w.rng.sample(range(w.rank), w.rng.randint(1, min(2, w.rank)))
    shifts = [w.rng.choice([-3, -1, 1, 2, 4]) for _ in axes]
    w.add(f"torch.roll({w.now}, {tuple(shifts)}, {tuple(axes)})")


def padded(w: Writer) -> None:
    if w.rank < 2:
        raise Unfit
    modes = ["constant", "constant"] + (["reflect", "replicate", "circular"] if 3 <= w.rank <= 4 else [])
    mode = w.rng.choice(modes)
    count = w.rank - 2 if mode != "constant" else w.rng.randint(1, min(2, w.rank))
    widths = [w.rng.randint(0, 2) for _ in range(2 * count)]
    w.add(f"F.pad({w.now}, {tuple(widths)}, mode='{mode}')")


def joined(w: Writer) -> None:
    """Concatenations and stacks, along short axes too."""
    now, axis = w.now, w.rng.randrange(w.rank)
    second = f"torch.{w.rng.choice(['sin', 'tanh', 'neg', 'abs'])}({now})"
    if w.rng.random() < 0.5:
        w.add(f"torch.cat([{now}, {second}], {axis})")
    else:
        w.add(f"torch.stack([{now}, {second}], {w.rng.randint(0, w.rank)})")


def divided(w: Writer) -> None:
    """Splits whose parts are used apart."""
    axis, now = w.axis(4), w.now
    size = w.shape[axis]
    if size % 2:
        parts = [f"{now}.narrow({axis}, 0, {size // 2})", f"{now}.narrow({axis}, {size - size // 2}, {size // 2})"]
    else:
        parts = [f"{now}.chunk(2, {axis})[{k}]" for k in (0, 1)]
    form = w.rng.choice(["{0} * torch.sigmoid({1})", "F.gelu({0}) + {1}", "torch.cat([-{1}, {0}], {2})"])
    w.add(form.format(*parts, axis))


def windows(w: Writer) -> None:
    """Windows of an image: partition, depth to space and back, unfolding."""
    if w.rank != 4:
        raise Unfit
    n, c, height, width = w.shape
    choice = w.rng.randrange(4)
    if choice == 0:
        w.add(f"F.pixel_shuffle({w.now}, {w.rng.choice([2, 3])})")
    elif choice == 1:
        w.add(f"F.pixel_unshuffle({w.now}, 2)")
    elif choice == 2:
        size = next((s for s in (7, 8, 4, 2) if height % s == 0 and width % s == 0), 0)
        if not size:
            raise Unfit
        parts = f"{n}, {c}, {height // size}, {size}, {width // size}, {size}"
        w.add(f"{w.now}.reshape({parts}).permute(0, 2, 4, 3, 5, 1).reshape(-1, {size * size}, {c})")
    else:
        w.add(f"{w.now}.unfold({w.rng.choice([2, 3])}, 3, 2)")


MOVES: dict[str, Step] = {
    "view": view,
    "selection": selection,
    "roll": rolled,
    "pad": padded,
    "concatenation": joined,
    "split": divided,
    "windows": windows,
}
STEPS: dict[str, Step] = {
    "reduction": reduction,
    "normalisation": normalised,
    "scan": scan,
    "difference": difference,
    "mask": masked,
    "bytes": bytes_unpacked,
    **MOVES,
}
"""The kinds of steps of this file besides pointwise ones, by the name that a report groups by."""
