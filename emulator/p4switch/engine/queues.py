"""The packet path's operations on queues and copies, as kernels (documented in packet_path.engine.Operations).

Packets wait in two FIFO rings, `returned` and `queued`. If both are empty, a packet stays in the frame until egress
takes it, which is the common case. Rate-limited queues are served from outside (pacing.py), which sets the number of
packets that may leave the ring."""

from emulator.p4switch.engine import frames, pool
from emulator.p4switch.engine.layout import CELL
from emulator.p4switch.engine.plan import PLAN
from emulator.p4switch.engine.raw import copy_block, ld64, st64
from switchml.runtime.jit import kernel

RECORD_BYTES = 32
"""Size of packet_path.engine.Record."""


# Rings


@kernel
def _append(plan: int, packet: int, ring: int) -> int:
    """Append a copy of the packet to the ring whose address is in the plan's word `ring`. Returns its address in the
    ring, 0 if the ring is full."""
    n, size = ld64(plan + ring + 16), ld64(plan + PLAN.ring_size)
    if n == size:
        st64(plan + PLAN.lost, ld64(plan + PLAN.lost) + 1)
        return 0
    to = ld64(plan + ring) + (ld64(plan + ring + 8) + n) % size * ld64(plan + PLAN.ring_stride)
    copy_block(to, packet, ld64(plan + PLAN.phv_end))
    st64(plan + ring + 16, n + 1)
    return to


@kernel
def _take(plan: int, ring: int) -> int:
    """Move the first packet of a non-empty ring to the frame; returns 0 after a program abort."""
    first, n = ld64(plan + ring + 8), ld64(plan + ring + 16) - 1
    if ld64(plan + PLAN.status):
        return 0
    packet = ld64(plan + PLAN.frame)
    copy_block(packet, ld64(plan + ring) + first * ld64(plan + PLAN.ring_stride), ld64(plan + PLAN.phv_end))
    st64(plan + ring + 16, n)
    st64(plan + ring + 8, (first + 1) % ld64(plan + PLAN.ring_size) if n else 0)
    return packet


@kernel
def push(plan: int, packet: int) -> bool:
    n_waiting = ld64(plan + PLAN.queued_n) + ld64(plan + PLAN.returned_n)
    if n_waiting == 0 and ld64(plan + PLAN.is_paced) == 0:
        st64(plan + PLAN.is_held, 1)
        return True
    return _append(plan, packet, PLAN.queued) != 0


@kernel
def push_copy(plan: int, packet: int) -> None:
    copied = _append(plan, packet, PLAN.queued)
    if copied:
        frames.forget_requests(copied)
        pool.become_copy(plan, copied)


@kernel
def next_queued(plan: int) -> int:
    if ld64(plan + PLAN.is_held):
        st64(plan + PLAN.is_held, 0)
        return ld64(plan + PLAN.frame)
    if ld64(plan + PLAN.queued_n) == 0:  # the common case, without a call
        return 0
    if ld64(plan + PLAN.is_paced):
        n_released = ld64(plan + PLAN.n_released)
        if n_released == 0:
            return 0
        st64(plan + PLAN.n_released, n_released - 1)
    return _take(plan, PLAN.queued)


@kernel
def push_returned(plan: int, packet: int) -> None:
    _append(plan, packet, PLAN.returned)


@kernel
def next_returned(plan: int) -> int:
    return _take(plan, PLAN.returned) if ld64(plan + PLAN.returned_n) else 0


@kernel
def resume(plan: int, aside: int) -> None:
    packet = ld64(plan + PLAN.frame)
    if ld64(plan + PLAN.is_held):
        st64(plan + PLAN.is_held, 0)
        _append(plan, packet, PLAN.queued)
    copy_block(packet, aside, ld64(plan + PLAN.phv_end))


@kernel
def queue_length(plan: int, port: int, priority: int) -> int:
    return ld64(plan + PLAN.queue_length)


@kernel
def note(plan: int, packet: int, note: int, value: int) -> None:
    """Nothing: packet logs are written by the interpreter only."""


@kernel
def refuse_priority(plan: int) -> None:
    st64(plan + PLAN.bad_priority, ld64(plan + PLAN.bad_priority) + 1)


@kernel
def drop_waiting(plan: int) -> None:
    n_waiting = ld64(plan + PLAN.is_held) + ld64(plan + PLAN.returned_n) + ld64(plan + PLAN.queued_n)
    st64(plan + PLAN.lost, ld64(plan + PLAN.lost) + n_waiting)
    st64(plan + PLAN.is_held, 0)
    st64(plan + PLAN.returned_n, 0)
    st64(plan + PLAN.queued_n, 0)


@kernel
def send(plan: int, packet: int, port: int) -> None:
    n = ld64(plan + PLAN.n_records)
    if n == ld64(plan + PLAN.max_records):
        st64(plan + PLAN.lost, ld64(plan + PLAN.lost) + 1)
        return
    length, truncate = ld64(packet + CELL.length), ld64(packet + CELL.truncate)
    record = ld64(plan + PLAN.records) + RECORD_BYTES * n
    st64(record, port)
    st64(record + 8, ld64(packet + CELL.packet))
    st64(record + 16, min(length, truncate - 1) if truncate else length)
    st64(record + 24, ld64(plan + PLAN.source))
    st64(plan + PLAN.n_records, n + 1)


# Copies


@kernel
def n_copies(plan: int, group: int) -> int:
    return ld64(ld64(plan + PLAN.groups) + 16 * group + 8) if 0 <= group < ld64(plan + PLAN.n_groups) else 0


@kernel
def _copy(plan: int, group: int, number: int) -> int:
    return ld64(ld64(plan + PLAN.groups) + 16 * group) + 16 * number


@kernel
def copy_port(plan: int, group: int, number: int) -> int:
    return ld64(_copy(plan, group, number))


@kernel
def copy_instance(plan: int, group: int, number: int) -> int:
    return ld64(_copy(plan, group, number) + 8)


@kernel
def _session(plan: int, session: int) -> int:
    return ld64(plan + PLAN.sessions) + 24 * session


@kernel
def has_session(plan: int, session: int) -> bool:
    return 0 <= session < ld64(plan + PLAN.n_sessions) and ld64(_session(plan, session)) != 0


@kernel
def session_port(plan: int, session: int) -> int:
    return ld64(_session(plan, session) + 8)


@kernel
def session_group(plan: int, session: int) -> int:
    return ld64(_session(plan, session) + 16)
