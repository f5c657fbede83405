"""Codes of what is decided about whole graphs: what is left to eager, how gradients are traced, what is saved."""

from __future__ import annotations

from lamina.base.reasons import Codes

_EAGER = Codes(20, "Captured graphs that eager runs")

OVERLAPPING_WRITE = _EAGER.add(
    0,
    "{why}",
    "Two tensors that share memory without being the same tensor are read and written; in a functional graph the "
    "order of such accesses is lost.",
    "clone what is read or written to before the write",
)
ASSUMED_SIZE = _EAGER.add(
    1,
    "{why}",
    "A size depends on data and tracing had to assume what only a run tells, such as that it is not 1.",
    "reshape or index the tensor so that its size is the same whatever the data",
)
REFUSED_CALL = _EAGER.add(
    2,
    "{why}",
    "Eager refuses a call with these arguments, or takes it in a way that tracing does not see.",
    "do not call it so",
)
OUT_OF_RANGE = _EAGER.add(
    3,
    "{why}",
    "The program asks for elements that are not there, which eager answers with an error of its own.",
    "ask for elements that are there",
)
OTHER_IN_EAGER = _EAGER.add(
    4,
    "{why}",
    "Called once for a trial, an operator does in eager something else than tracing says: another size, layout or "
    "error.",
    "call it in a way that eager takes, and whose result tracing knows",
)
INEXACT_INTEGER = _EAGER.add(
    5,
    "{why}",
    "An integer is computed through floating point, whose rounding a graph of symbolic integers does not have.",
    "compute the integer before the compiled function is called",
)
LEAF_MADE = _EAGER.add(
    6,
    "{why}",
    "A leaf of the autograd graph is made within the compiled function; its gradient would be gathered inside of it.",
    "make the leaf before the compiled function is called, or take the view where gradients are on",
)
UNTRACKED_WRITE = _EAGER.add(
    7,
    "{why}",
    "Something is written to by a way that autograd does not see (.data, a detached alias), and gradients may need it "
    "as it was.",
    "write to the input itself, under no_grad if no gradient is to see it, or to a clone",
)
UNKNOWN_VIEW = _EAGER.add(
    8,
    "{why}",
    "A result is a view of an input by an operation that cannot be repeated on the caller's tensor.",
    "return the input, or a clone of the view",
)
SPLIT_FUNCTION = _EAGER.add(
    9,
    "{why}",
    "Results of one autograd.Function are differentiated apart from each other, and the function's backward would see "
    "gradients that are not there.",
    "return results of the function from another compiled function, or mark one non-differentiable",
)
LOOKS_ELSEWHERE = _EAGER.add(
    10,
    "{why}",
    "as_strided looks at memory outside of the tensor that it is called on, where only the caller's storage tells "
    "what lies there.",
    "call as_strided of a contiguous tensor that is no view",
)
MISPLACED_RESULT = _EAGER.add(
    11,
    "{why}",
    "A result has strides that depend on memory which a functional graph does not know.",
    "call contiguous() on the operand, or make the tensor before the compiled function is called",
)
LOST_LAYOUT = _EAGER.add(
    12,
    "{why}",
    'With numerics="eager" a write into a tensor with gaps keeps what lies in the gaps, which a functional graph '
    "loses.",
    "write to a contiguous tensor",
)
DEAD_CALL = _EAGER.add(
    13,
    "{why}",
    "A call whose result nobody uses may raise, or draws random numbers; a functional graph would drop it.",
    "remove the call, or return its result",
)
STATE_SWITCHED = _EAGER.add(
    14,
    "{why}",
    "The function switches torch's state (gradients, autocast, determinism) in a way that outlives a part of it.",
    "switch it outside of the compiled function, or by a with statement around all of it",
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
    "{why}",
    "An input gets memory of one that gets other memory (x.data, y.data = y.data, x.data). A functional graph finds "
    "an input's memory where it is at the end.",
    "exchange values by copy_(), or exchange the tensors outside of the compiled function",
)
HOOKED_RESULT = _EAGER.add(
    26,
    "{why}",
    "Hooks of a tensor run in the order in which they were registered. A hook that a compiled function registers is "
    "part of its gradient and would run after the hooks that the caller registers on the result.",
    "register the hook on the result, outside of the compiled function",
)

_TRACED = Codes(21, "How a graph is traced with its gradients")

