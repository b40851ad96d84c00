"""On which cores the threads of a divided job run.

Linux wakes a thread on the core of whoever wakes it unless another one is idle, and leaves it there. Threads that
exchange packets therefore gather on one core where other processes keep the rest from being idle, and now and then
where nothing else runs. Parts of a job (docs/protocol.md, section 7) exchange nothing with each other, so each has its
own share of the cores.
"""

import os
from contextlib import suppress


def share_of_cores(part: int, parts: int) -> set[int]:
    """Those of the process's cores that are for the threads of number `part` of a job's `parts`: neighbours, and at
    least one."""
    cores = sorted(os.sched_getaffinity(os.getpid()))  # the main thread's: others may be confined
    first, end = part * len(cores) // parts, (part + 1) * len(cores) // parts
    return set(cores[first : max(end, first + 1)])


def confine(thread: int, cores: set[int]) -> None:
    """Have the thread of that kernel id (`threading.Thread.native_id`) run on no other cores. Without effect where it
    has ended or the machine forbids it."""
    with suppress(OSError):
        os.sched_setaffinity(thread, cores)


def move_to(cores: set[int]) -> None:
    """Move the calling thread to one of `cores`; it may leave again. (A lasting choice would be inherited by threads
    that callbacks start, such as OpenMP's.) Without effect as `confine`."""
    before = os.sched_getaffinity(0)
    confine(0, before & cores or before)
    confine(0, before)
