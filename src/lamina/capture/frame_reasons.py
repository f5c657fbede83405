"""The reasons of decisions about functions left to Python, and about what capture fixed, stored and loaded."""

from __future__ import annotations

from lamina.base.reasons import Codes

__all__ = [
    "ALWAYS_ANOTHER",
    "BY_CALLS",
    "BY_DYNAMO",
    "BY_EAGER",
    "CHANGES_LOST",
    "FORGOTTEN",
    "FRAMES",
    "HANDED_ON",
    "INTEGERS_ARE_FIXED",
    "INTEGERS_ARE_INPUTS",
    "INTERPRETED",
    "IN_PARTS",
    "LOADED",
    "NOTHING_CAPTURED",
    "NOT_STORED",
    "NOT_WANTED",
    "NO_TENSOR_CALLS",
    "OTHER_STATE",
    "PASSED_OVER",
    "REUSED",
    "RUN_BY_PYTHON",
    "SHARED",
    "SHARED_BY_CALLS",
    "SIZE_FIXED",
    "SKIPPED_BY_DYNAMO",
    "STORED",
    "STORED_FOR_OTHERS",
    "SYMBOLS_TAKE_TOO_LONG",
    "VERSION_WITHOUT_GRAPHS",
]

FRAMES = Codes(12, "functions left to Python, and what capture fixed")

