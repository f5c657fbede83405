"""What generated code may import: loading, caching, memory and launching of compiled kernels."""
