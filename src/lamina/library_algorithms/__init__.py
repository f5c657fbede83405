"""Algorithms and epilogues of the library's matrix products on a GPU that torch does not ask for, chosen by a clock.

``product_operations.py`` and ``gelu_operations.py`` have the operations, with their specification: a product by a given
algorithm, and a product with GELU or its gradient. The driver has a region's graph rewritten by ``gelu_rewrite.py``,
which asks ``gelu_choice.py``; the GPU backend gives the products of a plan their algorithms by ``algorithm_choice.py``.
Both choices time what they may choose by ``clock.py``. ``cublas_lt.py`` calls the library, and ``cublas_products.py``
does so for host programs, which import it.

``reasons.py`` has the codes of what is decided.
"""
