"""The reasons why a function is compiled again: a code for each thing that a user would do about it."""

from __future__ import annotations

from lamina.base.reasons import Codes
from lamina.base.torch_names.torch_private import (
    EQUAL_SIZES_ARE_ONE,
    FIXED_PARAMETER_SIZES,
    MARK_DYNAMIC,
    RECOMPILE_LIMIT,
    SYMBOLIC_MODULE_INTEGERS,
)

__all__ = ["GUARDS", "LIMIT_REACHED", "OTHER_GUARD"]

_GUARDS = Codes(11, "functions compiled again")

OTHER_GUARD = _GUARDS.add(
    0,
    "{guard} does not hold any more",
    "A function is compiled again, because a condition that the compiled code rests on does not hold for a call.",
    "keep it the same from call to call",
)
_SIZE = _GUARDS.add(
    1,
    "size {place} of {name} was {old} and is {new}",
    "A tensor that the caller gives has another size than the one that was compiled for. The next version takes the "
    "size as a symbol, if dynamic is not False.",
    f"compile with dynamic=True, or call {MARK_DYNAMIC}({{marked}}, {{place}}) before such a call{{where}}",
)
_STRIDE = _GUARDS.add(
    2,
    "stride {place} of {name} was {old} and is {new}",
    "A tensor lies in memory in another way than the one that was compiled for.",
    "give {name} in one layout, by .contiguous() before the call",
)
_DTYPE = _GUARDS.add(
    3,
    "dtype of {name} was {old} and is {new}",
    "A tensor has another dtype than the one that was compiled for.",
    "convert it before the call, if one dtype will do",
)
_GRADIENT = _GUARDS.add(
    4,
    "requires_grad of {name} was {old} and is {new}",
    "A compiled function computes gradients of those inputs alone that required them when it was compiled.",
    "call it with the same tensors requiring gradients, or within torch.no_grad() throughout",
)
_DISPATCH = _GUARDS.add(
    5,
    "device, layout or class of {name} was {old} and is {new}",
    "A tensor is on another device, or of another kind, than the one that was compiled for.",
    "keep it on one device, in one layout and class",
)
_NUMBER = _GUARDS.add(
    6,
    "{name} was {old} and is {new}",
    "A Python number is a constant of the compiled code. One that changed becomes a symbol in the next version, "
    "where dynamic is not False.",
    "pass it as a tensor, or compile with dynamic=True",
)
_CONSTANT = _GUARDS.add(
    7,
    "{name} was {old} and is {new}",
    "A Python value (a text, truth value or None, or an attribute of an object) is a constant of the compiled code.",
    "keep it the same from call to call; each value has a compiled version of its own",
)
_IDENTITY = _GUARDS.add(
    8,
    "{name} is another object",
    "The compiled code holds for one object: a module, function or class.",
    "compile each object for itself, or pass what differs as tensors",
)
_LENGTH = _GUARDS.add(
    9,
    "the length of {name} was {old} and is {new}",
    "Lists, tuples and dictionaries are taken apart when a function is compiled, so that each length is one version.",
    "pass a stacked tensor, or always as many elements",
)
_TYPE = _GUARDS.add(
    10,
    "{name} has another type: {old} before, {new} now",
    "The compiled code holds for one class of an object; a tensor and a torch.nn.Parameter are two.",
    "pass objects of one class",
)
_GRAD_MODE = _GUARDS.add(
    11,
    "the state of torch differs: {what}",
    "Grad mode and inference mode are part of what a function is compiled for: with gradients it saves what its "
    "backward needs.",
    "call it always within torch.no_grad(), or never; each has a version of its own",
)
_TRAINING = _GUARDS.add(
    12,
    "training of {name} was {old} and is {new}",
    "A module is compiled for training and for evaluation apart.",
)
_ALIAS = _GUARDS.add(
    13,
    "tensors that were apart are one, or the other way round ({guard})",
    "Two arguments were the same tensor, or shared memory, when the function was compiled, or were not.",
    "pass tensors that share memory, or do not, in all calls alike",
)
_RANK = _GUARDS.add(
    14,
    "{name} had {old} dimensions and has {new}",
    "A tensor has another number of dimensions than the one that was compiled for.",
    "give it a fixed number of dimensions",
)
_RELATION = _GUARDS.add(
    15,
    "sizes do not fit what was compiled for: {guard}{values}",
    "Code for sizes that vary holds where a relation of theirs does, which the program asked for, by a condition or an "
    "operation, when it was compiled.",
    "each outcome of a condition on sizes has a version of its own; where one would do, leave the condition out",
)
_HELD_SIZE = _GUARDS.add(
    16,
    "size {place} of {name} was {old} and is {new}",
    "The tensor is none that the caller gives: the function made it before a graph break, and what comes after the "
    "break, or a function that is called there, is compiled for its sizes apart. Nothing can be marked there.",
    "compile with dynamic=True, or mend the graph break{before}, so that there is one graph",
)
_PARAMETER_SIZE = _GUARDS.add(
    17,
    "size {place} of {name} was {old} and is {new}",
    "Parameters and buffers of a module have fixed sizes in compiled code, whatever dynamic is.",
    f"give the tensor to the module as an argument, or set {FIXED_PARAMETER_SIZES} = False "
    "and compile with dynamic=True",
)
_OUTER_SIZE = _GUARDS.add(
    18,
    "size {place} of {name} was {old} and is {new}",
    "The tensor is no argument: the function reads it from an object, or from a variable outside.",
    f"compile with dynamic=True, or call {MARK_DYNAMIC}({{marked}}, {{place}}) where {{name}} is set",
)
_SMALL_SIZE = _GUARDS.add(
    19,
    "size {place} of {name} was {old} and is {new}: 0 and 1 have versions of their own",
    "Code for sizes that vary holds from 2 on, since a dimension of size 1 is broadcast and one of size 0 is empty.",
    "nothing need be done for a rare one; where it is frequent, pad it to 2 or leave such calls to eager",
)
_FIXED_SIZE = _GUARDS.add(
    20,
    "size {place} of {name} was {old} and is {new}, and a line of the program fixes it",
    "The size was a symbol, but what the program does with it holds for one value only: there is a decision of kind "
    '"specialise" that names the line.',
    "avoid the condition on it, or the operation that needs its value; dynamic=True and mark_dynamic do not help",
)
_FIXED_NUMBER = _GUARDS.add(
    21,
    "{name} was {old} and is {new}, and a line of the program fixes it",
    "The number was a symbol, but what the program does with it, as counting steps of a loop, holds for one value "
    'only: there is a decision of kind "specialise" that names the line.',
    "compute the same steps for each value, or compile the steps and leave the number to Python",
)
_MODULE_NUMBER = _GUARDS.add(
    22,
    "{name} was {old} and is {new}",
    "Integers that are attributes of a module are constants of the compiled code, whatever dynamic is.",
    f"give it to the module as an argument, or set {SYMBOLIC_MODULE_INTEGERS} = True",
)
_OUTER_NUMBER = _GUARDS.add(
    23,
    "{name} was {old} and is {new}",
    "Integers that a function reads from global variables or default values are constants of the compiled code, "
    "whatever dynamic is.",
    "give it to the function as an argument, or keep it in a tensor",
)
_EQUAL_SIZES = _GUARDS.add(
    24,
    "sizes that were equal are not: {guard}{values}",
    "Sizes that are equal when a function is compiled are taken for one, so that code holds where they are equal.",
    f"let them differ in the first call, or set {EQUAL_SIZES_ARE_ONE} = False before it",
)
_INFERENCE = _GUARDS.add(
    25,
    "{name} was made {old} and is one made {new}",
    "Tensors made under torch.inference_mode() have no history of writes and no gradients, and compiled code is made "
    "for such tensors or for others.",
    "make it in the same mode in all calls, by torch.no_grad() in place of torch.inference_mode()",
)
_LAZY = _GUARDS.add(
    26,
    "{name} was {old} and is {new}",
    "conj() and the imaginary part of it are views, whose conjugation or sign is left to whoever reads them.",
    "pass {name}.resolve_conj().resolve_neg()",
)
_KEYS = _GUARDS.add(
    27,
    "the keys of {name} differ: {old} was expected, and there are {new}",
    "Dictionaries are taken apart when a function is compiled, so that other keys, or another order, are a version.",
    "pass dictionaries with the same keys in the same order",
)
_AUTOCAST = _GUARDS.add(
    28,
    "the state of torch differs: {what}",
    "Autocast is part of what a function is compiled for.",
    "call it always within the same torch.autocast, or put torch.autocast into the function",
)
_STATE = _GUARDS.add(
    29,
    "the state of torch differs: {what}",
    "The default dtype, deterministic algorithms, the number of threads and the like are part of what a function is "
    "compiled for.",
    "set it before the first call, and leave it so",
)
_MODULES = _GUARDS.add(
    30,
    "the number of modules in {name} was {old} and is {new}",
    "Modules of a module are taken apart when it is compiled.",
    "change a model before it is compiled; each structure has a version of its own",
)
_ARGUMENTS = _GUARDS.add(
    31,
    "the call gives {new}, the one before {old}",
    "Which arguments a call gives, by position and by name, is part of what its version is for.",
    "give the same arguments in the same way in all calls",
)
_MISSING_ENTRY = _GUARDS.add(
    32,
    "{name} had no {old} and has one",
    "A version holds as long as what its call did not find is missing.",
    "set it before the first call",
)
_SIZE_OF_GRAPHS = _GUARDS.add(
    33,
    "size {place} of {name} was {old} and is {new}",
    "With capture own, graphs that a call with other sizes compiles are for sizes that vary, as far as the program "
    "lets them; calls with further sizes take them. With dynamic=False each size has graphs of its own.",
    "compile with dynamic=True to have sizes vary from the first call on",
)
_MORE_GRAPHS = _GUARDS.add(
    34,
    "a call needed graphs that no earlier one had",
    "With capture own, calls that cannot be done again without interpretation have no conditions of their own: each "
    "computation looks for a compiled graph, for its operations and sizes. One that differs is compiled.",
    "give the same sizes, dtypes and values in all calls, or mend what has its calls interpreted (LM1207)",
)
LIMIT_REACHED = _GUARDS.add(
    50,
    f"it was compiled as often as {RECOMPILE_LIMIT} allows ({{limit}}){{why}}",
    "A function was compiled so often that nothing more is compiled of it: calls that no version fits are run by "
    "Python.",
    "Pass what varies as a tensor, compile with dynamic=True, or raise the limit",
)

