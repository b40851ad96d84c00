"""CPU affinity of the threads of a divided job.

Linux wakes a thread on the core of its waker unless another core is idle, and leaves it there. Threads that exchange
packets therefore accumulate on one core when other processes keep the remaining ones busy, and occasionally on an idle
machine. Parts of a job (docs/protocol.md, section 7) do not communicate with each other, so each has its own share of
the cores.
"""

import os
from contextlib import suppress


def share_of_cores(part: int, parts: int) -> set[int]:
    """Return the process's cores that are assigned to part `part` of a job's `parts`: consecutive ones, at least
    one."""
    cores = sorted(os.sched_getaffinity(os.getpid()))  # of the main thread: others may be confined
    first, end = part * len(cores) // parts, (part + 1) * len(cores) // parts
    return set(cores[first : max(end, first + 1)])


def confine(thread: int, cores: set[int]) -> None:
    """Restrict the thread with this kernel id (`threading.Thread.native_id`) to `cores`. No effect if it has ended or
    the machine forbids it."""
    with suppress(OSError):
        os.sched_setaffinity(thread, cores)


def move_to(cores: set[int]) -> None:
    """Move the calling thread to one of `cores`, without restricting it to them. (A permanent restriction would be
    inherited by threads that callbacks start, such as OpenMP's.) No effect under the conditions of `confine`."""
    before = os.sched_getaffinity(0)
    confine(0, before & cores or before)
    confine(0, before)
