"""Codes of what scheduling decides of nests and memory: fusion, values computed again, updates in place."""

from __future__ import annotations

from lamina.base.reasons import Codes

_JOINED = Codes(50, "Fusion of loop nests into kernels")

SHARES_MEMORY = _JOINED.add(
    0,
    "shared bytes",
    "Two loop nests touch the same memory, their loops line up, and one kernel does the work of both: the bytes in "
    "the facts are read once instead of twice, or are not stored at all.",
)
LIBRARY_CALL = _JOINED.add(
    1,
    "a library call",
    "One of the two is a call of a library (a matrix product, a convolution, attention, an operator left to ATen), "
    "whose result or operands are in memory. Only loops that Lamina generates become one kernel.",
    'an operator of your own fuses once it has a lowering (docs/lowerings.md); on a GPU mode="max-autotune" also '
    "times products as kernels of Lamina's own",
)
SCATTERS = _JOINED.add(
    2,
    "one of them scatters",
    "One of the two writes to places that are known only at run time (index_put, scatter, gradients of embeddings): "
    "all of its writes must be done before any of them is read.",
)
ERROR_BEFORE_WRITE = _JOINED.add(
    3,
    "an error of one would come when the other has written to an input",
    "One of the two may raise (an index out of range), the other writes to an input of the program. Eager raises "
    "before it has written, and a joined loop could not.",
    "write to the input after what may raise, or return the new value instead of writing in place",
)
SHARES_WINDOW_READS = _JOINED.add(
    4,
    "what reads windows shares its reads among neighbours instead",
    "One of the two reads overlapping windows (pooling, small convolutions) and computes neighbouring points together "
    "so that each element is read once. Beside a reduction it could not.",
)
TOO_MANY_EQUATIONS = _JOINED.add(
    5,
    "too many equations",
    "The kernel of both would be so long that compiling it takes long and its values do not fit the registers.",
)
TOO_MANY_BUFFERS = _JOINED.add(
    6,
    "too many buffers",
    "The kernel of both would touch so many tensors that their addresses alone fill the registers.",
)
STEP_BETWEEN = _JOINED.add(
    7,
    "{step} must run between them",
    "A third step, often a library call, needs what the first computes and makes what the second needs; it, or one of "
    "several, is named by its operation.",
)
SHIFTED_READ = _JOINED.add(
    8,
    "the value is read shifted or has several writers",
    "The second nest reads the first's result at other points than the one at hand (a roll, a padding, a window), or "
    "several nests write parts of it: the value must be in memory.",
)
LOOPS_DIFFER = _JOINED.add(
    9,
    "their loops do not line up",
    "The two go over different numbers of points, or over the same ones in an order that no one loop has (a reshape "
    "that splits axes unevenly, sizes that differ).",
    "where both work on the same elements, give them the same shape or a reshape that only merges or splits whole axes",
)
WAITS_FOR_CALLS = _JOINED.add(
    10,
    "results would wait in memory for library calls that their readers do not need",
    "The two share only operands. In one kernel the result of one would be made long before it is read, and memory in "
    "use at once would grow.",
)
SCAN_OVER_LOOPS = _JOINED.add(
    11,
    "a scan would run along several loops",
    "A cumulative sum or product goes along one axis, which the loops of the other cut into several.",
)
EMPTY_LOOP = _JOINED.add(
    12,
    "a loop of one of them may be empty, and what the other does is to be done all the same",
    "A size is known only at run time and may be 0. In one loop the other nest would then do nothing either.",
    "mark the size as static, or as at least 1 with torch._check(size > 0)",
)
COSTLY_REPEATED = _JOINED.add(
    13,
    "costly values would be computed again in each step of an outer loop",
    "The first nest computes values that take many instructions for a small tensor, which the second reads in each "
    "step of an outer loop: they are computed once and stored.",
)
KEEPS_WINDOW_ORDER = _JOINED.add(
    14,
    "what reads windows keeps to one order of memory",
    "One of the two reads overlapping windows; the other goes through memory in another order, and the joined loop "
    "would read one of them badly.",
)
SCAN_BESIDE_REDUCTION = _JOINED.add(
    15,
    "a scan beside a reduction",
    "A kernel either scans (cumulative sums) or reduces; the two share their threads in different ways.",
)
SCANS_DIFFER = _JOINED.add(
    16,
    "scans along different axes or in different directions",
    "The scans of one kernel go along one axis in one direction.",
)
INNER_AXES_DIFFER = _JOINED.add(
    17,
    "reductions used inside are over different axes",
    "Results of reductions that the same loop uses again (the mean of a norm) must all be of the same axes: a program "
    "holds one row, not a row and a column.",
)
TOO_MANY_REDUCED_SETS = _JOINED.add(
    18,
    "too many different sets of reduced axes",
    "One kernel would keep partial results for each set of reduced axes; beyond two of them they do not fit.",
)
NO_FAST_AXIS_REDUCED = _JOINED.add(
    19,
    "different axes are reduced and none of them is the fast axis",
    "Of two reductions over different axes in one kernel one must go along contiguous memory; here each would read it "
    "with large strides.",
    "make the tensor contiguous along one of the reduced axes",
)
READS_IN_BETTER_ORDER = _JOINED.add(
    20,
    "the reduced axes do not hold the fast axis, a second kernel reads the memory in better order",
    "A joined loop would read its largest operand across contiguous memory, which takes longer than a kernel more.",
    "make the largest operand contiguous along the reduced axes",
)
OVERWRITES_OTHER_POINTS = _JOINED.add(
    21,
    "a buffer is read and written at different points",
    "The two would read and write one tensor at different places, or beside a reduction, in one loop: points that "
    "come later would see new values.",
)
OVERWRITES_SHARED_POINT = _JOINED.add(
    22,
    "an element is written at one of the points that read it",
    "One element is read by many points of the loop and written by one of them: those that come later would see the "
    "new value.",
)

