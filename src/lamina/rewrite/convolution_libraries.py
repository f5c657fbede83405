"""What convolutions gain on images with the channels innermost, by the library that runs them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from lamina.ops.few_outputs import MOST_GRADIENTS, has_few_outputs
from lamina.rewrite.torch_private import tf32_convolutions

__all__ = ["BACKWARD", "CUDNN", "FILTERS", "FORWARD", "IMAGES", "ONEDNN", "Library", "is_of_kernels", "nbytes"]

FORWARD, BACKWARD = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default
IMAGES: dict[Any, tuple[int, ...]] = {FORWARD: (0,), BACKWARD: (0, 1)}
"""Arguments of a convolution that are images; ``FILTERS`` has the one that holds its weights."""
FILTERS: dict[Any, int] = {FORWARD: 1, BACKWARD: 2}

_UNKNOWN = 32
"""A size that is a symbol counts as this."""
_ON_GPU = 3
"""What a convolution loses on images with the pixels innermost, as a multiple of their bytes (H100: 2.9 to 4.7)."""
_ON_CPU = {torch.float32: (1.2, 2.5), torch.bfloat16: (2.0, 1.2)}
"""The same on one core of a CPU with AVX-512, forward and backward, where a copy takes 110 to 130 us for a megabyte
that it moves. (Forward 1.0 to 1.75, in bfloat16 1.0 to 2.7; backward 3.5 to 9 and 1.75 to 1.9.)
"""
_DEPTHWISE = 1.2
"""The same of float32 gradients of filters of one channel (1.2 to 1.4)."""
_FEW_CHANNELS = 4
"""Channels of a group up to which float32 convolutions want it. With more, errors were twice those of the pixels
innermost, training gained 0 to 12 %, a ResNet nothing, and there were a sixth more kernels to compile.
"""
_WORTH = 8.0
"""How many times the bytes that are moved for its weights a convolution must save. (With 2, a ResNet of 32 to 256
channels on images of 96 x 96 took 1.1 times as long.)
"""
_FEW_ELEMENTS = 20480
"""Elements of one image up to which ATen does not ask oneDNN."""


@dataclass(frozen=True, slots=True)
class Library:
    """``wants`` says whether a convolution is faster channels-last, ``relayout`` what it loses otherwise, as a multiple
    of the bytes of its images, ``taps`` as a multiple of the elements of its image. ``shuns``: it is faster with the
    pixels innermost. ``turns_weights``: the library lays weights out anew in any case.
    """

    wants: Callable[[Node], bool]
    relayout: Callable[[Node], float]
    taps: Callable[[Node], int] = lambda node: 0
    shuns: Callable[[Node], bool] = lambda node: False
    turns_weights: bool = True


def nbytes(value: Tensor) -> int:
    """Bytes of a tensor's elements, an unknown size counted as some."""
    count = value.element_size()
    for n in value.shape:
        count *= n if isinstance(n, int) else _UNKNOWN
    return count


def _operands(node: Node) -> tuple[Tensor, Tensor] | None:
    """The image and the weights of a convolution."""
    image, weight = node.args[IMAGES[node.target][-1]], node.args[FILTERS[node.target]]
    if not isinstance(image, Node) or not isinstance(weight, Node):
        return None
    return image.meta["val"], weight.meta["val"]


def _pointwise(node: Node, weight: Tensor) -> bool:
    """Whether a convolution takes every pixel by itself."""
    steps = node.args[FILTERS[node.target] + 2]
    return all(n == 1 for n in weight.shape[2:]) and all(n == 1 for n in steps)  # type: ignore[union-attr]


def _wants_of_cudnn(node: Node) -> bool:
    operands = _operands(node)
    if operands is None:
        return False
    x, w = operands
    if x.shape[1] == 1 or _pointwise(node, w):
        return False
    if x.dtype == torch.float32:
        return w.shape[1] != 1 and tf32_convolutions()
    return x.dtype in (torch.bfloat16, torch.float16)


def _taps(node: Node) -> int:
    """Bytes for each element of the image that a convolution with one channel a group saves beside its operands'.

    ATen's own kernel, which takes such convolutions with the pixels innermost, is bound by its arithmetic (H100, 7x7,
    bfloat16: 350 us where cuDNN's takes 120 with the channels innermost; the gradients 2000 and 400).
    """
    weight = node.args[FILTERS[node.target]]
    assert isinstance(weight, Node)
    shape = weight.meta["val"].shape
    if shape[1] != 1:
        return 0
    taps = 1 if node.target is FORWARD else 4
    for n in shape[2:]:
        taps *= n if isinstance(n, int) else 1
    return taps


def _wants_of_onednn(node: Node) -> bool:
    operands = _operands(node)
    if operands is None or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    x, w = operands
    if x.dim() != 4 or x.dtype not in _ON_CPU or node.args[FILTERS[node.target] + 5]:  # transposed
        return False
    if not all(isinstance(n, int) for n in (*x.shape, *w.shape)) or (x.shape[0] == 1 and x.numel() <= _FEW_ELEMENTS):
        return False
    if is_of_kernels(node):
        return False
    if _pointwise(node, w):
        return x.dtype == torch.bfloat16
    return _pays(node)


def is_of_kernels(node: Node) -> bool:
    """Whether kernels of our own compute a convolution on a CPU, in either order of memory."""
    operands = _operands(node)
    if operands is None:
        return False
    x, w = operands
    settings: Any = node.args[FILTERS[node.target] + 2 :][:6]
    steps, pads, _, transposed, _, groups = settings
    if not all(isinstance(n, int) for n in (*x.shape, *w.shape, *steps, *pads)):  # comparing a symbol adds a guard
        return False
    if node.target is BACKWARD and w.shape[0] * math.prod(w.shape[2:]) > MOST_GRADIENTS:
        return False
    return has_few_outputs(x.dtype, x.shape, w.shape, steps, pads, transposed, groups)


def _shuns_of_onednn(node: Node) -> bool:
    operands = _operands(node)
    if operands is None or operands[0].dim() != 4 or operands[0].dtype not in _ON_CPU or _pointwise(node, operands[1]):
        return False
    return not _pays(node) and not is_of_kernels(node)


def _pays(node: Node) -> bool:
    """Whether what a convolution saves channels-last is much beside laying out its weights anew, and their gradient."""
    operands = _operands(node)
    assert operands is not None
    x, w = operands
    if x.dtype == torch.float32 and w.shape[1] > _FEW_CHANNELS:
        return False
    return _gained(node) >= _WORTH * (2 if node.target is FORWARD else 4) * nbytes(w)


def _gained(node: Node) -> float:
    """Bytes that a convolution saves channels-last."""
    images = [node.args[place] for place in IMAGES[node.target]]
    values = [image.meta["val"] for image in images if isinstance(image, Node)]
    made = node.meta["val"]
    values += [v for v in (made if isinstance(made, list | tuple) else [made])[:1] if isinstance(v, Tensor)]
    return _relayout_of_onednn(node) * sum(map(nbytes, values))


def _relayout_of_onednn(node: Node) -> float:
    operands = _operands(node)
    assert operands is not None
    x, w = operands
    if node.target is BACKWARD and x.dtype == torch.float32 and w.shape[1] == 1:
        return _DEPTHWISE
    return _ON_CPU[x.dtype][node.target is BACKWARD]


CUDNN = Library(_wants_of_cudnn, lambda node: _ON_GPU, _taps)
ONEDNN = Library(_wants_of_onednn, _relayout_of_onednn, shuns=_shuns_of_onednn, turns_weights=False)
