"""C++ kernels with OpenMP."""
