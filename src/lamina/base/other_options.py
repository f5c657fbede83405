"""Names that other compilers and tuners have for options, and what Lamina has for each."""

from __future__ import annotations

__all__ = ["told_for"]

_ARGUMENT = "it is an argument of lamina.compile, beside options"
_TUNING = 'mode="max-autotune" times candidates'
_ALWAYS = "Lamina does so wherever its cost model expects a gain, and has no option for it"
_GRAPHS = 'mode="reduce-overhead" records CUDA graphs'
_EAGER = 'numerics="eager" rounds and draws as eager does'
_SHOWN = "dump_dir writes every stage to files, and lamina report makes a page of them"
_AUTOCAST = "put the call into torch.autocast, which is captured with it"

_OURS = {
    **dict.fromkeys(("backend", "mode", "dynamic", "fullgraph", "disable"), _ARGUMENT),
    **dict.fromkeys(("max_autotune", "max_autotune_pointwise", "max_autotune_gemm"), _TUNING),
    **dict.fromkeys(("max_autotune_gemm_backends", "max_autotune_conv_backends", "autotune_in_subproc"), _TUNING),
    **dict.fromkeys(("coordinate_descent_tuning", "autotune_local_cache", "benchmark_kernel", "strategy"), _TUNING),
    **dict.fromkeys(("epilogue_fusion", "prologue_fusion", "aggressive_fusion", "shape_padding"), _ALWAYS),
    **dict.fromkeys(("layout_optimization", "combo_kernels", "split_reductions", "inplace_buffers"), _ALWAYS),
    **dict.fromkeys(("triton.cudagraphs", "triton.cudagraph_trees", "cudagraphs"), _GRAPHS),
    **dict.fromkeys(("emulate_precision_casts", "fallback_random", "eager_numerics.division_rounding"), _EAGER),
    **dict.fromkeys(("trace.enabled", "trace.graph_diagram", "trace.output_code", "output_code"), _SHOWN),
    **dict.fromkeys(("autocast_enabled", "autocast_dtype"), _AUTOCAST),
    "freezing": 'the option is freeze, as in options={"freeze": True}',
    "pattern_matcher": "without_rules names rules that are not to be used",
    "joint_graph_constant_folding": "without_rules names rules that are not to be used",
    "post_grad_custom_post_pass": "passes=Passes(lowered=function), of lamina.extend",
    "post_grad_custom_pre_pass": "passes=Passes(partitioned=function), of lamina.extend",
    "joint_custom_pre_pass": "passes=Passes(joint=function), of lamina.extend",
    "joint_custom_post_pass": "passes=Passes(joint=function), of lamina.extend",
    "pre_grad_custom_pass": "passes=Passes(captured=function), of lamina.extend",
    "force_disable_caches": 'options={"cache": False}',
    "fx_graph_cache": 'options={"cache": False} switches the on-disk cache off; it is on by default',
    "compile_threads": "the option is jobs: C++ compilers at once",
    "cpp.simdlen": "the option is simd: auto, avx512, avx2 or plain",
    "cpp.cxx": "the option is cxx",
    "cpp.threads": "kernels use torch.get_num_threads() threads; set them with torch.set_num_threads",
    "cpp_wrapper": "a host program of Lamina is one flat Python function; there is none in C++",
    "guard_filter_fn": "Lamina drops no guard",
}


def told_for(name: object) -> str:
    """What Lamina has for the option that another compiler calls ``name``, as a sentence; "" if it is none's."""
    told = _OURS.get(name) if isinstance(name, str) else None
    return "" if told is None else f"for {name}: {told}"
