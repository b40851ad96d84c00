"""Scheduler time slices of threads, which determine how soon a thread runs on a core shared with compute-bound threads.

Agents and aggregators sleep, are woken by each packet, work for microseconds, and poll a few times for more packets,
yielding in between (sched_yield). Linux makes a woken thread wait until the running one's slice is over, and takes a
whole slice from a thread that yields. Slices are milliseconds; on shared cores they dominate the time of an all-reduce.
A thread may request shorter ones, and is then served sooner and more often, with the same total share of the processor
time (docs.kernel.org/scheduler/sched-eevdf.html; since Linux 6.12, without privileges).
"""

import ctypes
import os
import platform
import struct
import threading

SLICE_NS = 100_000
"""The shortest slice that Linux grants."""
_SETATTR, _GETATTR = {"x86_64": (314, 315), "aarch64": (274, 275)}.get(platform.machine(), (0, 0))
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""sched_setattr(2): size, policy, flags, nice value, priority, slice (ns), and two fields of deadline scheduling."""
_SLICE = 5
_thread = threading.local()


def _syscall(number: int, *arguments: object) -> bool:
    return bool(ctypes.CDLL(None).syscall(ctypes.c_long(number), *arguments) == 0)


def _attributes() -> list[int]:
    """Return the calling thread's scheduling attributes; empty if the kernel does not support the call."""
    buffer = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if not _GETATTR or not _syscall(_GETATTR, 0, buffer, _ATTRIBUTES.size, 0):
        return []
    return list(_ATTRIBUTES.unpack(buffer.raw))


def shorten_slices() -> None:
    """Schedule the calling thread in slices of SLICE_NS. No effect if the kernel does not support such slices or
    forbids the call, and for threads with another policy than SCHED_OTHER, which alone has them."""
    if getattr(_thread, "is_short", False):
        return
    _thread.is_short = True
    attributes = _attributes()
    if attributes and attributes[1] == os.SCHED_OTHER:
        attributes[_SLICE] = SLICE_NS
        _syscall(_SETATTR, 0, ctypes.create_string_buffer(_ATTRIBUTES.pack(*attributes), _ATTRIBUTES.size), 0)
