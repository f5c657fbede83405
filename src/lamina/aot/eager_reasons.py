"""Codes of captured graphs, or single calls of them, that eager runs, as a functional graph would lose something."""

from __future__ import annotations

from lamina.base.reasons import Codes

_EAGER = Codes(20, "Captured graphs that eager runs")

OVERLAPPING_WRITE = _EAGER.add(
    0,
    "{place} reads memory that it writes to in another order, which eager refuses for most",
    "Two tensors that share memory without being the same tensor are read and written by one call; in a functional "
    "graph the order of such accesses is lost.",
    "clone what is read before the write",
)
ASSUMED_SIZE = _EAGER.add(
    1,
    "{why}",
    "A size depends on data and tracing had to assume what only a run tells, such as that it is not 1.",
    "reshape or index the tensor so that its size is the same whatever the data",
)
REFUSED_CALL = _EAGER.add(
    2,
    "{place} takes more off one side than there is",
    "A padding of negative size takes more elements away than the dimension has; eager refuses it, and tracing does "
    "not see that.",
    "take no more off a side than the dimension has",
)
OUT_OF_RANGE = _EAGER.add(
    3,
    "{place} selects what is not there",
    "The program asks for elements that are not there, which eager answers with an error of its own.",
    "ask for elements that are there",
)
OTHER_IN_EAGER = _EAGER.add(
    4,
    "{place} is refused by eager: {error}",
    "Called once for a trial, an operator raises in eager with such operands; tracing takes them.",
    "call it with arguments that eager takes",
)
INEXACT_INTEGER = _EAGER.add(
    5,
    "{place} rounds a quotient, which may be negative, towards zero",
    "An integer is computed through floating point, whose rounding a graph of symbolic integers does not have.",
    "divide by //, or compute the integer before the compiled function is called",
)
LEAF_MADE = _EAGER.add(
    6,
    "{place} makes a leaf that requires a gradient",
    "A leaf of the autograd graph is made within the compiled function; its gradient would be gathered inside of it.",
    "make the leaf before the compiled function is called",
)
UNTRACKED_WRITE = _EAGER.add(
    7,
    "{place} writes to an input past autograd",
    "Something is written to by a way that autograd does not see (.data, a detached alias), and gradients may need "
    "it as it was.",
    "write to the input itself, under no_grad if no gradient is to see it, or to a clone",
)
UNKNOWN_VIEW = _EAGER.add(
    8,
    "{place} gives a view of an input that it writes to or whose elements overlap, with run-time integers",
    "A result is a view of an input by an operation that cannot be repeated on the caller's tensor.",
    "return a clone of the view",
)
SPLIT_FUNCTION = _EAGER.add(
    9,
    "of {place}, a custom autograd function, some gradients may not be there",
    "Results of one autograd.Function are differentiated apart from each other, and the function's backward would "
    "see gradients that are not there.",
    "return results of the function from another compiled function, or mark one non-differentiable",
)
LOOKS_ELSEWHERE = _EAGER.add(
    10,
    "{place} looks at memory beside its operand's elements",
    "as_strided looks at memory outside of the tensor that it is called on, where only the caller's storage tells "
    "what lies there.",
    "call as_strided of a contiguous tensor that is no view",
)
MISPLACED_RESULT = _EAGER.add(
    11,
    "{place} has other strides than tracing tells",
    "In eager the result of the call is laid out in memory in another way than tracing says.",
    "call contiguous() on the operands",
)
LOST_LAYOUT = _EAGER.add(
    12,
    "{place} writes to a tensor whose layout tracing does not keep",
    'With numerics="eager" a write into a tensor with gaps keeps what lies in the gaps, which a functional graph '
    "loses.",
    "write to a contiguous tensor",
)
DEAD_CALL = _EAGER.add(
    13,
    "{place} may raise though nothing uses its result",
    "A functional graph drops a call whose result nobody uses, and with it the error that it raises for some values.",
    "remove the call, or return its result",
)
STATE_SWITCHED = _EAGER.add(
    14,
    "{place} calls {call}, which changes the state that the calls after it run in",
    "The function switches a state of torch's that compiled code does not switch.",
    "switch it outside of the compiled function",
)
BASE_OF_VIEW = _EAGER.add(
    15,
    "it is right for some sizes only of what an input is a view of",
    "The graph was traced for a view of a tensor of one size, and no guard can ask for the size of that tensor.",
    "pass a clone of the view, or the tensor itself",
)
SHARED_INPUT = _EAGER.add(
    16,
    "an input that it writes to shares memory with another",
    "Two arguments overlap in memory and one of them is written to; what the other then reads depends on the order.",
    "pass a clone of one of them",
)
ONE_SUM = _EAGER.add(
    17,
    "one sum of {bytes} bytes, whose gradient is a view: eager launches as little, without a Python function to "
    "differentiate that takes the host longer than the GPU needs",
    "A graph of one small reduction with gradients: nothing can be fused, and calling a compiled function costs more "
    "than it.",
)
ASKS_THE_DATA = _EAGER.add(
    18,
    "tracing it asks what only a run tells: {error}",
    "Tracing or differentiating needs the value of an element (data-dependent control flow or sizes).",
    "take the branch with torch.where or torch.cond, or bound the size with torch._check",
)
NOT_TRACED = _EAGER.add(
    19,
    "AOTAutograd does not take it: {error}",
    "torch's AOTAutograd cannot trace or differentiate this graph; eager computes it, or raises what it has to say.",
    "the error names the operation; call it outside of the compiled function",
)
KERNELS_RAISE = _EAGER.add(
    20,
    "its kernels raise {error}, and the captured graph does not",
    "A compiled call raised and eager did not when the call was repeated; the result is eager's. This is a fault of "
    "Lamina's.",
    "please report it with the folder that the option dump_dir writes; strict=True raises instead",
)
ONE_STORAGE = _EAGER.add(
    21,
    "an input that it writes to, and that gets a history by that, lies in one storage with another",
    "In this call two arguments are parts of one storage, which has one version counter; the call ran as eager.",
    "pass a clone of one of them",
)
OTHER_BASE = _EAGER.add(
    22,
    "an input that it writes to, or shares memory with one, is a view of a tensor of another size",
    "The graph was compiled for views of tensors of other sizes; this call ran as eager.",
    "pass a clone of the view",
)
SHARED_OTHERWISE = _EAGER.add(
    23,
    "inputs share memory in another way than those that it was compiled for, and it writes to one of them",
    "The arguments of this call overlap differently than those compiled for; the call ran as eager.",
    "pass clones where memory need not be shared",
)
SHARED_NOW = _EAGER.add(
    24,
    "an input that it writes to shares memory with another, and those that it was compiled for did not",
    "The arguments of this call overlap and those compiled for did not; the call ran as eager.",
    "pass a clone of one of them",
)
MOVED_MEMORY = _EAGER.add(
    25,
    "{place} gives an input the memory of one that gets another memory",
    "An input gets memory of one that gets other memory (x.data, y.data = y.data, x.data). A functional graph finds "
    "an input's memory where it is at the end.",
    "exchange values by copy_(), or exchange the tensors outside of the compiled function",
)
HOOKED_RESULT = _EAGER.add(
    26,
    "{place} registers a hook on a result",
    "Hooks of a tensor run in the order in which they were registered. A hook that a compiled function registers is "
    "part of its gradient and would run after the hooks that the caller registers on the result.",
    "register the hook on the result, outside of the compiled function",
)

