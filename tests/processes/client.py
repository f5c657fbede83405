"""The program in the place of Python's: asks the server for a copy of itself, and ends as that one ends.

Run without site packages, of which it needs none: ``python -S -E client.py SOCKET words...``.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import sys


def given(number: int) -> bool:
    """Whether an open file is there for the program, as is one end of a pipe; those that Python opens are not."""
    try:
        return os.get_inheritable(number)
    except OSError:  # that of the list, which is closed by now
        return False


def main() -> int:
    place, *words = sys.argv[1:]
    more = [n for n in map(int, os.listdir("/proc/self/fd")) if n > 2 and given(n)]
    asked = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ), "more": more}
    request = json.dumps(asked).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(place)
        streams = array.array("i", (0, 1, 2, *more))
        server.sendmsg([len(request).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        server.sendall(request)
        for stream in (0, 1, *more):  # the copy's alone: who waits for their ends waits for it
            os.close(stream)
        answer = server.recv(8)
    if not answer:
        print("the server of processes has ended", file=sys.stderr)
        return 70
    status = int.from_bytes(answer, "big", signed=True)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    os._exit(main())
