"""What Dynamo's traces take to be otherwise than it is, set right where Lamina compiles; names as read in 2.11 to 2.13.

These are methods of Dynamo's own classes that are replaced by ones around them. Traces of other compilers are not
touched.
"""

from __future__ import annotations

import dis
import functools
import operator
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch._dynamo import config, utils
from torch._dynamo.codegen import PyCodegen
from torch._dynamo.exc import unimplemented
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.source import GlobalSource
from torch._dynamo.symbolic_convert import (
    InliningGeneratorInstructionTranslator,
    InstructionTranslator,
    InstructionTranslatorBase,
)
from torch._dynamo.variables import functions, lazy, misc, torch_function, user_defined
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.functions import UserFunctionVariable
from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch.nn.modules import module as modules

from lamina.capture.external_state.reads import users_own

__all__ = ["compiles_for_lamina", "correct_traces", "guard_without_graph", "to_subclass", "traces_for_lamina"]


def compiles_for_lamina(output: Any) -> bool:
    """Whether the backend of a trace with this ``output``, in whatever Dynamo puts around one, is one of Lamina's."""
    compiler = output.compiler_fn
    while compiler is not None:
        kind = compiler if hasattr(compiler, "__qualname__") else type(compiler)
        if str(kind.__module__).split(".")[0] == "lamina":
            return True
        compiler = getattr(compiler, "_torchdynamo_orig_backend", None) or getattr(compiler, "compiler_fn", None)
    return False


def traces_for_lamina() -> bool:
    """Whether this thread traces for one of Lamina's backends."""
    try:
        tx = InstructionTranslator.current_tx()
    except AttributeError:  # none has ever run in this thread
        return False
    return tx is not None and compiles_for_lamina(tx.output)


def correct_traces() -> None:
    """Replace the methods, once."""
    _find_functions_again()
    _dispatch_within_overrides()
    _keep_objects()
    _break_at_random_numbers()
    _break_where_compiled_is_asked()
    _guard_missing_keys()
    _tell_texts_from_numbers()
    _find_defaults_that_change()
    _keep_writes_to_numbers()
    _keep_data()
    _break_at_texts_of_exceptions()
    _keep_unused_elements()
    _iterate_over_one_view()
    _end_where_generators_are_thrown_into()
    _keep_what_generators_return()


