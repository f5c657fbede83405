"""Codes of what is decided while a compiled region runs: recordings of CUDA graphs."""

from __future__ import annotations

from lamina.base.reasons import Codes

_RECORDED = Codes(70, "Recordings of CUDA graphs")

ASKED_FOR = _RECORDED.add(
    0,
    "asked for",
    'The mode "reduce-overhead" asks for CUDA graphs; the calls are recorded and replayed.',
)
LAUNCHES_DOMINATE = _RECORDED.add(
    1,
    "launches dominate",
    "Replaying takes less of the host's time than launching; the facts have the microseconds of both.",
)
REPLAY_NOT_FASTER = _RECORDED.add(
    2,
    "a replay takes the host as long as the launches",
    "Recordings were given up, as a replay took as long as launching.",
)
GPU_IS_BUSY = _RECORDED.add(
    3,
    "the GPU is busy for longer than launching takes",
    "The host is ahead of the GPU anyway, so that a recording saves nothing.",
)
ADDRESSES_MOVE = _RECORDED.add(
    4,
    "the addresses of its inputs do not come again",
    "A recording serves the addresses that it was made for; arguments came at new ones in each call.",
    "reuse the tensors that are passed, by copy_ into them",
)
ADDRESSES_CEASED = _RECORDED.add(
    5,
    "the addresses of its inputs no longer come again",
    "Recordings made earlier go on serving their addresses; arguments come at new ones now.",
    "reuse the tensors that are passed, by copy_ into them",
)
OUTPUTS_IN_USE = _RECORDED.add(
    6,
    "the outputs of {count:recording} of the same addresses are in use",
    "Results of replays lie in the recording's memory until the caller frees them.",
    "free earlier results, or clone what is kept",
)
TOO_MANY = _RECORDED.add(
    7,
    "there are {count} recordings, and none is of the addresses of this call",
    "Such calls run directly.",
    "reuse the tensors that are passed, by copy_ into them",
)
NOT_RECORDABLE = _RECORDED.add(
    8,
    "it cannot be recorded: {error}",
    "CUDA refused to record a call of the region, which runs directly.",
)
OUTPUT_ON_CPU = _RECORDED.add(
    9,
    "an output is on the CPU",
    "A replay cannot make results on the CPU.",
    "return tensors that are on the GPU",
)
OUTPUT_OF_OTHER_TYPE = _RECORDED.add(
    10,
    "an output lies in an input of another type",
    "A result is a view of an argument with another dtype, which a replay cannot make again.",
)
HOLDERS_UNKNOWN = _RECORDED.add(
    11,
    "this torch does not say who holds an output",
    "Whether the memory of a recording is still in use cannot be told.",
    "use torch 2.11 to 2.13",
)
BUDGET_TAKEN = _RECORDED.add(
    12,
    "it would keep {mib} MiB, and recordings keep {kept} of {limit} MiB that they may",
    "Recordings keep memory from torch; all of them together may keep a share of the GPU's.",
    'mode="reduce-overhead" records nevertheless',
)
LITTLE_FREE = _RECORDED.add(
    13,
    "it would keep {mib} MiB, and little more is free",
    "The memory of a recording might be missing elsewhere.",
    'mode="reduce-overhead" records nevertheless',
)

_KEPT = Codes(71, "Compiled kernels and the cache on disk")

ALL_KEPT = _KEPT.add(
    0,
    "nothing to compile: {count:kernel} found in the cache or in this process",
    "The kernels of the region were found in the cache on disk or in this process, and no compiler ran.",
)
COMPILED = _KEPT.add(
    1,
    "{compiled} of {count:kernel} compiled: the cache had none of that code, target and versions",
    "A kernel is found again if its text, the compiler and its flags, the machine's instruction set and this version "
    "of Lamina's runtime are the same. `lamina cache info` says where the cache is and how much it holds.",
)
COMPILED_AGAIN = _KEPT.add(
    2,
    "{compiled} of {count:kernel} compiled, as entries of the cache were damaged: {why}",
    "What is read from the cache is checked; an entry that is not what was written is removed and made again.",
    "`lamina cache verify` checks all entries; look for a full or failing disk",
)
NEVER_BUILT = _KEPT.add(
    3,
    "kernels that the cache never had: none of their names was built before",
    "The cache has no note of a kernel of such a name: the program is new here, or the cache was emptied.",
)
KEY_DIFFERS = _KEPT.add(
    4,
    "{part}: it was `{old}` and is `{new}`",
    "The last kernel of the same name that was built differs in this part of its key: the compiler, its flags or the "
    "machine.",
    "keep it the same from run to run where that is yours to do: the compiler by the option cxx",
)
ENTRY_GONE = _KEPT.add(
    5,
    "the very kernel was built before, and its entry is not in the cache any more",
    "Beyond the size that the option cache_limit names, entries that were not used for the longest time are removed.",
    "let the cache be larger, or name another folder in cache_dir",
)
OTHER_SOURCE = _KEPT.add(
    6,
    "source: it was `{old}` and is `{new}`",
    "The last kernel of the same name that was built has another text, of which the first line that differs is told: "
    "other sizes, strides, dtypes or options make another text.",
)
OTHER_ARGUMENTS = _KEPT.add(
    7,
    "its arguments: they were `{old}` and are `{new}`",
    "The last kernel of the same name that was built takes other arguments, a letter for each: p is memory, the others "
    "are sizes and numbers. Another graph, or sizes that vary, make another kernel.",
)
OTHER_FLAGS = _KEPT.add(
    9,
    "flags of the compiler: they were `{old}` and are `{new}`",
    "The last kernel of the same name that was built was compiled with other flags: those that its arithmetic asks "
    "for, or those of other instructions of the machine (option simd).",
)
OTHER_VERSION = _KEPT.add(
    8,
    "{part}: it was `{old}` and is `{new}`",
    "The last kernel of the same name was built by another version of Lamina, or with other functions of Lamina's own "
    "before its text.",
)
