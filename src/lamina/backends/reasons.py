"""Codes of what backends decide: which runs what, builds, CUDA graphs, and what runs through ATen instead."""

from __future__ import annotations

from lamina.base.reasons import Codes

_RUN = Codes(94, "Backends")

REFUSED = _RUN.add(
    0,
    "{why}",
    "The backend does not take such calls, which its fallback runs; the rest of the graph is its own.",
    "let supports= of the backend take them, or write them otherwise, as the sentence says",
)
SUPPORTED = _RUN.add(
    1,
    "supported",
    "The backend compiles this part of the graph.",
)
BUILD_FAILED = _RUN.add(
    2,
    "building failed: {why}; it runs as ATen calls",
    "The region's kernels could not be compiled, so it runs call by call through ATen: results are right, and slower.",
    "`make doctor` says what this machine lacks; without a C++ compiler install g++, or name one with the option cxx",
)
NO_MACHINE_CODE = _RUN.add(
    3,
    "{why}; it is evaluated equation by equation",
    "A GPU kernel could not be generated or compiled; its equations run one by one, or the region runs as ATen calls.",
    "please report it with the folder that the option dump_dir writes; strict=True raises instead",
)
STAGE_LESS = _RUN.add(
    4,
    "one stage less: {why}",
    "A kernel wanted more shared memory than there is, and reads one step less ahead.",
)
MODE_OF_GPUS = _RUN.add(
    5,
    "mode {mode} is about GPUs, and this runs on the CPU",
    "The mode records CUDA graphs; on a CPU it changes nothing.",
    'use mode="default" or "max-autotune"',
)
OTHER_SIZES = _RUN.add(
    6,
    "it is {kernel} with sizes {sizes}",
    "A kernel equal to another but for its sizes shares the compiled function, which takes the sizes as arguments.",
)

GRAPH_REFUSED = _RUN.add(
    7,
    "{why}",
    "The backend does not take the graph, or none of its calls, and its fallback runs all of it.",
    "choose another backend for it, or change what the sentence names",
)

_GRAPHS = Codes(95, "Whether calls are recorded as CUDA graphs")

UNALIGNED_INPUT = _GRAPHS.add(
    0,
    "an input does not begin at a multiple of 16 bytes: such calls run directly",
    "An argument is a view that begins at an odd address; kernels for aligned inputs and recordings do not serve it.",
    "pass a clone, or a view that begins at a multiple of 16 bytes",
)
PARTLY_CPU = _GRAPHS.add(
    1,
    "part of it runs on the CPU, or has no machine code",
    "Only work that is on the GPU as a whole can be recorded.",
    "move the tensors of the region to the GPU",
)
UNSAFE_OPERATION = _GRAPHS.add(
    2,
    "it calls an operation that is marked as unsafe in CUDA graphs",
    "torch or the operation's author says that it cannot be recorded.",
)
CUSTOM_OPERATION = _GRAPHS.add(
    3,
    "it calls {operation}, whose Python a replay would leave out",
    "What an operation of yours does in Python would not happen in replays.",
    'mode="reduce-overhead" records nevertheless',
)
FEW_LAUNCHES = _GRAPHS.add(
    4,
    "only {count:step}",
    "Of few launches a replay saves too little.",
    'mode="reduce-overhead" records nevertheless',
)
MEMORY_CHANGES = _GRAPHS.add(
    5,
    "how much memory it would keep from torch changes from call to call",
    "Sizes change, and each recording keeps the memory of its sizes.",
    'mode="reduce-overhead" records nevertheless',
)
