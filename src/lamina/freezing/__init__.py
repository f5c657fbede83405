"""The option freeze: what parameters and buffers alone determine is computed once, for inference.

Rewrites of a region's graph, which ``rewrite/order.py`` lists, let more be determined so: ``folding.py`` takes batch
norms and other factors of channels into weights, ``projections.py`` makes one product of several with one input. The
driver then asks ``region.py``, which cuts the graph in two by ``cut.py``: one that computes from parameters alone, by
ATen, and one that is compiled. ``frozen.py`` runs both, and keeps what the first gave until a parameter changes.

``reasons.py`` has the codes of what is decided.
"""
