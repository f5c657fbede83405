"""The option compare_eager: first calls of a compiled graph are taken in turns with eager, and what is faster stays.

The driver asks for it around a captured graph. ``trial.py`` says whether there is a comparison and remembers in the
cache how it ended; ``wanted.py`` decides from the graph and its plans whether the two ways may be exchanged and whether
estimates leave a doubt; ``turns.py`` makes the calls; ``clock.py`` times them, on a CPU or a GPU; ``contest.py`` is the
sequential test that ends them.

``reasons.py`` has the codes of what is decided.
"""