CALLS_TRACED = _TRACED.add(
    0,
    "{count} distinct calls traced",
    "The joint graph of forward and backward was put together from calls traced once each, which takes a fraction of "
    "AOTAutograd's time.",
)
EAGER_ORDER = _TRACED.add(
    1,
    "left to AOTAutograd: gradients are to be summed in the autograd engine's own order",
    'With numerics="eager" gradients of one tensor are added in the order in which eager adds them.',
)
NOT_CALL_BY_CALL = _TRACED.add(
    2,
    "left to AOTAutograd: {why}",
    "The graph has something that tracing call by call does not do; AOTAutograd traces it as a whole, which only "
    "takes longer to compile.",
)
TRACING_FAILED = _TRACED.add(
    3,
    "left to AOTAutograd: {error}",
    "Tracing call by call raised; AOTAutograd traces the graph as a whole, which only takes longer to compile.",
)
SIZES_TOOK_LONG = _TRACED.add(
    4,
    "what tracing asks about symbolic sizes took more than {seconds} s",
    "Sizes known only at run time made tracing ask too many questions; the graph was traced again with numbers in "
    "their place.",
    "mark sizes that do not change as static (torch._dynamo.mark_static), or leave dynamic=None",
)
NUMBERS_ONLY = _TRACED.add(
    5,
    "torch knows a gradient or an operation for numbers only",
    "A gradient formula of torch's takes plain integers where the graph has symbols; it was traced again with the "
    "numbers of this call.",
    "mark the size as static (torch._dynamo.mark_static)",
)
NO_FUNCTION = _TRACED.add(
    6,
    "AOTAutograd's function was not found",
    "Whether a second backward is allowed is left to what AOTAutograd's own function does.",
)
UNKNOWN_PLACES = _TRACED.add(
    7,
    "what AOTAutograd takes gradients of is not known",
    "Whether a second backward is allowed is left to what AOTAutograd's own function does.",
)
UNKNOWN_SAVES = _TRACED.add(
    8,
    "what eager saves for it is not known",
    "Whether eager would refuse a second backward cannot be told, so it is allowed.",
)
EAGER_SAVES = _TRACED.add(
    9,
    "eager saves tensors for these of {count} results with a gradient: {which}",
    "Eager frees saved tensors in a backward and refuses a second one through them; the compiled function answers as "
    "eager would.",
    "call backward(retain_graph=True) if you need a second one",
)
HISTORIES_APART = _TRACED.add(
    10,
    "an input has a history that not all results depend on: a backward of the others leaves it alone",
    "One function computes results that depend on different inputs; each gets gradients only from the results that "
    "need it.",
)
SPARSE_GRADIENT = _TRACED.add(
    11,
    "a gradient arrives sparse, or as a batch: they come from the captured graph, run under autograd",
    "The compiled backward takes dense gradients; for others the captured graph is differentiated by eager, which is "
    "slower.",
    "pass dense gradients",
)
SECOND_DERIVATIVE = _TRACED.add(
    12,
    "its gradients are differentiated again: they come from the captured graph, run under autograd",
    "Second derivatives come from eager's autograd on the captured graph, which is slower than a compiled backward.",
)
INPUT_CHANGED = _TRACED.add(
    13,
    "an input of its forward was written to since, or is gone",
    "The captured graph cannot be differentiated again, as its inputs are not what they were.",
    "do not write to inputs before the second derivative is taken",
)
NOT_DIFFERENTIATED = _TRACED.add(
    14,
    "the captured graph does not give them: {error}",
    "Eager's own differentiation of the captured graph raised.",
)
WRITES_INPUT = _TRACED.add(
    15,
    "it writes to an input",
    "The captured graph cannot be run again for second derivatives, as it would write again.",
    "return the new value instead of writing in place",
)
DRAWS_NUMBERS = _TRACED.add(
    16,
    "it draws random numbers",
    "The captured graph cannot be run again for second derivatives, as it would draw other numbers.",
)
HOLDS_GRAPHS = _TRACED.add(
    17,
    "it calls graphs within, or holds constants",
    "The captured graph cannot be run again for second derivatives.",
)
LEADS_ON = _TRACED.add(
    19,
    "{count} of its results depend on other results, whose gradients can be asked for",
    "Each of these results has a node of its own, which leads autograd to the results that it depends on: their hooks, "
    "retain_grad and torch.autograd.grad see the whole gradient, as in eager.",
)
WATCHED_RESULT = _TRACED.add(
    20,
    "the gradient of a result that other results depend on is asked for: the captured calls between them run again",
    "A hook, retain_grad or torch.autograd.grad asks for the gradient of a result. What comes to it from other results "
    "of the same graph is computed by eager's autograd on the calls between them, which is slower than a compiled "
    "backward.",
    "remove hooks and retain_grad where they are not needed",
)
WRITES_RESULT = _TRACED.add(
    21,
    "it writes to a result after it was read",
    "The calls between two results cannot be run again: what they read was written to since.",
    "write to a clone instead",
)
LIES_IN_SHARED_MEMORY = _TRACED.add(
    22,
    "result {place} depends on others and shares memory with one: what it gives to their gradients shows only in those "
    "of inputs",
    "A result that is a view of another, or has views among the results, leads autograd to the inputs alone: hooks, "
    "retain_grad and torch.autograd.grad of the results that it depends on see only what arrives from outside.",
    "return one of the views, and make the others outside of the compiled function",
)
LEADS_UNKNOWN = _TRACED.add(
    23,
    "which results the result {place} depends on is not known: the captured calls do not run on tensors without values",
    "Hooks, retain_grad and torch.autograd.grad of the results that it depends on see only what arrives from outside.",
    "return that result from a compiled function of its own",
)