SHARED_ELEMENTS = _EAGER.add(
    27,
    "{place} writes to a tensor whose elements share memory, which eager refuses for most",
    "Elements of an expanded tensor, of overlapping windows or of such a view lie in the same memory; what a write "
    "leaves there depends on the order.",
    "write to a copy: call clone() or contiguous() on what expand or unfold gives",
)

WRITTEN_TWICE = _EAGER.add(
    28,
    "{place} writes to the same memory twice",
    "A call that writes several tensors is given two that share memory, and does so one after the other.",
    "give each result of the call memory of its own",
)

READ_AFTER_WRITE = _EAGER.add(
    29,
    "{place} reads memory that it has written to before",
    "A call on lists of tensors writes one of them before it reads another that shares its memory.",
    "clone what is read, or call it for each tensor",
)

NO_SUCH_VIEW = _EAGER.add(
    30,
    "{place} asks for a view of elements that do not follow each other",
    "Eager refuses a view of another shape where the elements do not lie one after the other; tracing does not see "
    "that.",
    "call reshape(), or contiguous() before view()",
)

COUNTED_LABELS = _EAGER.add(
    31,
    "{place} counts labels behind the last one when it is traced",
    "multilabel_margin_loss ignores what stands behind the first -1 among the labels; traced, those labels count.",
    "call the loss outside of the compiled function",
)

PLACE_OF_DATA = _EAGER.add(
    32,
    "{place} selects an element, and only data tell whether it is there",
    "The place, or the size, comes from the data. Eager raises an error where the element is not there; a functional "
    "graph would read other memory.",
    "keep the place in a tensor and call index_select or gather",
)

PAST_MEMORY = _EAGER.add(
    33,
    "{place} reaches past its operand's memory",
    "as_strided asks for sizes and strides that lead beyond the memory which its operand has; eager refuses them.",
    "give as_strided sizes and strides that stay within the operand's memory",
)

BESIDE_WRITTEN = _EAGER.add(
    34,
    "{place} looks beside the elements of an input that is written to",
    "as_strided looks at memory of an input that is not part of it, while the function writes to that input.",
    "write to a clone of the input",
)

OTHER_KIND = _EAGER.add(
    35,
    "{place} gives {eager}, traced {traced}",
    "Called once for a trial, an operator gives another dtype or number of dimensions in eager than tracing says.",
    "convert the operands to one dtype before the call, or make the call outside of the compiled function",
)

NEGATIVE_DIVISOR = _EAGER.add(
    36,
    "{place} divides a quotient by what may be negative",
    "Symbols for sizes take k // -5 // -3 for k // 15, which it is not for all k.",
    "make the divisor positive, or compute the integer before the compiled function is called",
)

