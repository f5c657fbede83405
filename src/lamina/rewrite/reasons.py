"""Codes of what rewriting decides: rules, graph passes, what libraries are handed, layouts, lowerings of one's own."""

from __future__ import annotations

from lamina.base.reasons import Codes

_RULES = Codes(30, "Rules and graph passes")

RULE_APPLIED = _RULES.add(
    0,
    "{before:operation} became {after}",
    "A rule found its left side in the graph and put its right side there. docs/rules.md lists Lamina's rules; yours "
    "have their place in the facts.",
)
PASS_CHANGED = _RULES.add(
    1,
    "{what}",
    "A graph pass changed the graph at the place named in the subject; the sentence says what it did. The option "
    "without_rules leaves passes of Lamina's out by the name that stands first there.",
)
NOT_REPLACED = _RULES.add(
    2,
    "{why}",
    "A rule found its left side and could not put the right side there: memory of the match is written to, a result "
    "would share memory otherwise, or operands are known too late.",
    "write to a clone, or compute the operands before",
)
WRONG_RIGHT_SIDE = _RULES.add(
    3,
    "its right side {named}: {error}",
    "The right side of a rule raises an error, or cannot be traced.",
    "correct the right side at the place in the facts; lamina.testing.check_rule tries both sides",
)
IN_CIRCLES = _RULES.add(
    4,
    "rules go in circles: {names} have rewritten one value {count} times",
    "Rules undo each other's work; the rule named in the subject is left out from here on.",
    "let one of the rules not match what the other makes",
)
NEST_REWRITTEN = _RULES.add(
    5,
    "{before:equation} became {after}",
    "A rule of yours on loop nests changed a nest.",
)
NO_FORWARD_AND_BACKWARD = _RULES.add(
    6,
    "no pass runs at 'partitioned': that is the forward and the backward, and this graph has no gradients",
    "A pass of yours is placed where forward and backward are apart, and the graph is an inference graph.",
    "give the pass at 'joint' or 'lowered' as well",
)
NOT_ON_CAPTURED = _RULES.add(
    7,
    "no rules on the captured graph: {why}",
    "Rules on torch's own calls need a graph of plain tensors; this one holds something else.",
)
RULE_UNMATCHED = _RULES.add(
    50,
    "the rule {name} is not applied: the nearest miss is {where} after {nodes}: {why}",
    "A rule of yours found its left side nowhere in a graph. The nearest miss is the node at which most of it fitted, "
    "with what differed: another operation or number there.",
    "change the rule so that it takes this spelling, or the program",
)
RULE_NEEDED_ELSEWHERE = _RULES.add(
    51,
    "the rule {name} is not applied: all of it fits at {where}, but {why}",
    "A rule of yours found its left side, but a value inside of it has another reader, which would lack it.",
    "let both sides of the rule return that value as well, or compute it apart for the other reader",
)
RULE_CONDITION = _RULES.add(
    52,
    "the rule {name} is not applied: all of it fits at {where}, but {why}",
    "A rule of yours found its left side, and its own condition refused the match.",
    "change the condition where=, if it is to hold there",
)
RULE_NOTHING_NEAR = _RULES.add(
    53,
    "the rule {name} is not applied: nothing in the {graph} graph comes near its left side",
    "A graph has none of the operations that a rule of yours begins with, or lacks some that it needs.",
    "leave the rule out for this program, or compare its left side with the graph in the record (LAMINA_LOGS=lowering)",
)
ATTENTION_BY_LIBRARY = _RULES.add(
    8,
    "attention by hand, forward and backward by the library's kernel",
    "Two products with a softmax between them were found to be attention, which the library's kernel computes without "
    "storing the scores.",
)
ATTENTION_KEPT = _RULES.add(
    9,
    "{why}",
    "Two products with a softmax between them stay as they are: the library's attention does not compute this form.",
    "torch.nn.functional.scaled_dot_product_attention says the same in a form that libraries take",
)
INLINED_REGIONS = _RULES.add(
    10,
    "{count:call} of marked regions inlined: what is alike is traced and built once in any case",
    "torch.compiler.nested_compile_region has no effect of its own: equal layers share their kernels anyway.",
)
REGION_KEPT = _RULES.add(
    11,
    "a size in it is known only at run time",
    "A marked region stays a call, as its sizes depend on data.",
    "bound the size with torch._check",
)

NO_TENSOR_RIGHT = _RULES.add(
    12,
    "its right side gives something that is no tensor",
    "A rule puts the results of its right side in the place of tensors.",
    "return a tensor, or a tuple of tensors, at the place in the facts",
)

