"""Names that are private in torch or may move, as texts: of settings, functions and modules, and of attributes."""

from __future__ import annotations

__all__ = [
    "ALLOW_RNN",
    "BUFFERS",
    "CAPTURE_NUMBERS",
    "CAPTURE_SIZES_OF_DATA",
    "CONTEXTLIB",
    "DISPATCHERS",
    "EQUAL_SIZES_ARE_ONE",
    "FIXED_PARAMETER_SIZES",
    "FUNCTIONS",
    "GRAPH_BREAK",
    "IGNORED_LOGGING_FUNCTIONS",
    "LISTS_OF_TENSORS",
    "MARK_DYNAMIC",
    "MARK_STATIC",
    "RECOMPILE_LIMIT",
    "REGISTRIES",
    "SKIP_FRAME",
    "STEP_UNSUPPORTED",
    "SUBMODULES",
    "SYMBOLIC_MODULE_INTEGERS",
    "TRACE_AUTOGRAD",
]

ALLOW_RNN = "torch._dynamo.config.allow_rnn"
CAPTURE_NUMBERS = "torch._dynamo.config.capture_scalar_outputs"
CAPTURE_SIZES_OF_DATA = "torch._dynamo.config.capture_dynamic_output_shape_ops"
CONTEXTLIB = "torch.utils._contextlib"
DISPATCHERS = "torch._jit_internal"
EQUAL_SIZES_ARE_ONE = "torch.fx.experimental._config.use_duck_shape"
FIXED_PARAMETER_SIZES = "torch._dynamo.config.force_parameter_static_shapes"
FUNCTIONS = "torch._VF"
GRAPH_BREAK = "torch._dynamo.graph_break"
IGNORED_LOGGING_FUNCTIONS = "torch._dynamo.config.ignore_logging_functions"
LISTS_OF_TENSORS = "torch.utils._foreach_utils"
MARK_DYNAMIC = "torch._dynamo.mark_dynamic"
MARK_STATIC = "torch._dynamo.mark_static"
RECOMPILE_LIMIT = "torch._dynamo.config.recompile_limit"
SKIP_FRAME = "torch._dynamo.skip_frame"
BUFFERS = "_buffers"
SUBMODULES = "_modules"
REGISTRIES = ("_parameters", BUFFERS, SUBMODULES)
"""The attributes in which an ``nn.Module`` keeps its parameters, buffers and modules, by their names."""
STEP_UNSUPPORTED = "torch._dynamo.step_unsupported"
SYMBOLIC_MODULE_INTEGERS = "torch._dynamo.config.allow_unspec_int_on_nn_module"
TRACE_AUTOGRAD = "torch._dynamo.config.trace_autograd_ops"
