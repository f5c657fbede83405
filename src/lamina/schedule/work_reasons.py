"""Codes of what scheduling decides of kernels: how they share the work of a GPU, and launches."""

from __future__ import annotations

from lamina.base.reasons import Codes

_WORK = Codes(53, "How kernels share the work of a GPU, and launches")

IN_STEPS = _WORK.add(
    0,
    "first what rows and columns have in common, in one pass for both",
    "Reductions along rows and along columns read the same values, which are computed in one pass for both.",
)
ROWS_TOO_WIDE = _WORK.add(
    1,
    "the rows are too wide to keep in registers",
    "A program would hold a whole row while it adds up columns; the rows are too wide, and the two are done apart.",
)
IN_PARTS = _WORK.add(
    2,
    "{programs} programs for each result, joined in order{how}",
    "A reduction of few results is shared by many programs, whose parts a second step adds up in a fixed order, so "
    "that results do not change from run to run.",
)
GATHERED_ONCE = _WORK.add(
    3,
    "{buffer} is stored for the pass after",
    "The kernel goes over its operands more than once; values picked at places known only at run time are stored in "
    "the first pass and read in order in the next.",
)
UPDATE_APART = _WORK.add(
    4,
    "every program reads what it overwrites",
    "A buffer that all programs read is also written by the same nest; the write is a kernel of its own, after all "
    "reads.",
)
SCAN_IN_PARTS = _WORK.add(
    5,
    "{programs} parts, each from what is before it",
    "A long scan of few rows is shared by many programs: each scans a part, then adds what came before it.",
)
SCAN_TURNED = _WORK.add(
    6,
    "no memory is contiguous along it",
    "A scan from the end is done from the start on mirrored indices, which costs nothing here.",
)
SCAN_BESIDE_OTHERS = _WORK.add(
    7,
    "other scans or reductions beside it go along other points",
    "A long scan stays whole, as what is computed beside it goes along other axes.",
)
SCAN_NOT_JOINED = _WORK.add(
    8,
    "no parts of {op} of {dtype} are joined",
    "Parts of a scan of this kind and dtype cannot be put together exactly, so one program goes over each row.",
    "scan in float32",
)
SCAN_ORDER_KEPT = _WORK.add(
    9,
    "the order in which its floats are combined is kept",
    'numerics="eager" asks for eager\'s order of additions, so one program goes over each row.',
    'leave options={"numerics": "fast"}',
)
SCAN_OVERFLOW = _WORK.add(
    10,
    "a part's product that overflows would make NaN of a zero before it",
    "The product of a part alone may overflow where the whole product is 0; eager goes through such columns in order.",
)
SCAN_OVERWRITES = _WORK.add(
    11,
    "it writes over what it reads",
    "A program would read what another one has written already, so the scan is whole.",
)
SAVES_PROLOGUE_PASS = _WORK.add(
    12,
    "saves a pass over what is computed",
    "A product is a kernel of Lamina's own that computes its operand on the way; by the estimates (microseconds, in "
    "the facts) it is faster than the library with a kernel before it.",
)
SAVES_EPILOGUE_PASS = _WORK.add(
    13,
    "saves a pass over the result",
    "A product is a kernel of Lamina's own that goes on with its result on the way; by the estimates (microseconds, "
    "in the facts) it is faster than the library with a kernel after it.",
)
LIBRARY_IS_FASTER = _WORK.add(
    14,
    "the library multiplies faster than the pass costs",
    "By the estimates (microseconds, in the facts) the library with a kernel around it is faster than one kernel.",
)
PRODUCT_TOO_LARGE = _WORK.add(
    15,
    "large: estimates are not sure enough against the library",
    "For large products a few percent of the multiplication weigh more than a pass over memory, and the estimates are "
    "not that exact.",
    'let a clock decide: mode="max-autotune"',
)
SETTLED_BY_CLOCK = _WORK.add(
    16,
    "settled by a clock, or to ask one",
    "Both ways were measured on this machine, or are about to be, and the estimates are not asked.",
)
JOINED_BY_LAST = _WORK.add(
    17,
    "the last program of each result joins it: one launch",
    "A reduction in parts is finished by the program that comes last, so no second kernel is launched.",
)
INDEPENDENT = _WORK.add(
    18,
    "independent: one launch",
    "Nests that need nothing of each other run in one launch, which saves the time between launches.",
)
EQUAL_KERNEL = _WORK.add(
    19,
    "an equal kernel exists",
    "An equal layer has made the same kernel already; it is compiled once and called for both.",
)
LOOPS = _WORK.add(
    20,
    "{kind}: first of the schedules that fit, by the cost model",
    "How the kernel goes over its points; the facts have the loops, what is one vector or tile, and the bits of its "
    "indices. Tuning may choose another schedule, which a decision of kind tune says.",
)
WIDE_INDICES = _WORK.add(
    21,
    "elements may lie 2**31 or more from the first one",
    "The kernel computes its indices in 64 bits, which takes more instructions and registers on a GPU. A tensor is "
    "that large, or has a size that is known only at run time and has no bound.",
    "where sizes are smaller, say so: mark them as static, or bound them with torch._check(size < 2**20)",
)
NEEDED_ACROSS = _WORK.add(
    22,
    "sums along memory of results that go across it",
    "A program would reduce across memory anew in each tile of the memory that it sums along; the two are done apart.",
)
REDUCTIONS_APART = _WORK.add(
    23,
    "no kernel could be written that reduces over all of its axes at once",
    "One kernel would have saved trips through memory, but code generation has no order of loops for it. Each set of "
    "reduced axes has a kernel of its own instead.",
    "results are right; please report the program",
)
REDUCTIONS_FASTER_APART = _WORK.add(
    24,
    "a kernel that reduces over all of its axes at once is expected to take much longer",
    "One kernel would have saved trips through memory, but it would have too few programs, or too much to keep in "
    "registers. Each set of reduced axes has a kernel of its own instead.",
)
