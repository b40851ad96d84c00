"""The time slices of a thread: how soon it has a core beside threads that compute without end.

Agents and aggregators sleep, are woken by each packet, work for microseconds, and look a few times whether more has
come, giving way in between (sched_yield). Linux lets a woken thread wait until the running one's slice is over, and
takes a whole slice from whoever gives way. Slices are milliseconds; on cores that others use, all-reduces consist of
them. A thread may ask for shorter ones, and is then served sooner and more often, with the same share of the processor
time in all (docs.kernel.org/scheduler/sched-eevdf.html; since Linux 6.12, without privileges).
"""

import ctypes
import os
import platform
import struct
import threading

SLICE_NS = 100_000
"""The shortest that Linux grants."""
_SETATTR, _GETATTR = {"x86_64": (314, 315), "aarch64": (274, 275)}.get(platform.machine(), (0, 0))
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""sched_setattr(2): size, policy, flags, nice value, priority, slice (ns), and two of deadline scheduling."""
_SLICE = 5
_thread = threading.local()


def _syscall(number: int, *arguments: object) -> bool:
    return bool(ctypes.CDLL(None).syscall(ctypes.c_long(number), *arguments) == 0)


def _attributes() -> list[int]:
    """The calling thread's; empty where the kernel has none."""
    buffer = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if not _GETATTR or not _syscall(_GETATTR, 0, buffer, _ATTRIBUTES.size, 0):
        return []
    return list(_ATTRIBUTES.unpack(buffer.raw))


def shorten_slices() -> None:
    """Have the calling thread scheduled in slices of SLICE_NS. Without effect where the kernel knows no such slices or
    forbids the call, and for threads whose policy somebody has chosen (only SCHED_OTHER has them)."""
    if getattr(_thread, "is_short", False):
        return
    _thread.is_short = True
    attributes = _attributes()
    if attributes and attributes[1] == os.SCHED_OTHER:
        attributes[_SLICE] = SLICE_NS
        _syscall(_SETATTR, 0, ctypes.create_string_buffer(_ATTRIBUTES.pack(*attributes), _ATTRIBUTES.size), 0)
