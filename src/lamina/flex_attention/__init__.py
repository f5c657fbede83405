"""Calls of ``flex_attention`` on a CPU, tile by tile, with the user's functions of scores as part of our kernels.

``tables.py`` is a rewrite of joint graphs, listed in ``rewrite/order.py``: it leaves out the tables of block masks. The
driver asks ``tiles.py`` for the calls between the segments of a graph: it cuts each in tiles, and calls what the driver
compiled of a tile; ``graphs.py`` writes one tile as a graph.

``reasons.py`` has the codes of what is decided.
"""
