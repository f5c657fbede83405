"""The reasons of decisions about what ended a graph."""

from __future__ import annotations

from lamina.base.reasons import Codes
from lamina.base.torch_names.torch_private import (
    ALLOW_RNN,
    CAPTURE_NUMBERS,
    CAPTURE_SIZES_OF_DATA,
    GRAPH_BREAK,
    IGNORED_LOGGING_FUNCTIONS,
    SKIP_FRAME,
    STEP_UNSUPPORTED,
    TRACE_AUTOGRAD,
)

__all__ = [
    "ASKED",
    "ASKED_BY_TORCH",
    "BREAKS",
    "COROUTINE",
    "GENERATOR",
    "IN_PASSED_FILE",
    "LOOP_BROKEN",
    "NOT_IN_A_GRAPH",
    "NO_FORMULA",
    "OPERATOR",
    "OTHER_BREAK",
    "OWN_BREAKS",
    "OWN_CAUSES",
    "QUANTISED",
    "RAISED",
    "WRITTEN_IN_C",
]

_BREAKS = Codes(10, "graph breaks")

OTHER_BREAK = _BREAKS.add(
    0,
    "{what}",
    "Dynamo cannot capture a call. The graph ends before it, Python makes the call, and a new graph begins after it. "
    "The name of the case is Dynamo's own.",
    "{hint}",
)
_VALUE = _BREAKS.add(
    1,
    "Python asks a tensor for a number, which only the data tell",
    "`item()`, `tolist()`, `int(tensor)` and `float(tensor)` give Python a number of a tensor's. The graph ends there, "
    "as what follows may depend on it.",
    f"keep the number in a tensor, or set {CAPTURE_NUMBERS} = True",
)
_BRANCH = _BREAKS.add(
    2,
    "Python branches on the data of a tensor",
    "`if`, `while`, `and`, `or` and `assert` ask a tensor for its truth value, which only the data tell.",
    "write it with torch.where, or with torch.cond where one branch costs much",
)
_SHAPE = _BREAKS.add(
    3,
    "the size of a result depends on data ({context})",
    "`nonzero`, `unique`, a mask as an index and the like have results whose sizes only the data tell.",
    f"use torch.where or a mask of fixed size, or set {CAPTURE_SIZES_OF_DATA} = True",
)
LOOP_BROKEN = _BREAKS.add(
    4,
    "a graph break within a loop: {why}",
    "Dynamo does not go on within a loop after a graph break, so Python runs the whole function; functions that it "
    "calls are captured for themselves.",
    "mend the break, or put the body of the loop into a function of its own{also}",
)
_RNN = _BREAKS.add(
    5,
    "torch.nn.RNN, GRU and LSTM are not captured",
    "Dynamo leaves recurrent layers to torch's library calls, and with them the function that calls them.",
    "call the recurrent layer outside of the compiled function, compiling what is before and after it, or set "
    f"{ALLOW_RNN} = True",
)
_SPARSE = _BREAKS.add(
    6,
    "a tensor is sparse",
    "Dynamo does not capture sparse tensors; Python runs the function that is given one or makes one.",
    "compile the functions around it, which take and give dense tensors",
)
_NESTED = _BREAKS.add(
    7,
    "a tensor is nested and strided",
    "Dynamo does not capture nested tensors of layout torch.strided.",
    "make it with layout=torch.jagged",
)
WRITTEN_IN_C = _BREAKS.add(
    8,
    "{context} is not captured",
    "The function is written in C, where Dynamo cannot look into it.",
    "move the call out of the compiled function, or wrap it by torch.library.custom_op if it computes with tensors",
)
_DISABLED = _BREAKS.add(
    9,
    "the call is excepted by torch.compiler.disable",
    "The function called is marked to be run by Python.",
    "take the mark off, if it need not be run by Python",
)
ASKED = _BREAKS.add(
    10,
    "the program asks for a graph break",
    f"The program calls {GRAPH_BREAK} or skip_frame.",
    "take the call out",
)
ASKED_BY_TORCH = _BREAKS.add(
    27,
    "a function of torch's asks for a graph break ({context})",
    "Some of torch's functions end a graph themselves, as steps of optimizers do within a larger function.",
    "move the call out of the compiled function; the step of an optimizer can be compiled by itself",
)
_BUILTIN = _BREAKS.add(
    11,
    "a function of Python's own is called that is not captured ({context})",
    "`print`, `input`, `open`, `id` and others act outside of tensors, so Python runs them.",
    "take the call out of the compiled function, or move it to its begin or end",
)
_MANAGER = _BREAKS.add(
    12,
    "a graph break within a context manager ({context})",
    "Dynamo cannot end a graph within this context manager, so Python runs the function.",
    "enter the context manager outside of the compiled function",
)
_LOGGED = _BREAKS.add(
    13,
    "a call of a logger",
    "Python runs calls of loggers.",
    f"take the call out, or name it in {IGNORED_LOGGING_FUNCTIONS}",
)
_CONVERTED = _BREAKS.add(
    14,
    "an argument cannot stand in a graph ({context})",
    "An operation is given an object that a graph cannot hold, as those of quantised modules hold packed weights.",
    "compile the functions around it; for quantised weights use torchao's, which are tensors",
)
RAISED = _BREAKS.add(
    15,
    "an exception is raised while the function is captured ({context})",
    "An exception that the function does not handle itself was raised in what Dynamo traced.",
    "see whether the function raises it in eager as well",
)
GENERATOR = _BREAKS.add(
    16,
    "the function is a generator",
    "Python runs generators; functions that a generator calls are captured for themselves.",
    "compile the functions that the generator calls",
)
_METHOD = _BREAKS.add(
    17,
    "a method is called that is not captured ({context})",
    "Dynamo knows no way to trace this method of this kind of object.",
    "move the call out of the compiled function",
)
NO_FORMULA = _BREAKS.add(
    18,
    "an operator has no formula for shapes ({context})",
    "Capture runs operators without data, for which a custom operator needs a function that tells its result's shape.",
    "register one by torch.library.register_fake",
)
_BACKWARD = _BREAKS.add(
    19,
    "gradients are asked for within the function ({context})",
    "`backward`, `torch.autograd.grad`, hooks and `requires_grad_` act on autograd's graph while the function runs.",
    "compile the forward computation and call backward outside of it",
)