TOO_FEW_SHARED_BYTES = _JOINED.add(
    23,
    "other kernels share more bytes with it",
    "A nest is tried with the few earlier kernels with which it shares the most bytes, and this was not one of them.",
)
MADE_LATER = _JOINED.add(
    24,
    "one of them was made, or grew to what it is, after they had been tried",
    "By their loops the two could be one kernel now. When nests were joined they were not what they are: one is a "
    "part of a computation that was cut so that more programs share the work, or of sums of columns, values stored "
    "ahead or an update, or it took in other nests later.",
)
REDUCES_IN_ANOTHER_ORDER = _JOINED.add(
    25,
    "a reduction goes through memory in another order",
    "One reduces along contiguous memory, the other reads or writes along another axis; one loop would do one of them "
    "element by element, and little memory would be saved.",
)
CUTS_ROWS = _JOINED.add(
    26,
    "loops along memory would be cut to what is reduced",
    "One reduces a few neighbours in memory, as a group of channels, and the other reads the result beside long rows "
    "of such groups many times; apart, its loops go over whole rows.",
)

_AGAIN = Codes(51, "Values computed again, or once ahead, instead of stored or read")

READERS_READ_PARTS = _AGAIN.add(
    0,
    "its readers read parts of it",
    "Each reader uses a part of the value only; computing those parts where they are read spares storing all of it.",
)
CHEAP_AGAIN = _AGAIN.add(
    1,
    "cheap to compute again",
    "The value takes few instructions and few operands, so each reader computes it instead of reading it from memory.",
)
MANY_PLACES = _AGAIN.add(
    2,
    "every point would compute it at many places",
    "A reader reads the value at many places for each of its points (windows); it is computed once and stored.",
)
SUMMED_AGAIN = _AGAIN.add(
    3,
    "every sum would read its operands again",
    "The value goes into many sums, each of which would read its operands again; it is computed once and stored.",
)
SCATTERED_READS = _AGAIN.add(
    4,
    "each of its operands would take a sector of memory at every place",
    "A reader picks elements at places known only at run time; each operand would be read there with a sector of "
    "memory for every element. Stored, only one is.",
)
READERS_ARE_FASTER = _AGAIN.add(
    5,
    "its readers compute it in less time than it takes to store it",
    "By the estimate (in the facts, before and after) all kernels involved take less time when the readers compute "
    "the value themselves.",
)
ONE_KERNEL_FOR_PIECES = _AGAIN.add(
    6,
    "its pieces take less time in one kernel",
    "Several kernels stored parts of one tensor (a concatenation); by the estimate one kernel for all takes less time.",
)
STORING_IS_FASTER = _AGAIN.add(
    7,
    "storing it takes less time than computing it again",
    "By the estimate (in the facts, before and after) the readers would take longer to compute the value than to read "
    "it.",
)
ALL_ARE_FASTER = _AGAIN.add(
    8,
    "computing all of them again takes less time than storing them",
    "None of these values alone is worth computing again, but without all of them a kernel falls away.",
)
COMPUTED_AHEAD = _AGAIN.add(
    9,
    "computed once for many points",
    "The value is the same for many points of the loop, so a small kernel ahead computes it once for all.",
)
CHECKED_AHEAD = _AGAIN.add(
    10,
    "checked once for many points",
    "An index is the same for many points of the loop; a small kernel ahead checks its range and narrows it once.",
)
STORED_AHEAD = _AGAIN.add(
    11,
    "stored once for many points",
    "The result varies over few of the loop's axes and is stored by a small kernel ahead instead of again and again.",
)
ROWS_SIDE_BY_SIDE = _AGAIN.add(
    12,
    "rows side by side fill the vectors",
    "Sums of few columns leave most of a vector register empty; several rows are added side by side and joined after.",
)
STORED_NARROW = _AGAIN.add(
    13,
    "stored once for each row of equal values",
    "The value is the same along one of the loop's axes, as the gradient of a mean is; memory holds it once.",
)
FUNCTIONS_OF_ROWS = _AGAIN.add(
    14,
    "costly functions of rows' results are computed for many rows at once",
    "A loop along rows would compute them for one number at a time; a nest of its own over the rows does in vectors.",
)

