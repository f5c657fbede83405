"""Graphs cut where a number becomes known that only a run tells, or a graph is called; each piece is compiled alone.

The driver asks for it before lowering. ``node_kinds.py`` says what each node of a functional graph is, ``cut.py`` cuts
it in segments and the calls between them; ``control_flow.py`` finds the graphs that such calls hold: branches, bodies
of loops, steps of scans; ``pieces.py`` puts what the driver compiled in the place of its graph, and takes the numbers
among a graph's inputs and results.

``reasons.py`` has the codes of what is decided.
"""