NO_QUOTIENT = _EAGER.add(
    37,
    "{place} divides by zero or shifts by less",
    "Eager raises an error of its own there, which symbols for sizes do not.",
    "ask whether the divisor or the number of places is 0 or less before it is used",
)

NEGATIVE_STRIDE = _EAGER.add(
    38,
    "{place} has a negative stride",
    "as_strided refuses negative strides in eager; those that are symbols are not checked when it is traced.",
    "give as_strided strides of at least 0",
)

VIEW_WITHOUT_HISTORY = _EAGER.add(
    39,
    "{place} makes a view with a history, and the caller has gradients off",
    "A view of an input is made again for the caller, in whose grad mode it would have no history.",
    "call the compiled function where gradients are on, or return a clone of the view",
)

OUTDATED_VIEW = _EAGER.add(
    40,
    "{place} gives a view of an input that is written to afterwards",
    "A result is a view that is taken before the function writes to the input; taken again from the caller's tensor "
    "it would be another one.",
    "take the view after the write, or return a clone of it",
)

MEMORY_WITH_GAPS = _EAGER.add(
    41,
    "{place} makes memory with gaps",
    "Kernels make no memory in which elements are left out, as empty_strided does and copies of tensors with gaps.",
    "make the tensor before the compiled function is called, or make it contiguous",
)

UNUSED_DRAW = _EAGER.add(
    42,
    "{place} draws random numbers that nothing uses",
    'With numerics="eager" the numbers are those that eager draws, and each draw changes those after it; a '
    "functional graph would drop this one.",
    'remove the call, or leave the option numerics at "fast"',
)

INFERENCE_MODE_OF_A_PART = _EAGER.add(
    43,
    "{place} switches inference mode for a part of the graph",
    "Tensors made in inference mode have no history; tracing knows such graphs as a whole only.",
    "put all of the function into torch.inference_mode(), or use torch.no_grad() for the part",
)

FORWARD_MODE_LEFT = _EAGER.add(
    44,
    "{place} leaves forward-mode differentiation switched",
    "The function ends in another state of forward-mode differentiation than it begins in.",
    "switch it outside of the compiled function",
)

MODE_LEFT_ENTERED = _EAGER.add(
    45,
    "{place} calls {call}, and the graph ends within",
    "The function, or its part up to a graph break, enters a mode that it does not leave.",
    "put a with statement around all that the mode is for, without a graph break in it",
)

RETURNED_MOVED_MEMORY = _EAGER.add(
    46,
    "{place} is returned in memory that an input gets, or had before it gets another",
    "An input is given other memory (x.data = ...), and a result lies in it or in what it had before: what it is a "
    "view of is not known.",
    "return a clone",
)

KEPT_MARGINS = _EAGER.add(
    47,
    "{place} counts margins of 0 and of NaN when it is traced",
    "multi_margin_loss leaves out margins that are not above 0; traced, those of 0 have a gradient and those of NaN a "
    "loss.",
    "call the loss outside of the compiled function",
)

VIEW_OF_WINDOWS = _EAGER.add(
    48,
    "{place} is returned beside what it is a view of, whose elements share memory",
    "Two results with a gradient lie in one memory, and elements of the one that the other is a view of share places "
    "in it (as_strided, unfold, expand). The view is made again by its strides, which do not tell of which of these "
    "elements it has the gradient.",
    "return a clone of the view",
)

UNSAFE_VIEWS = _EAGER.add(
    49,
    "{place} gives views that are copies when they are traced",
    "Parts of unsafe_chunk and unsafe_split lie in the memory of the whole, of which a functional graph knows nothing: "
    "writes to one would not be seen in the other.",
    "call chunk() or split()",
)

ROUNDED_NUMBER = _EAGER.add(
    50,
    "{place} adds a number that {dtype} does not hold",
    "On a CPU eager rounds a number to the half type of a sum first, to an infinity beyond its largest; kernels add "
    "the number as it is. Numbers that vary are guarded to be within the range.",
    "keep the number within the range of the dtype, or compute in float32",
)

VIEW_BY_FUNCTION = _EAGER.add(
    51,
    "{place} is returned beside what shares its memory, from a custom autograd function",
    "Results in one memory are made again as views of each other, and have the gradients of views; a custom autograd "
    "function that gives a view has a gradient of its own.",
    "return a clone from the function",
)

REFUSED_RESULT = _EAGER.add(
    52,
    "{place} is returned, which eager lets nobody use in a gradient",
    "A part of several that one call gives, or a view made without gradients or in inference mode, was written to "
    "since, or what it is a view of was: autograd raises when its history is asked for, as no functional graph does.",
    "take the view after the write, or return a clone that is taken before it",
)

PARTS_THAT_MEET = _EAGER.add(
    53,
    "{place} is returned beside another view of what it is a part of, with elements in common",
    "Parts of several that one call gives come back from a functional graph as tensors of their own: where one is "
    "written to, no backward that has saved another would be told.",
    "return what they are parts of as well, or a clone of one",
)
