"""Candidates for a region's kernels, and backends for a graph, timed before the first call: the fastest is taken.

``values.py`` has what is spoken of: candidates, a task, how much measuring is worth, and the choice; ``choose.py``
takes the choice from an earlier process, makes it now or leaves it to the model; ``measure.py`` times candidates
against each other; ``kernels.py`` tells whether a kernel may be timed, and makes up what it is given, for which
``checked_values.py`` proves that its checks hold.

The CPU backend has ``cpu.py`` choose the schedules of a region's kernels, on scratch memory of ``cpu_bench.py``; the
GPU backend has ``cuda.py`` do so, on that of ``cuda_bench.py``, after ``products.py`` found where a product of the
library's and a kernel for it and its readers are to be timed against each other. ``cuda_trials.py`` makes a region of
its own of each candidate there. Kernels that take far longer than their work should are searched for faster schedules:
``search.py`` says which are timed next, ``cuda_search.py`` has them compiled and timed. ``backends.py`` times a graph
compiled by several backends.

``reasons.py`` has the codes of what is decided.
"""
