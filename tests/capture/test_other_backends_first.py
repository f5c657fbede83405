"""What Lamina corrects in traces is corrected where another backend has compiled something before."""

import subprocess
import sys
import textwrap

PROGRAM = """
    import collections
    import torch

    def f(x, held, error, value):
        held.append(7)
        held.appendleft(9)
        held.rotate(1)
        return x * held[0], list(held), str(error), range(3)[1], isinstance(value, int), max(value, 2.0)

    def arguments():
        return torch.ones(2), collections.deque([1, 2], maxlen=3), KeyError("k"), 3.0

    torch.compile(f, backend="eager")(*arguments())
    torch._dynamo.reset()

    import lamina

    wanted, found = f(*arguments()), lamina.compile(f)(*arguments())
    assert torch.equal(wanted[0], found[0]) and wanted[1:] == found[1:], (wanted, found)
"""


def test_corrections_hold_where_another_backend_compiled_before():
    subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM)], check=True, timeout=300)