OTHER_COUNT_RIGHT = _RULES.add(
    13,
    "its right side gives {right:result}, its left side {left}",
    "A rule puts each result of its right side in the place of one of its left side.",
    "return as many tensors from both sides of the rule",
)

LOST_GRADIENT_RIGHT = _RULES.add(
    14,
    "{why}",
    "In training, an input of the rule has a gradient through its left side and none through its right side.",
    "compute the right side from its arguments by differentiable operations, without detach() or no_grad()",
)

OTHER_TENSOR_RIGHT = _RULES.add(
    15,
    "its right side gives {right} where its left side gives {left}",
    "A rule must give tensors of the same dtype, shape and device on both sides.",
    "convert or reshape the result of the right side; lamina.testing.check_rule tries both sides",
)

ATTENTION_IS_SLOWER = _RULES.add(
    16,
    "{why}",
    "Two products with a softmax between them stay as they are: the library has no faster kernel for operands of "
    "these sizes and dtypes.",
)

ATTENTION_WEIGHTS_READ = _RULES.add(
    17,
    "{why}",
    "Two products with a softmax between them stay as they are, as the weights are needed in memory for something "
    "else.",
    "do not return or read the weights where they are not needed",
)

ATTENTION_DTYPES = _RULES.add(
    18,
    "{why}",
    "Two products with a softmax between them stay as they are: the library takes queries, keys, values and masks of "
    "one dtype.",
    "convert them to one dtype; a mask may be boolean",
)

_LIBRARY = Codes(31, "Work handed to libraries, and layouts made for them")

EPILOGUE = _LIBRARY.add(
    0,
    "the library applies it to the result at hand",
    "An activation after a product or a convolution is done by the library before it stores the result.",
)
LOSES_NAN = _LIBRARY.add(
    1,
    'the library\'s ReLU may make 0 of NaN; options={"assume_finite": True} lets it',
    "The library's kernel with a ReLU does not promise to keep NaN, so the ReLU is a kernel of its own or part of one.",
    'if no value of the program is infinite or NaN, say so: options={"assume_finite": True}',
)
SHIFT_AFTER_POOLING = _LIBRARY.add(
    2,
    "the norm's factor goes into weights, and its shift is added to what pooling leaves",
    "A batch norm between a convolution and a max pooling: its factor is multiplied into the weights, its shift added "
    "to the pooled, smaller image.",
)
EPILOGUE_IN_PLACE = _LIBRARY.add(
    3,
    "applied to the result at hand, in place",
    "A ReLU after a convolution on a CPU is done by the library, in the result's memory.",
)
CHANNELS_LAST = _LIBRARY.add(
    4,
    "channels-last: what the library would turn around",
    "Convolutions of half precision, and on CPUs those of few channels a group in float32, run on images with the "
    "channels innermost; the graph keeps them so instead of converting at every call. The facts have the bytes.",
)
CHANNELS_FIRST = _LIBRARY.add(
    5,
    "channels-last: converting what comes in and goes out moves as much",
    "Images with the channels innermost would be faster for the convolutions, but converting inputs and results costs "
    "as much. The facts have the bytes.",
    "give the model and its inputs in memory_format=torch.channels_last",
)
ROWS_BY_EIGHTHS = _LIBRARY.add(
    6,
    "returned rows are written eight apart",
    "A product of odd width writes rows that begin at multiples of 16 bytes, which tensor cores want, and the result "
    "is a view of them.",
    "make the width a multiple of 8",
)
ROWS_PADDED = _LIBRARY.add(
    7,
    "rows padded to 16 bytes",
    "Operands of a product are padded, as products of odd rows take several times as long. The facts have the "
    "microseconds.",
    "make the sizes multiples of 8 (a vocabulary of 50304 instead of 50257)",
)
PADDING_COSTS_MORE = _LIBRARY.add(
    8,
    "padding would move more than it saves",
    "A product of odd rows stays as it is. The facts have the microseconds.",
    "make the sizes multiples of 8",
)
MADE_ON_DEVICE = _LIBRARY.add(
    9,
    "computed from numbers alone: on the device where it is read, not copied there",
    "A tensor was made on the CPU and copied to the GPU at each call; it is made on the GPU now.",
    "pass device= where the tensor is made",
)

_LOWERINGS = Codes(32, "Lowerings of one's own")

LOWERED_BY_USER = _LOWERINGS.add(
    0,
    "lowered as {place} says",
    "An operation of yours was expanded by its lowering and fuses with what is around it.",
)
SYMBOLIC_SIZE = _LOWERINGS.add(
    1,
    "{why}",
    "The lowering uses a size that is a symbol in this graph and that nothing in the graph computes; the operation "
    "stays a call.",
    "take the size from an operand's shape within the lowering, or mark it as static",
)
