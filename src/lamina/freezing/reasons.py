"""Codes of what freezing decides: what is computed once of parameters and buffers, and folded into weights."""

from __future__ import annotations

from lamina.base.reasons import Codes

_FROZEN = Codes(35, "Values of parameters and buffers kept between calls")

KEPT = _FROZEN.add(
    0,
    "kept between calls: {count:value} of parameters and buffers alone, {mib} MiB",
    "With the option freeze, what depends on parameters and buffers alone is computed once and again only when one of "
    "them changes.",
)
GRADIENTS = _FROZEN.add(
    1,
    "gradients are recorded; call it within torch.no_grad()",
    "The option freeze is for inference: with gradients, parameters change and their values cannot be folded.",
    "call it within torch.no_grad() or torch.inference_mode()",
)
NOTHING_KEPT = _FROZEN.add(
    2,
    "nothing in it is worth computing ahead from parameters and buffers alone",
    "No operation of the graph depends on parameters and buffers alone.",
)
OTHER_BACKEND = _FROZEN.add(
    3,
    "backend {backend} takes graphs as they were captured",
    "The option freeze works on graphs in normal form, and this backend is given the user's calls.",
    "use the default backend",
)
LAYERS_APART = _FROZEN.add(
    4,
    "{count} linear layers of one input: their weights would have to be concatenated at each call, which takes longer "
    'than the separate products; in inference options={"freeze": True} keeps the concatenation',
    "Several linear layers read one input. One product would read it once, at the price of copying all weights "
    "together.",
    'options={"freeze": True} keeps the weights of one product between calls of an inference model',
)
UNALIGNED_PART = _FROZEN.add(
    5,
    "a part of the product would begin at no multiple of {bytes} bytes",
    "Linear layers of one input stay apart, as slices of one product would not be aligned.",
    "make the layers' widths multiples of 8",
)
ONE_ROW = _FROZEN.add(
    6,
    "with one row the time is that of reading the weights, and kernels fuse with what follows",
    "Linear layers of one input stay apart where the input is one row.",
)
OWN_MEMORY = _FROZEN.add(
    7,
    "what reads them wants each result in memory of its own",
    "Linear layers of one input stay apart, as a reader cannot take a slice.",
)
ONE_PRODUCT = _FROZEN.add(
    8,
    "one product of {widths} columns, its weights kept",
    "Linear layers of one input are one product, whose results are slices.",
)
FOLDED = _FROZEN.add(
    9,
    "the weights, which are kept, hold {count:function} of each channel",
    "A batch norm, or factors and shifts of channels, is multiplied into the weights of the product before it.",
)
NOT_FOLDED = _FROZEN.add(
    10,
    "convolutions of a GPU's library add no bias, so that as many passes over the image would be left",
    "Factors and shifts of channels are not multiplied into the weights before them.",
)
