"""The fastest verified way to run a model: candidates, each built, verified and timed in a process of its own.

``lamina.tune`` is ``search.py``: it makes samples of the inputs (``samples.py``), lists candidates (``candidates.py``)
and gives each to a process (``process.py``, ``worker.py``), which builds it (``building.py``), holds it against eager
and double precision (``verification.py``), sees that it leaves torch's settings alone (``settings.py``) and times it in
turns with eager (``timing.py``, ``statistics.py``, ``memory.py``). What became of a candidate is a ``Row``
(``values.py``); rows are kept in a journal (``journal.py``) under what they depend on (``identity.py``). ``choice.py``
picks one row by an ``Objective`` (``objective.py``), and ``result.py`` is what the user gets, also as a file
(``files.py``). ``table.py`` and ``progress.py`` are what a terminal shows, ``page.py`` and ``charts.py`` a page;
``programs.py`` has what is called. Modules of the model (``parts.py``) that take the time (``shares.py``) get
candidates of their own, and those that help are put together (``mixes.py``). ``fleet.py`` spreads candidates over the
machines of a Ray cluster.
"""