COROUTINE = _BREAKS.add(
    20,
    "{name} is a coroutine",
    "Python runs coroutines; functions that one calls are captured for themselves.",
    "compile the functions that the coroutine calls",
)
IN_PASSED_FILE = _BREAKS.add(
    21,
    "{context} is in a file that is not captured",
    "Dynamo passes over the functions of some files: those of Python's library and parts of torch's.",
    "move the call out of the compiled function, or compute the same by functions of your own or of torch",
)

NOT_IN_A_GRAPH = _BREAKS.add(
    22,
    "{what} does not go into a graph",
    "With capture own, calls of torch are recorded as a graph until one comes that cannot be recorded, or until "
    "something is called that may use tensors otherwise. Python makes that call, and a new graph begins after it.",
    "move it out of the compiled function, or compute the same by functions of torch",
)

QUANTISED = _BREAKS.add(
    25,
    "a tensor or a module is quantised",
    "Tensors that torch.quantize_per_tensor makes and modules of torch.ao.nn.quantized hold packed integers. Neither "
    "front end makes graphs of them.",
    "compile the functions around it, which take and give other tensors; quantised weights of torchao are captured",
)
_HOOKS = _BREAKS.add(
    26,
    "a module has backward hooks",
    "`register_full_backward_hook` and `register_full_backward_pre_hook` give a module Python functions that the "
    "backward calls. Dynamo does not capture such a module, and the own front end ends its graph around it.",
    "take the hooks off, or have Tensor.register_hook in forward, which Dynamo captures",
)