GUARDS = {
    "size": _SIZE,
    "held size": _HELD_SIZE,
    "parameter size": _PARAMETER_SIZE,
    "outer size": _OUTER_SIZE,
    "small size": _SMALL_SIZE,
    "fixed size": _FIXED_SIZE,
    "stride": _STRIDE,
    "dtype": _DTYPE,
    "requires_grad": _GRADIENT,
    "dispatch": _DISPATCH,
    "inference": _INFERENCE,
    "lazy": _LAZY,
    "rank": _RANK,
    "number": _NUMBER,
    "fixed number": _FIXED_NUMBER,
    "module number": _MODULE_NUMBER,
    "outer number": _OUTER_NUMBER,
    "constant": _CONSTANT,
    "identity": _IDENTITY,
    "length": _LENGTH,
    "modules": _MODULES,
    "keys": _KEYS,
    "type": _TYPE,
    "grad mode": _GRAD_MODE,
    "autocast": _AUTOCAST,
    "state": _STATE,
    "training": _TRAINING,
    "alias": _ALIAS,
    "relation": _RELATION,
    "equal sizes": _EQUAL_SIZES,
    "arguments": _ARGUMENTS,
    "absent": _MISSING_ENTRY,
    "size of graphs": _SIZE_OF_GRAPHS,
    "graphs": _MORE_GRAPHS,
}
"""Codes by what a guard is about."""