TAKEN_APART = _TRACED.add(
    18,
    "taken apart: {becomes}",
    "The operation is traced as others, which fuse with what is around them, as the sentence says; the facts have how "
    "often: equal calls are traced once. docs/lowerings.md says how an operation of your own is taken apart.",
)

_SAVED = Codes(22, "What a forward saves for its backward")

COMPUTED_AGAIN = _SAVED.add(
    0,
    "computing it again costs less than a write and a read",
    "The backward computes the value from what is saved anyway: by the estimate that takes less time than storing and "
    "reading it.",
)
READ_WHERE_RETURNED = _SAVED.add(
    1,
    "returned: the backward reads it there while it is unchanged, and computes it again otherwise",
    "The value is a result, so it is in memory anyway unless the caller frees or changes it.",
)
BITS_OF_BYTE = _SAVED.add(
    2,
    "truth values as bits of one byte",
    "Several masks are saved together, eight truth values in a byte.",
)
SIGN_IN_BYTE = _SAVED.add(
    3,
    "a sign in one byte",
    "The backward needs only where a value is positive; that is saved in one byte instead of the value.",
)
MUTATED_INPUT = _SAVED.add(
    4,
    "mutated by the forward: a copy is kept",
    "The backward needs the input as it was before the forward wrote to it.",
    "write to a new tensor instead of the input",
)
UNSAVED_INPUT = _SAVED.add(
    5,
    "an input that eager does not save: a copy is kept",
    "Eager would not notice a later write to this input, so the value at hand is copied.",
)
INPUT_ALIVE = _SAVED.add(
    6,
    "an input, alive anyway",
    "Saving an input takes no memory beyond what its owner keeps.",
)
OUTPUT_COPIED = _SAVED.add(
    7,
    "an output of which eager saves a copy",
    "Eager saves a value of its own for this result, so that writes to the result do no harm.",
)
OUTPUT_ALIVE = _SAVED.add(
    8,
    "an output, alive anyway",
    "Saving a result takes no memory beyond what the caller keeps.",
)
LIBRARY_RESULT = _SAVED.add(
    9,
    "the result of a library call",
    "Products, convolutions and attention are not computed twice; within torch.utils.checkpoint they are.",
)
RANDOM_DRAW = _SAVED.add(
    10,
    "a random draw",
    "The numbers drawn are saved, as the backward cannot draw the same again.",
)
REDUCTION_RESULT = _SAVED.add(
    11,
    "a reduction would read its input again",
    "Its result is small and computing it again would read all of its operand.",
)
COMPARED_VALUE = _SAVED.add(
    12,
    "compared with a result that was made of it: computed again it may be rounded otherwise",
    "The backward asks whether the value equals a result (a maximum); computed in another kernel it may differ in the "
    "last bit.",
)
WRITTEN_ANYWAY = _SAVED.add(
    13,
    "reaches memory in the forward anyway",
    "A library call reads the value, so it is stored in any case.",
)
COSTS_MORE = _SAVED.add(
    14,
    "its operations cost more than a write and a read",
    "By the estimate, computing the value again takes longer than storing and reading it.",
)
TELLS_OF_WRITES = _SAVED.add(
    16,
    "a result in the memory of what is saved: its version tells of writes",
    "A write to the result after the forward changes what the backward reads; the backward refuses to run then, as "
    "eager's does. It takes no memory.",
)
TORCHS_PARTITIONER = _SAVED.add(
    15,
    "left to torch's partitioner: {why}",
    "What is saved is decided by torch: the graph has activation checkpointing, state of random generators, or writes "
    "to an input in the backward.",
)
