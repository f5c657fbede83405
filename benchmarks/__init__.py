"""Measurements. Run one as ``python -m benchmarks.NAME`` from the root of the checkout."""
