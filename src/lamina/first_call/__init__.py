"""The option verify="first": each compiled region's first call is held against its graph run by ATen.

The driver asks for it around a region's callable. ``check.py`` makes the call and judges its results; ``steps.py`` runs
the region's plan kernel by kernel, to name the first one that differs; ``base/region_check.py`` is what is found, as a
value.

``reasons.py`` has the codes of what is decided.
"""
