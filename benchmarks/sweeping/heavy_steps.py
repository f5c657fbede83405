"""What may follow in a generated program and costs more than moving elements: places, pooling, sorting, products."""

from __future__ import annotations

from benchmarks.sweeping.steps import Step
from benchmarks.sweeping.writer import Unfit, Writer

__all__ = ["HEAVY"]


def gathered(w: Writer) -> None:
    """Reads at places that are data."""
    axis, now = w.axis(2), w.now
    size = w.shape[axis]
    choice = w.rng.randrange(4)
    if choice == 0:
        places = w.input(w.shape, "places", high=size)
        w.add(f"torch.gather({now}, {axis}, {places})")
    elif choice == 1:
        places = w.input((size,), "places", high=size)
        w.add(f"{now}.index_select({axis}, {places})")
    elif choice == 2:
        rows = w.input((w.rng.choice([17, 129, 1000]), w.shape[-1]))
        places = w.input(w.shape[:-1], "places", high=w.inputs[-1].shape[0])
        w.add(f"{now} + F.embedding({places}, {rows})")
    else:
        w.add(f"{now}.repeat_interleave(2, {axis})")


def scattered(w: Writer) -> None:
    """Writes at places that are data, without conflicts that would leave a choice."""
    axis, now = w.axis(2), w.now
    size = w.shape[axis]
    choice = w.rng.randrange(3)
    if choice == 0:
        places = w.input(w.shape, "places", high=size)
        w.add(f"torch.zeros_like({now}).scatter_add({axis}, {places}, {now}) * 0.5")
    elif choice == 1:
        places = w.input((size,), "places", high=size)
        w.add(f"torch.zeros_like({now}).index_add({axis}, {places}, {now}) * 0.5")
    else:
        start = w.rng.randint(0, size // 2)
        other = f"torch.sin({now}.narrow({axis}, {start}, {size // 2}))"
        w.add(f"{now}.slice_scatter({other}, {axis}, {start}, {start + size // 2})")


def pooled(w: Writer) -> None:
    if w.rank != 4:
        raise Unfit
    forms = (
        "F.avg_pool2d({0}, 2)",
        "F.avg_pool2d({0}, 3, 1, 1) - {0}",
        "F.max_pool2d({0}, 2)",
        "F.max_pool2d({0}, 3, 2, 1)",
        "F.adaptive_avg_pool2d({0}, 7)",
        "F.adaptive_avg_pool2d({0}, 1) * {0}",
        "F.adaptive_max_pool2d({0}, 5)",
        "F.lp_pool2d({0}.abs() + 0.1, 2, 2)",
    )
    w.add(w.rng.choice(forms).format(w.now))


def interpolated(w: Writer) -> None:
    if w.rank != 4:
        raise Unfit
    mode = w.rng.choice(["nearest", "bilinear", "bilinear", "bicubic", "area"])
    factor = w.rng.choice(["scale_factor=2", "scale_factor=0.5", f"size=({w.shape[2] * 3 // 2}, {w.shape[3] + 3})"])
    corners = ", align_corners=True" if mode in ("bilinear", "bicubic") and w.rng.random() < 0.4 else ""
    w.add(f"F.interpolate({w.now}, {factor}, mode='{mode}'{corners})")


def ordered(w: Writer) -> None:
    """Sorting, the largest few, the place of the largest."""
    axis = w.axis(8)
    forms = (
        "torch.sort({0}, {1})[0]",
        "torch.topk({0}, {2}, {1})[0]",
        "torch.gather({0}, {1}, {0}.argmax({1}, keepdim=True)) + {0}",
        "{0}.median({1}, keepdim=True)[0] * {0}",
        "torch.softmax(torch.topk({0}, {2}, {1})[0], {1})",
    )
    w.add(w.rng.choice(forms).format(w.now, axis, w.rng.choice([2, 8])))


def product(w: Writer) -> None:
    """Matrix products, convolutions, contractions and attention written by hand."""
    now, choice = w.now, w.rng.randrange(5)
    if choice == 0 and w.rank >= 2 and 4 <= w.shape[-1] <= 1024:
        weight = w.input((w.rng.choice([16, 33, 64, 128, 256]), w.shape[-1]))
        bias = w.input((w.inputs[-1].shape[0],))
        w.add(f"F.linear({now}, {weight} * 0.05, {bias})")
    elif choice == 1 and w.rank == 4 and w.shape[1] <= 256:
        channels = w.shape[1]
        depthwise = w.rng.random() < 0.5
        weight = w.input((channels, 1 if depthwise else channels, 3, 3))
        w.add(f"F.conv2d({now}, {weight} * 0.05, None, 1, 1, 1, {channels if depthwise else 1})")
    elif choice == 2 and w.rank >= 3 and max(w.shape[-2:]) <= 512:
        w.add(f"torch.softmax({now} @ {now}.transpose(-2, -1) * 0.1, -1) @ {now}")
    elif choice == 3 and w.rank >= 2 and max(w.shape[-2:]) <= 1024:
        other = w.input((w.shape[-1], w.rng.choice([2, 3, 4, 8])))
        w.add(f"{now} @ ({other} * 0.1)")
    elif choice == 4 and w.rank == 3 and w.shape[1] <= 512:
        weight = w.input((w.shape[1], 1, 3))
        w.add(f"F.conv1d({now}, {weight} * 0.1, None, 1, 1, 1, {w.shape[1]})")
    else:
        raise Unfit


def pairs(w: Writer) -> None:
    """Every row with every other, as box overlaps and distances are computed."""
    if w.rank != 2 or w.shape[0] > 2048 or w.shape[1] > 9 or w.shape[0] ** 2 * w.shape[1] > 2 * w.elements:
        raise Unfit
    form = w.rng.choice(["torch.maximum({0}[:, None], {0}[None])", "({0}[:, None] - {0}[None]).abs()"])
    w.add(form.format(w.now))


HEAVY: dict[str, Step] = {
    "gather": gathered,
    "scatter": scattered,
    "pooling": pooled,
    "interpolation": interpolated,
    "sorting": ordered,
    "product": product,
    "pairs": pairs,
}
"""The kinds of steps of this file, by the name that a report groups by."""