BREAKS = {
    "Module-level backwards hooks require compiled autograd.": _HOOKS,
    "Attempted to wrap RNN, GRU, or LSTM": _RNN,
    "Attempted to wrap sparse Tensor": _SPARSE,
    "Attempted to wrap sparse Tensor with VariableTracker": _SPARSE,
    "Sparse tensor creation not supported": _SPARSE,
    "Attempted to wrap strided NestedTensor": _NESTED,
    "Attempted to use strided NestedTensor": _NESTED,
    "Encountered strided NestedTensor in automatic dynamic dim determination": _NESTED,
    "Unsupported Tensor.item() call with capture_scalar_outputs=False": _VALUE,
    "Tensor.tolist() with non-integer tensor": _VALUE,
    "Data dependent operator": _VALUE,
    "Data-dependent branching": _BRANCH,
    "Data-dependent branching with non-constant __bool__": _BRANCH,
    "Data-dependent assertion failed (cannot compile partial graph)": _BRANCH,
    "Dynamic shape operator": _SHAPE,
    "Dynamic slicing with Tensor arguments": _SHAPE,
    "Attempted to use `torch.nn.functional.one_hot` with data-dependent output shape": _SHAPE,
    "Dynamic shape operator (no meta kernel)": NO_FORMULA,
    "Operator does not support running with fake tensors": NO_FORMULA,
    "NotImplementedError/UnsupportedFakeTensorException when running FX node": NO_FORMULA,
    "Attempted to call function marked as skipped": WRITTEN_IN_C,
    "Attempted to inline function marked as skipped": WRITTEN_IN_C,
    "Attempted to inline function marked as skipped (SkipFunctionVariable)": WRITTEN_IN_C,
    "can't handle functions not implemented in python ": WRITTEN_IN_C,
    "Skip calling `torch.compiler.disable()`d function": _DISABLED,
    "Skip inlining `torch.compiler.disable()`d function": _DISABLED,
    f"Call to `{GRAPH_BREAK}()`": ASKED,
    f"Call to `{SKIP_FRAME}()`": ASKED,
    f"Call to `{STEP_UNSUPPORTED}()`": ASKED,
    "Failed to trace builtin operator": _BUILTIN,
    "attempted to reorder a debugging function that can't actually be reordered": _BUILTIN,
    "Graph break under GenericContextWrappingVariable": _MANAGER,
    "Unsupported context manager": _MANAGER,
    "logging.Logger method not supported for non-export cases": _LOGGED,
    "Failed to convert args/kwargs to proxy": _CONVERTED,
    "Observed exception": RAISED,
    "Observed exception (EXCEPT_HANDLER)": RAISED,
    "Attempt to trace generator": GENERATOR,
    "Unsupported method call": _METHOD,
    "Unhandled tensor method": _METHOD,
    "Unsupported Tensor.backward() call": _BACKWARD,
    "Unsupported Tensor.requires_grad_() call": _BACKWARD,
    f"using `torch.autograd.grad` with `{TRACE_AUTOGRAD}=False`": _BACKWARD,
    "setattr() on Tensor.requires_grad": _BACKWARD,
    "graph break in loop": LOOP_BROKEN,
}
"""Codes of the kinds of graph breaks that Dynamo names; those of all others are ``OTHER_BREAK``."""

OPERATOR = "operator of torch.ops"
"""What the function of C++ behind an operator of torch's is called here."""
_CUSTOM_OPERATOR = _BREAKS.add(
    23,
    "an operator of torch.ops, or of torch.library, is called",
    "Graphs of the own front end hold operators that are called as such where they declare that they write to nothing, "
    "draw no numbers and give new tensors, and where they have a function that tells the shapes of these.",
    "give the operator such a function (`register_fake`), or have it return what it writes",
)
_FUNCTIONS = _BREAKS.add(
    24,
    "{what} runs functions of the program's by itself",
    "`torch.cond`, `while_loop`, `flex_attention`, the transforms of torch.func and hooks of tensors are given "
    "functions and run them. Graphs of the own front end hold no functions. What the forward of a "
    "`torch.autograd.Function` calls is in graphs, of which one ends where a gradient is wanted. So is what "
    "`torch.utils.checkpoint` runs, unless that is reentrant, writes to what was there before, or needs a value.",
    "leave the option capture at dynamo, which captures such calls and what they run",
)
_OTHER_KIND = _BREAKS.add(
    28,
    "{what} gives other tensors than torch tells without data",
    "Of some calls, mostly of operands with different types or layouts, the result has another type or other strides "
    "than torch's function for its shape tells. The program may ask for these, so the call is made first.",
    "convert the operands to one type, or lay them out alike, before the call",
)
OWN_BREAKS = {
    **dict.fromkeys(("item", "tolist", "__int__", "__float__", "__index__", "__complex__"), _VALUE),
    "__bool__": _BRANCH,
    **dict.fromkeys(("nonzero", "argwhere", "unique", "unique_consecutive", "masked_select"), _SHAPE),
    **dict.fromkeys(("graph_break", "skip_frame"), ASKED),
    **dict.fromkeys(("backward", "requires_grad_"), _BACKWARD),
    **dict.fromkeys(("print", "input", "open", "__repr__", "__format__"), _BUILTIN),
    **dict.fromkeys(("to_sparse", "to_sparse_csr", "to_sparse_coo", "sparse_coo_tensor"), _SPARSE),
    "lstm": _RNN,
    **dict.fromkeys(("register_hook", "register_post_accumulate_grad_hook"), _FUNCTIONS),
    **dict.fromkeys(("CustomOpDef", "OpOverload", "OpOverloadPacket", OPERATOR), _CUSTOM_OPERATOR),
}
"""Codes of what ends a graph of the own front end, by the name of the call; those of others are ``OWN_CAUSES``."""
OWN_CAUSES = {
    "size": _SHAPE,
    "value": _VALUE,
    "formula": NO_FORMULA,
    "kind": _OTHER_KIND,
    "sparse": _SPARSE,
    "nested": _NESTED,
    "quantised": QUANTISED,
    "functions": _FUNCTIONS,
    "hooks": _HOOKS,
    "disabled": _DISABLED,
    "coroutine": COROUTINE,
}
"""Codes of what ends a graph of the own front end, by its cause; those of all others are ``NOT_IN_A_GRAPH``."""
