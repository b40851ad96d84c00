"""Python's garbage collector, while a trace is read or joined: millions of tuples and lists are made then, none of them
in a circle, and looking through them again and again takes a quarter of the time.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """No collections, as a context or around a function; memory is given back as usual when nothing refers to it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
