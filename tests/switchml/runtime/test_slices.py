"""Short time slices for a thread: what changes, and what does not."""

import os
import threading
from collections.abc import Callable

from switchml.runtime import slices


def in_a_thread(action: Callable[[], list[int]]) -> list[int]:
    """What `action` returns in a thread of its own, which may change how that is scheduled."""
    results: list[list[int]] = []
    thread = threading.Thread(target=lambda: results.append(action()))
    thread.start()
    thread.join()
    return results[0]


def slice_ns() -> int:
    """The calling thread's slice in nanoseconds; 0 where the kernel does not tell."""
    attributes = slices._attributes()
    return attributes[slices._SLICE] if attributes else 0


def shortened(policy: int) -> list[int]:
    """A thread's slice before and after, its policy and its nice value."""
    if policy != os.SCHED_OTHER:
        os.sched_setscheduler(0, policy, os.sched_param(0))
    before = slice_ns()
    slices.shorten_slices()
    nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    return [before, slice_ns(), os.sched_getscheduler(0), nice]


def test_slices_are_short_and_all_else_stays():
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    before, after, *others = in_a_thread(lambda: shortened(os.SCHED_OTHER))
    assert after == (slices.SLICE_NS if before else 0), "a kernel that tells of slices grants short ones"
    assert others == [os.SCHED_OTHER, nice]
    assert in_a_thread(lambda: [slice_ns()]) == [before], "other threads keep theirs"


def test_a_policy_that_somebody_has_chosen_stays():
    before, after, policy, _ = in_a_thread(lambda: shortened(os.SCHED_IDLE))
    assert policy == os.SCHED_IDLE and before == after


def test_a_machine_without_the_call(monkeypatch):
    monkeypatch.setattr(slices, "_GETATTR", 0)
    before, after, *_ = in_a_thread(lambda: shortened(os.SCHED_OTHER))
    assert before == after == 0