def guard_without_graph(guard: Callable[[], object], guarded: Callable[[Any], bool]) -> None:
    """Have ``guard`` called at the end of each trace that no backend was called for, since nothing is computed in it.

    What such a part of a function read before a graph break decides what the rest is given. ``guarded(output)`` tells
    whether the guards of a trace were made already.
    """
    compile_any = OutputGraph.compile_subgraph

    @functools.wraps(compile_any)
    def compile_subgraph(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = compile_any(self, *args, **kwargs)
        if compiles_for_lamina(self) and not guarded(self):
            guard()
        return found

    OutputGraph.compile_subgraph = compile_subgraph  # type: ignore[method-assign]


def _output() -> Any:
    """What the trace that goes on in this thread leads to, if that is for Lamina."""
    try:
        tx = InstructionTranslator.current_tx()
    except AttributeError:  # none has ever run in this thread
        return None
    return tx.output if tx is not None and compiles_for_lamina(tx.output) else None


def _find_functions_again() -> None:
    """Give functions that Dynamo knows no way to a place of their own, where the compiled code finds them.

    Those are methods of objects that the traced program makes. What such a function holds (variables of the function
    around it, defaults) was taken for constant, and a change to it for one of the trace's own, which is lost.
    """
    find = UserFunctionVariable.get_source

    @functools.wraps(find)
    def get_source(self: Any) -> Any:
        source: Any = find(self)
        function: Any = self.fn
        if source is not None or not isinstance(function, FunctionType):
            return source
        if not (function.__closure__ or function.__defaults__ or function.__kwdefaults__):
            return source
        output = _output() if users_own([function.__code__]) else None
        return None if output is None else GlobalSource(output.install_global_by_id("__function", function))

    UserFunctionVariable.get_source = get_source  # type: ignore[method-assign]


def _dispatch_within_overrides() -> None:
    """Let calls that a ``__torch_function__`` of a class of tensors makes reach that again, as eager's do.

    Dynamo (2.13) switches this off while it traces one, which only the default one does, for the call that it makes.
    """
    call_any = torch_function.call_torch_function

    @functools.wraps(call_any)
    def call(tx: Any, *args: Any, **kwargs: Any) -> Any:
        if "is_subclass_dispatch" in kwargs and compiles_for_lamina(tx.output):
            kwargs["is_subclass_dispatch"] = False
        return call_any(tx, *args, **kwargs)

    torch_function.call_torch_function = call


def _break_at_random_numbers() -> None:
    """End a graph where the program draws a number from Python's generators.

    A float of theirs is captured as a tensor of single precision and given as one of double precision, and an instance
    of ``random.Random`` begins each call in the state that it was captured in.
    """
    draw_any = user_defined.call_random_fn

    @functools.wraps(draw_any)
    def draw(tx: Any, *args: Any, **kwargs: Any) -> Any:
        if compiles_for_lamina(tx.output):
            unimplemented(
                gb_type="random number of Python's generators",
                context="call of a function of the module random",
                explanation="Such a number would be captured as a tensor, of another precision",
                hints=["Draw it outside of the compiled function, or with torch.rand"],
            )
        return draw_any(tx, *args, **kwargs)

    for module in (user_defined, misc):
        module.call_random_fn = draw  # type: ignore[attr-defined]


def _break_where_compiled_is_asked() -> None:
    """End a graph that need not be the only one where modules of torch do something else if they are compiled.

    ``nn.TransformerEncoder`` asks where its mask says what is padding, in evaluation: not compiled and without
    gradients, it gives zero for padding. ``nn.Module`` asks before it calls hooks that are always called for a module
    that raised.
    """
    handlers = TorchInGraphFunctionVariable._get_handlers()
    asks_any = handlers[torch.compiler.is_compiling]
    asking = {
        torch.nn.TransformerEncoder.forward.__code__: _break_at_padded_encoder,
        torch.nn.Module._call_impl.__code__: _break_at_hooks_always_called,
    }

    @functools.wraps(asks_any)
    def asks(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if tx.f_code in asking and not tx.one_graph and compiles_for_lamina(tx.output):
            asking[tx.f_code](_itself(tx))
        return asks_any(self, tx, *args, **kwargs)

    handlers[torch.compiler.is_compiling] = asks


def _break_at_padded_encoder(encoder: Any) -> None:
    if torch.is_grad_enabled() and any(p.requires_grad for p in encoder.parameters()):
        return
    unimplemented(
        gb_type="padding of a TransformerEncoder",
        context="src_key_padding_mask in evaluation without gradients",
        explanation="What it gives for padding is zero where it is not compiled",
        hints=["Make the encoder with enable_nested_tensor=False"],
    )


def _break_at_hooks_always_called(module: Any) -> None:
    if module._forward_hooks_always_called or modules._global_forward_hooks_always_called:
        unimplemented(
            gb_type="hook that is always called",
            context="register_forward_hook(..., always_call=True)",
            explanation="A module that raises does not call it where it is compiled",
            hints=["Register the hook without always_call"],
        )


def _break_at_texts_of_exceptions() -> None:
    """End a graph where the program asks for the text of an exception of a class that has its own idea of one.

    Dynamo takes it to be that of what the exception was made with: of a ``KeyError`` it is the text that shows it.
    """
    text_any = BuiltinVariable.call_str

    @functools.wraps(text_any)
    def call_str(self: Any, tx: Any, arg: Any) -> Any:
        kind = getattr(arg, "exc_type", None)
        own: Any = getattr(kind, "__str__", None)
        if isinstance(kind, type) and own is not BaseException.__str__ and compiles_for_lamina(tx.output):
            unimplemented(
                gb_type="text of an exception",
                context=f"str() of {kind.__name__}",
                explanation="It is not the text of what the exception was made with",
                hints=["Use the exception's args"],
            )
        return text_any(self, tx, arg)

    BuiltinVariable.call_str = call_str  # type: ignore[method-assign]


def _itself(tx: Any) -> Any:
    """The module whose method is traced, which was used."""
    variable = tx.symbolic_locals["self"]
    if isinstance(variable, misc.CellVariable):
        variable = tx.output.side_effects.load_cell(variable)
    return variable.realize().value


def _guard_missing_keys() -> None:
    """Guard on a key that a dictionary did not have where a trace took it; Dynamo does where it asks with ``in``."""
    take_any = ConstDictVariable.getitem_const_raise_exception_if_absent

    @functools.wraps(take_any)
    def take(self: Any, tx: Any, arg: Any) -> Any:
        try:
            return take_any(self, tx, arg)
        except Exception:
            if compiles_for_lamina(tx.output):
                self.install_dict_contains_guard(tx, [arg])
            raise

    ConstDictVariable.getitem_const_raise_exception_if_absent = take  # type: ignore[method-assign]


def _tell_texts_from_numbers() -> None:
    """Let the text that an f-string makes of a number that is a symbol be another value than the number.

    Dynamo (2.11) finds both by where the number comes from, and takes the one for the other.
    """
    format_any = InstructionTranslatorBase._format_value

    @functools.wraps(format_any)
    def format_value(self: Any, spec: Any, flags: int) -> None:
        number = self.stack[-1]
        if not (isinstance(number, SymNodeVariable) and compiles_for_lamina(self.output)):
            format_any(self, spec, flags)
            return
        self.pop()
        text = lazy.LazyCache(lazy.LazySymNodeFormatString(number, spec), number.source)
        self.push(lazy.LazyVariableTracker(text, source=number.source))

    InstructionTranslatorBase._format_value = format_value  # type: ignore[method-assign, assignment]


def _find_defaults_that_change() -> None:
    """Let lists that are defaults of functions be read where they are: Dynamo takes those of numbers to be constant."""
    bind_any = functions.bind_args_cached

    @functools.wraps(bind_any)
    def bind(func: Any, tx: Any, *args: Any) -> Any:
        defaults = (*(func.__defaults__ or ()), *(func.__kwdefaults__ or {}).values())
        if all(map(_is_constant, defaults)) or not compiles_for_lamina(tx.output):
            return bind_any(func, tx, *args)
        with config.patch(skip_guards_on_constant_func_defaults=False):
            return bind_any(func, tx, *args)

    functions.bind_args_cached = bind  # type: ignore[assignment]


def _is_constant(value: object) -> bool:
    return isinstance(value, (int, float, complex, str, bytes, type(None)))


def _keep_writes_to_numbers() -> None:
    """Keep writes to tensors of one float64, whose results nobody uses, where Dynamo traces for a second time.

    It takes them for inputs whose number it knows, and removes them.
    """
    remove_any = OutputGraph.remove_tensorify_specialized_graphargs

    @functools.wraps(remove_any)
    def remove(self: Any) -> None:
        if not compiles_for_lamina(self):
            remove_any(self)
            return
        unused = [n for n in self.graph.nodes if n.op != "placeholder" and not n.users and "example_value" in n.meta]
        hidden = {node: node.meta.pop("example_value") for node in unused}
        try:
            remove_any(self)
        finally:
            for node, value in hidden.items():
                node.meta["example_value"] = value

    OutputGraph.remove_tensorify_specialized_graphargs = remove  # type: ignore[method-assign]


def _keep_unused_elements() -> None:
    """Keep what takes elements by places that tensors or lists hold where nothing uses them: they may not be there.

    Dynamo removes what nothing uses of all that brackets take, items of lists and elements of tensors.
    """
    remove_any = OutputGraph.remove_unused_graphargs

    @functools.wraps(remove_any)
    def remove(self: Any) -> None:
        kept = [n for n in self.graph.nodes if _takes_elements(n)] if compiles_for_lamina(self) else []
        for node in kept:
            node.target = _elements
        try:
            remove_any(self)
        finally:
            for node in kept:
                node.target = operator.getitem

    OutputGraph.remove_unused_graphargs = remove  # type: ignore[method-assign]


def _takes_elements(node: Any) -> bool:
    if node.target is not operator.getitem or node.users:
        return False
    value = node.args[0].meta.get("example_value") if isinstance(node.args[0], torch.fx.Node) else None
    index = node.args[1] if isinstance(node.args[1], tuple) else node.args[1:]
    held = [one.meta.get("example_value") if isinstance(one, torch.fx.Node) else one for one in index]
    return isinstance(value, torch.Tensor) and any(isinstance(one, (list, torch.Tensor)) for one in held)


def _elements(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    return tensor[index]


def _keep_data() -> None:
    """Let ``x.data`` be, as a result, what it was when it was asked for; Dynamo asks the tensor for it at the end."""
    get_any = TensorVariable.var_getattr

    @functools.wraps(get_any)
    def var_getattr(self: Any, tx: Any, name: str) -> Any:
        found = get_any(self, tx, name)
        if name == "data" and compiles_for_lamina(tx.output):
            found.source = None
        return found

    TensorVariable.var_getattr = var_getattr  # type: ignore[method-assign]


def _iterate_over_one_view() -> None:
    """Let what a program takes by iterating over a tensor be the outputs of one ``unbind``, as eager has them.

    Autograd refuses to write to one of several views that one function gives. Dynamo takes each by its index.
    """
    unpack_any = TensorVariable.unpack_var_sequence

    @functools.wraps(unpack_any)
    def unpack(self: Any, tx: Any, idxes: Any = None) -> Any:
        value = self.as_proxy().node.meta.get("example_value")
        plain = type(self) is TensorVariable and isinstance(value, torch.Tensor) and value.requires_grad
        rows: Any = value.shape[0] if plain and value.ndim else None
        known = isinstance(rows, int) or (rows is not None and rows.node.has_hint())
        if not known or (idxes is not None and len(idxes) != rows) or not compiles_for_lamina(tx.output):
            return unpack_any(self, tx, idxes)
        return self.call_method(tx, "unbind", [], {}).unpack_var_sequence(tx)

    TensorVariable.unpack_var_sequence = unpack  # type: ignore[method-assign]


def to_subclass(tensor: torch.Tensor, kind: type) -> torch.Tensor:
    """``tensor`` as one of class ``kind``: itself if it is one, such as an input that was written to."""
    return tensor if type(tensor) is kind else tensor.as_subclass(kind)


def _keep_objects() -> None:
    """Let a result of a class of tensors that is an input of the graph be that object."""
    load_any = PyCodegen.load_import_from

    @functools.wraps(load_any)
    def load(self: Any, module: str, name: str) -> None:
        if (module, name) == (utils.__name__, "to_subclass") and compiles_for_lamina(self.tx.output):
            module = __name__
        load_any(self, module, name)

    PyCodegen.load_import_from = load  # type: ignore[method-assign, assignment]


def _end_where_generators_are_thrown_into() -> None:
    """End a graph at ``generator.throw``.

    Where the generator handles that and yields, Dynamo goes on in it as if the handler had ended: what is sent to it
    next is lost. Context managers made of generators have a class of their own, and yield nothing there.
    """
    call_any = functions.LocalGeneratorObjectVariable.call_method

    @functools.wraps(call_any)
    def call(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        thrown = name == "throw" and type(self) is functions.LocalGeneratorObjectVariable
        if thrown and compiles_for_lamina(tx.output):
            unimplemented(
                gb_type="exception thrown into a generator",
                context="throw",
                explanation="What the generator does after it is not followed.",
                hints=["Send it a value that tells it what to do"],
                skip_frame=True,  # no generator is made again after a graph
            )
        return call_any(self, tx, name, *args, **kwargs)

    functions.LocalGeneratorObjectVariable.call_method = call  # type: ignore[method-assign]


def _keep_what_generators_return() -> None:
    """Let ``yield from`` have as its value what the generator returned; Dynamo (2.13) gives None after a ``yield``."""
    table = InliningGeneratorInstructionTranslator.dispatch_table
    code = dis.opmap["SEND"]
    send_any: Callable[..., Any] = table[code]  # type: ignore[assignment]

    @functools.wraps(send_any)
    def send(self: Any, inst: Any) -> None:
        sent = self.stack[-1]
        send_any(self, inst)
        ended = self.instruction_pointer == self.indexof[inst.target] and self.stack[-1] is sent
        error: Any = self.exn_vt_stack._current_exception if ended else None
        if getattr(error, "exc_type", None) is StopIteration and compiles_for_lamina(self.output):
            self.pop()
            self.push(error.args[0] if error.args else ConstantVariable.create(None))

    table[code] = send
