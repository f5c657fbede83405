"""Triton code generation: GPU kernels of a Plan as readable Python modules."""
