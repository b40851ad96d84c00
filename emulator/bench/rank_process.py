"""What every process of a rank in a network namespace does around its work: it ends with its parent, and what goes
wrong becomes a `Failure` on the pipe.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing import connection

from emulator.bench.rank import Failure
from emulator.testbed.namespaces import die_with_parent, enter
from switchml.errors import JobError


def run(rank: int, namespace: str, pipe: connection.Connection, serve: Callable[[], None]) -> None:
    """Call `serve` in `namespace` ("": where the process is). Does not return if that fails. Namespaces stay as long
    as processes live in them: this one must not survive its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent decides what ends when
    die_with_parent(os.getppid())
    try:
        if namespace:
            enter(namespace)
        serve()
    except (EOFError, ConnectionError):
        os._exit(1)  # the parent is gone or does not want us any more
    except Exception as error:
        message = (str(error).strip() or type(error).__name__).split("\n")[0]
        is_consequence = isinstance(error, JobError) or "onnection closed" in message or "onnection reset" in message
        pipe.send(Failure(rank, type(error).__name__, message, is_consequence))
        os._exit(1)  # leaving in good order would wait for ranks that wait for us
