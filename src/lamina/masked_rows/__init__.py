"""Attention's rows whose keys are all masked, put right in the results of the library's attention.

``operations.py`` says what such rows are, and has the operations that put them right, with their specification.
``attention.py`` is what the rule for attention writes in the place of scores, softmax and product; ``lowering.py``
has the operations write to the library's own results; ``kernels.py`` runs them on a GPU, and host programs import it;
``units.py`` tells the GPU backend which of those kernels a plan will launch.
"""