RUN_BY_PYTHON = FRAMES.add(
    0,
    "Python runs it {when}: {why}",
    "The capture of a function failed, or would give a graph that does not mean what the function does.",
    "move what is named there out of the compiled function",
)
SKIPPED_BY_DYNAMO = FRAMES.add(
    1,
    "Python runs it: {why}",
    "Where Dynamo cannot go on after a graph break, and where a call gives a generator or a coroutine, there is no "
    "graph for the whole function. Functions that it calls are captured for themselves.",
    "{hint}",
)
BY_EAGER = FRAMES.add(
    10,
    "the graph runs as it was captured: {error}",
    "What traces the graph cannot do so without the values of its tensors, on which a size depends, for instance. "
    "Behind TorchDynamo the graph would be captured in parts.",
    "leave the option capture at dynamo, or move the call that is named out of the compiled function",
)
NOTHING_CAPTURED = FRAMES.add(
    2,
    "nothing of it is compiled: {why}",
    "After the first call of a compiled function there is no graph, so that Python runs all of it as before.",
    "{hint}",
)
SHARED = FRAMES.add(
    11,
    "nothing was captured in its first call: what it runs was met before, in another compiled callable",
    "Compiled callables with equal options that run the same code share its graphs. Their stages, times and decisions "
    "are in the record of the callable that was called first.",
    "look into lamina.records(), or call torch.compiler.reset() before the callable is made",
)
SIZE_FIXED = FRAMES.add(
    3,
    "{symbol} is fixed at {value}, which the program asks for",
    "A size or number was to be able to vary, but an operation or a condition of the program holds for one value only. "
    "Another value compiles the function again.",
    "avoid conditions on it, and operations that need its value",
)
SYMBOLS_TAKE_TOO_LONG = FRAMES.add(
    4,
    "sizes are fixed to those of a call: what tracing asks about symbolic ones takes too long",
    "Views of views of a tensor of symbolic sizes have sizes that are quotients of products of quotients, and each "
    "question about them makes larger terms. The function is captured with the sizes of each call.",
    "give reshapes and views the numbers that are known, or split the function",
)
NO_TENSOR_CALLS = FRAMES.add(
    5,
    "it makes no call on tensors",
    "Capture went through the function and met nothing to compute: it works on Python's own values, or returns what it "
    "is given.",
    "compile the function that computes with tensors instead",
)
PASSED_OVER = FRAMES.add(
    6,
    "Dynamo passes it over: {why}",
    "Dynamo looks at no frame of this kind; the sentence has its own words. Functions that it calls are captured for "
    "themselves.",
    "compile a function that Dynamo looks at: one written in Python, outside of torch's files, that is called anew",
)
INTERPRETED = FRAMES.add(
    7,
    "its calls are interpreted: {why}",
    "With capture own the function is run by an interpreter, which records the calls of torch's and runs their graphs "
    "compiled. A later call runs without it where all that the first has read is the same, which cannot be told here: "
    "what is named reads or changes things in ways that are not known. A call that is interpreted costs about a "
    "microsecond for each instruction of Python's.",
    "take out what is named, or leave the option capture at dynamo where the time of Python's instructions counts",
)
OTHER_STATE = FRAMES.add(
    8,
    "Python runs the call: a mode, a transform or a trace is active",
    "With capture own nothing is recorded within function and dispatch modes, torch.func, forward-mode "
    "differentiation, traces and other compilations.",
    "enter them within the compiled function, or leave the option capture at dynamo",
)
SHARED_BY_CALLS = FRAMES.add(
    32,
    "the calls of a graph are made one by one: it writes to an input that shares memory with another",
    "Kernels take the inputs that they write to for apart from all others. Where a call gives them tensors of one "
    "memory, the graph's calls are made as eager makes them, in that call and in others of its like.",
    "give tensors that share no memory, or clones",
)
HANDED_ON = FRAMES.add(
    31,
    "TorchDynamo captures its calls from now on: {what}",
    "No graph of the own front end holds the program's kernels in Triton, nor loops of torch's that run functions of "
    "the program's (while_loop, scan, map). Each call would be interpreted, with these uncompiled, so that the whole "
    "function has Dynamo's graphs, and rests on Dynamo's guards.",
    "move what is named into a function that is compiled by itself",
)
BY_DYNAMO = FRAMES.add(
    9,
    "TorchDynamo captures it: {why}",
    "The option capture is own, but that front end does not do what is asked for.",
    "leave out what is named",
)
REUSED = FRAMES.add(
    13,
    "a call is done again without interpretation if what was read then is the same: {count:fact}",
    "With capture own the first call is interpreted, and all that it reads of the world outside is noted: facts. A "
    "later call for which they hold runs the same graphs, writes and results from one flat function of Python's.",
)
FORGOTTEN = FRAMES.add(
    14,
    "the least used of {most} versions is forgotten: {fact}",
    "With capture own a function has a version for each set of facts that its calls were found in; the sentence names "
    "the fact that the calls after it did not fulfil.",
    "pass what varies as a tensor",
)
ALWAYS_ANOTHER = FRAMES.add(
    15,
    "its calls are interpreted: {count} versions of it were made and hardly used, as {fact} does not hold again",
    "With capture own a function has a version for each value of what it reads. Where that differs in each call, as a "
    "counter does, versions are of no use, and calls are interpreted.",
    "keep what varies in a tensor",
)
INTEGERS_ARE_INPUTS = FRAMES.add(
    16,
    "one compiled graph for all that differ in {count:integer}: {numbers}",
    "With capture own a graph whose sizes or other integers are not those of an earlier one, and that is the same in "
    "all else, is compiled with what differs as inputs. A later graph for which all that its compilation rests on "
    "holds, and whose calls give tensors of the same looks and the same memory, runs that.",
    "",
)
VERSION_WITHOUT_GRAPHS = FRAMES.add(
    17,
    "another version, without a graph that is compiled for it: {why}",
    "With capture own a function has a version for each set of facts that its calls were found in. The graphs of this "
    "one were compiled before.",
    "",
)
STORED = FRAMES.add(
    18,
    "its calls are stored for other processes, with {count:compiled graph}",
    "With capture own the facts, the program and the compiled graphs of a call become an entry of the on-disk cache. "
    "Another process in which all facts hold runs them without capturing or compiling anything.",
)
NOT_STORED = FRAMES.add(
    19,
    "its calls are not stored for other processes: {why}",
    "With capture own, what is stored names all that a call reads: modules, classes and functions by their names and "
    "code, attributes, tensors by their looks. What is named here cannot be found so in another process, which "
    "captures and compiles the function for itself.",
)
LOADED = FRAMES.add(
    20,
    "a call runs what another process has stored, as {count:fact} of it hold",
    "With capture own the facts of a stored call are asked one by one before it is used; neither the interpreter nor "
    "the compiler ran.",
)
STORED_FOR_OTHERS = FRAMES.add(
    21,
    "what is stored is for other calls: {fact}",
    "With capture own a stored call is used where all that it has read is the same. The sentence names the first fact "
    "that is not; the call is captured and compiled.",
)
INTEGERS_ARE_FIXED = FRAMES.add(
    22,
    "a graph that differs from an earlier one in integers only is compiled by itself: {why}",
    "With capture own, graphs whose sizes or other integers differ share a compiled graph with these as inputs where "
    "that is known to compute the same. The sentence says what keeps this one from it.",
    "pass what varies as a tensor, or mark the size as dynamic before the first call",
)
NOT_WANTED = FRAMES.add(
    23,
    "Python runs the call: {why}",
    "`torch.compiler.set_stance` and `TORCH_COMPILE_DISABLE=1` hold for both front ends. Under `eager_on_recompile` "
    "what was compiled before runs, and Python the rest; with `force_backend` the own front end compiles nothing.",
    "leave the stance, or unset TORCH_COMPILE_DISABLE",
)
BY_CALLS = FRAMES.add(
    24,
    "a graph of {count:call} between breaks is not compiled: its calls are made one by one",
    "With capture own, a small graph that ends where the program needs a value pays for no compilation beside one of "
    "many calls. A later call makes the same calls, without interpreting the program where it is reused.",
    "keep the value on the device, or compute it outside of the compiled function",
)
IN_PARTS = FRAMES.add(
    25,
    "a graph of {blocks} equal blocks of {count:call} runs part by part",
    "With capture own, what a model computes by equal blocks is compiled for one of them and called for each. The "
    "graph is cut at the same place of each block, where few tensors are needed later.",
    "compile with fullgraph=True to have one graph",
)
CHANGES_LOST = FRAMES.add(
    26,
    "its graph raised {error} before the changes of objects that the program makes before that, which are lost",
    "Dynamo has a graph compute all tensors first, and changes lists, dictionaries and attributes after it. Where the "
    "graph raises, Python runs the function again from its begin, so that changes before the error are made; not where "
    "it may have written to tensors by then, calls an operator of the program's or switches settings of torch's.",
    'compile with options={"capture": "own"}, or check what raises before the compiled function is called',
)
