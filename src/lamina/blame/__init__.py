"""Blame: which stage, rule, fusion or kernel makes a program's results differ from eager's.

Every stage of the compiler is a value that can be evaluated, so the program's own tensors are put through each of them
in turn; the first that gives other values than the one before is to blame, and what it did is halved until a single
rewrite, sub-pass or kernel is left. ``observed`` compiles with a record that keeps what all that takes, ``rewrites``
and ``differentiation`` look at graphs, ``regions`` at loop programs, plans and kernels, and ``bisection`` puts them
together.
"""
