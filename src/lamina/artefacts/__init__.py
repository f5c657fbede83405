"""Calls that a process has captured and compiled, stored so that others load them instead.

- ``constants.py``: constants as JSON;
- ``code.py``: digests of code;
- ``names.py``: objects by the names that another process finds them by;
- ``questions.py``: what a training step asks of tensors before it runs, as JSON;
- ``table.py``: the facts of a driver as JSON, and the first call's answers to them;
- ``documents.py``: a driver of ``capture/own`` as JSON, and the driver of that;
- ``graphs.py``: captured graphs as JSON;
- ``kernels.py``: host programs and kernels as files;
- ``programs.py``: compiled graphs as JSON with files;
- ``around.py``: what goes around them, the same way;
- ``kind.py``: machine and versions;
- ``store.py``: the entries in the cache;
- ``front.py``: ``lamina.compile``;
- ``package.py``: the entries of one callable as a file.
"""