STORED_ACROSS_READS = _AGAIN.add(
    15,
    "the reduction reads memory in another order than the result is stored in",
    "An image that is normalised and stored with its channels innermost: loops along memory reduce it, and tiles that "
    "are transposed compute and store the result.",
)

OPERAND_COPIED = _AGAIN.add(
    16,
    "a reduction reads operands in two orders of memory",
    "An operand that lies in another order than the others, as the gradient of an image with its channels innermost, "
    "is copied into theirs, in tiles that are transposed; each element would come from another line of memory.",
)
SIDE_BY_SIDE = _AGAIN.add(
    17,
    "what a short sum reads again and again is copied so that points lie side by side",
    "Distances of all pairs sum up the numbers of two points, read along memory: each sum would end with one over the "
    "lanes of a vector, or each element would be far from the next. In the copy the next point's number is the next.",
)

_PLACE = Codes(52, "Memory: updates in place, and buffers that share memory")

UPDATED_IN_PLACE = _PLACE.add(
    0,
    "nothing reads the old value afterwards",
    "The new value of an input is written straight into its memory; no copy is made at the end.",
)
CALL_RESULT_OVERWRITTEN = _PLACE.add(
    1,
    "only what changes of a call's result is stored",
    "A choice between a library call's result and something else is written into that result's memory.",
)
WRITTEN_TWICE = _PLACE.add(
    2,
    "the input is written more than once",
    "More than one step writes to the input, and a copy at the end puts its last value there.",
    "write to the input once",
)
NEW_VALUE_RETURNED = _PLACE.add(
    3,
    "the new value is returned, or is that of another input",
    "The new value has memory of its own, which the caller or another input gets; the input gets a copy.",
    "return nothing, or the input itself, after an update in place",
)
OTHER_FORM = _PLACE.add(
    4,
    "the new value has another shape or type on the way",
    "The new value is computed in another shape or dtype than the input has, and is copied into it at the end.",
    "update the input in its own dtype and shape",
)
CALL_MAKES_VALUE = _PLACE.add(
    5,
    "a library call makes the new value",
    "The library call returns new memory, which is copied into the input.",
)
CALL_READS_VALUE = _PLACE.add(
    6,
    "a library call reads the new value in another layout",
    "A library call reads the new value with other strides than the input has.",
    "give the input the strides of a contiguous tensor",
)
DEPENDS_BESIDE = _PLACE.add(
    7,
    "what is written depends on the old value beside it",
    "An element's new value is computed from the old values of other elements, which an update in place would have "
    "overwritten already.",
)
NOT_A_PART = _PLACE.add(
    8,
    "the new value is not the old one with a part replaced",
    "The whole input is computed anew, in several steps or from other tensors; it is copied into the input at the end.",
)
FROM_REDUCTION = _PLACE.add(
    9,
    "the new value comes from a reduction",
    "A reduction must have read all of its operands before it stores; its result is copied into the input.",
)
OLD_READ_LATER = _PLACE.add(
    10,
    "the old value is read after the update",
    "A step that runs later needs the old value, so the new one has memory of its own until then.",
    "read the old value before the update",
)
OLD_WRITTEN_LATER = _PLACE.add(
    11,
    "the old value is written after the update",
    "Another step completes the old value after the new one has begun to be written.",
)
NEW_READ_EARLY = _PLACE.add(
    12,
    "the new value is read before it is complete",
    "A step reads the new value while parts of it are still to come, so it cannot be the input's memory.",
)

MEMORY_TAKEN = _PLACE.add(
    13,
    "it takes the memory of {buffer}, which nothing needs any more",
    "Temporaries of one region share a workspace: one that is made after the last use of another takes its bytes.",
)
