"""CPU-bound background processes, for measurements on shared cores."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

_COMPUTE = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""
"""Script of a busy process: loops until its parent ends, even if the parent is killed."""


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start `count` processes that each keep a core busy, as far as there are cores."""
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", _COMPUTE], stdin=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            started.append(process)
        yield started
