"""Codes of how whole graphs are traced with their gradients, and of what a forward saves for its backward."""

from __future__ import annotations

from lamina.base.reasons import Codes
from lamina.base.torch_names.torch_private import MARK_STATIC

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
    f"mark sizes that do not change as static ({MARK_STATIC}), or leave dynamic=None",
)
NUMBERS_ONLY = _TRACED.add(
    5,
    "torch knows a gradient or an operation for numbers only",
    "A gradient formula of torch's takes plain integers where the graph has symbols; it was traced again with the "
    "numbers of this call.",
    f"mark the size as static ({MARK_STATIC})",
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
    "eager saves tensors for these of {count:result} with a gradient: {which}",
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
    "A part or view of what is not returned leads autograd to the inputs alone. Where such a result gets a gradient, "
    "retain_grad and torch.autograd.grad of the results that it depends on are refused; their hooks see only what "
    "arrives from outside, which a warning says.",
    "return one of the views, and make the others outside of the compiled function",
)
LEADS_UNKNOWN = _TRACED.add(
    23,
    "which results the result {place} depends on is not known: the captured calls do not run on tensors without values",
    "Where the result gets a gradient, retain_grad and torch.autograd.grad of the results that it may depend on are "
    "refused; their hooks see only what arrives from outside, which a warning says.",
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
READ_APART = _SAVED.add(
    17,
    "its gradient asks for nothing that it would be computed of again",
    "Eager saves the inputs or results that it is made of for the gradients of other results only. A backward of this "
    "one alone reads the value itself, so that later writes to them do no harm.",
)
TORCHS_PARTITIONER = _SAVED.add(
    15,
    "left to torch's partitioner: {why}",
    "What is saved is decided by torch: the graph has activation checkpointing, state of random generators, or writes "
    "to an input in the backward.",
)
