"""A call in a process of its own that is not a fork of pytest's: there gRPC's threads and others may be running, and a
child that has them only in its memory is aborted or waits for a lock of theirs.
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

DEADLINE_S = 100


def in_fresh_process(function: Callable[..., Any], *args: Any, prepare: Callable[[], None] | None = None) -> Any:
    """function(*args), after prepare(), in a new process: what it returns or raises. All of it must pickle."""
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=prepare) as pool:
        return pool.submit(function, *args).result(timeout=DEADLINE_S)
