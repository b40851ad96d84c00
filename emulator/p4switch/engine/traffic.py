"""simple_switch's packet path, compiled: ingress, clones, resubmit, multicast, egress, recirculate, for a batch of
frames.

interpreter.path is the same in plain Python, in the same order, with the reasons. One frame is the packet being worked
on; a packet that waits is a copy of the frame's system cells and headers in a ring: `returned` are packets on their way
to ingress, `queued` those on their way to egress. This path doesn't serve queues with a rate."""

import numpy as np

from emulator.p4switch.engine import pool
from emulator.p4switch.engine.layout import CELL, CTX
from emulator.p4switch.engine.plan import (  # fmt: skip
    CHECKSUM_ERROR,
    DEQ_DELTA,
    DEQ_DEPTH,
    EGRESS_PORT,
    EGRESS_RID,
    EGRESS_SPEC,
    EGRESS_TIME,
    ENQ_DEPTH,
    ENQ_TIME,
    INGRESS_PORT,
    INGRESS_TIME,
    INSTANCE_TYPE,
    MCAST_GRP,
    PACKET_LENGTH,
    PARSER_ERROR,
    PLAN,
    PRIORITY,
    QID,
    P,
)
from emulator.p4switch.engine.raw import call2, clear_block, copy_block, ld64, st8, st64
from emulator.p4switch.engine.vm.bits import copy, load_bits, store_bits
from emulator.p4switch.engine.vm.vm import STUCK
from switchml.runtime.jit import kernel

NORMAL, INGRESS_CLONE, EGRESS_CLONE, COALESCED, RECIRCULATED, REPLICATED, RESUBMITTED = (np.int64(i) for i in range(7))
_ZERO = np.int64(0)
MAX_PASSES = 1 << 16
ENDS, WAITS = np.int64(-1), np.int64(-2)
RECORD_WORDS = 4
"""A frame that leaves: port, address, bytes, number of the frame that came in."""

_CONTEXT, _PACKET, _LENGTH, _CURSOR, _OUT = (CELL[name] for name in ("context", "packet", "length", "cursor", "out"))
_EXIT, _ERROR, _CHECKSUM, _STATES, _LOOPS = (
    CELL[name] for name in ("exit", "error", "checksum_error", "states", "loops")
)
_CLONE, _CLONE_LIST, _RESUBMIT, _RECIRCULATE = (
    CELL[name] for name in ("clone", "clone_list", "resubmit", "recirculate")
)
_DIGEST, _TRUNCATE, _REG, _INGRESS_LENGTH = (
    CELL[name] for name in ("digest", "truncate", "packet_length", "ingress_length")
)
_EVENT_AT = CTX["event_at"]
_NOW, _START_LENGTH, _PORT = CELL["now"], CELL["start_length"], CELL["ingress_port"]
(
    _FRAME, _PHV, _PHV_END, _METADATA, _METADATA_END, _META_HEADERS, _N_META_HEADERS, _SAVED, _NO_ERROR, _PARSER,
    _INGRESS, _EGRESS, _DEPARSER, _DIGESTS, _N_DIGESTS, _FIELD_LISTS, _N_FIELD_LISTS, _DROP_PORT, _N_PRIORITIES,
    _GROUPS, _N_GROUPS, _SESSIONS, _RETURNED, _RETURNED_FIRST, _RETURNED_N, _QUEUED, _QUEUED_FIRST, _QUEUED_N,
    _RING_SIZE, _RING_STRIDE, _OUT_END, _RECORDS, _N_RECORDS, _MAX_RECORDS, _STATUS, _LOST, _IN_ADDRESS, _IN_LENGTH,
    _IN_PORT, _PLAN_NOW, _SOURCE, _MAX_EVENTS, _RESERVE, _BAD_PRIORITY, _VM, _HEADER_BYTES, _POOL, _, _,
) = (P[name] for name in PLAN)  # fmt: skip


@kernel
def _set(plan, frame, field, value):
    offset = ld64(plan + field)
    if offset >= 0:
        st64(frame + offset, value & ld64(plan + field + 8))


@kernel
def _get(plan, frame, field):
    offset = ld64(plan + field)
    return ld64(frame + offset) if offset >= 0 else 0


@kernel
def _begin(plan, frame, address, length, port, ingress_length):
    """A packet of which nothing is parsed and all metadata is 0, or from the pool."""
    if ld64(plan + _POOL):
        pool.begin(plan, frame)
    else:
        clear_block(frame + 8, ld64(plan + _PHV_END) - 8)
    headers = ld64(plan + _META_HEADERS)
    for i in range(ld64(plan + _N_META_HEADERS)):
        st8(frame + ld64(headers + 8 * i), 1)
    st64(frame + _PACKET, address)
    st64(frame + _LENGTH, length)
    st64(frame + _REG, length)
    st64(frame + _INGRESS_LENGTH, ingress_length)
    st64(frame + _PORT, port)
    st64(frame + _NOW, ld64(plan + _PLAN_NOW))


@kernel
def _run(plan, frame, pc):
    """Run a stage; False if the packet must be dropped."""
    st64(frame + _LOOPS, 0)
    status = call2(ld64(plan + _VM), frame, ld64(plan + pc))
    if status:
        if status == STUCK:
            st64(plan + _LOST, ld64(plan + _LOST) + 1)
        else:
            st64(plan + _STATUS, status)
        return False
    return True


@kernel
def _parse(plan, frame):
    st64(frame + _CURSOR, 0)
    st64(frame + _ERROR, ld64(plan + _NO_ERROR))
    st64(frame + _CHECKSUM, 0)
    st64(frame + _STATES, 0)
    return _run(plan, frame, _PARSER)


@kernel
def _push(plan, frame, ring, port, priority):
    """Append the packet to a ring, whose address is in the plan's word `ring`: where it lies there, 0 if there is no
    room."""
    n, size = ld64(plan + ring + 16), ld64(plan + _RING_SIZE)
    if n == size:
        st64(plan + _LOST, ld64(plan + _LOST) + 1)
        return 0
    at = (ld64(plan + ring + 8) + n) % size
    to = ld64(plan + ring) + at * ld64(plan + _RING_STRIDE)
    st64(to, port)
    st64(to + 8, priority)
    copy_block(to + 16, frame, ld64(plan + _PHV_END))
    st64(plan + ring + 16, n + 1)
    return to + 16


@kernel
def _pop(plan, frame, ring):
    """Take the first packet of a ring into the frame; the address of what was pushed with it."""
    first, n = ld64(plan + ring + 8), ld64(plan + ring + 16) - 1
    entry = ld64(plan + ring) + first * ld64(plan + _RING_STRIDE)
    copy_block(frame, entry + 16, ld64(plan + _PHV_END))
    st64(plan + ring + 16, n)
    st64(plan + ring + 8, (first + 1) % ld64(plan + _RING_SIZE) if n else 0)
    return entry


@kernel
def _enqueue(plan, frame, port):
    """Mark a packet as queued; its priority, or -1 if it is dropped."""
    priority = _get(plan, frame, PRIORITY)
    if priority >= ld64(plan + _N_PRIORITIES):
        st64(plan + _BAD_PRIORITY, ld64(plan + _BAD_PRIORITY) + 1)
        return -1
    _set(plan, frame, ENQ_TIME, ld64(plan + _PLAN_NOW))
    _set(plan, frame, ENQ_DEPTH, _ZERO)
    return priority


@kernel
def _push_to_egress(plan, frame, port):
    """As `_push`; 0 also if the packet is dropped."""
    priority = _enqueue(plan, frame, port)
    return _push(plan, frame, _QUEUED, port, priority) if priority >= 0 else 0


@kernel
def _forget_requests(frame):
    st64(frame + _CLONE, 0)
    st64(frame + _DIGEST, 0)
    st64(frame + _RESUBMIT, 0)
    st64(frame + _RECIRCULATE, 0)
    st64(frame + _TRUNCATE, 0)
    st64(frame + _EXIT, 0)


@kernel
def _multicast(plan, frame, group):
    """Queue a copy for each port of a group; copies carry no requests."""
    _forget_requests(frame)
    if group >= ld64(plan + _N_GROUPS):
        return
    row = ld64(plan + _GROUPS) + 16 * group
    copies, n = ld64(row), ld64(row + 8)
    for i in range(n):
        _set(plan, frame, EGRESS_RID, ld64(copies + 16 * i + 8))
        copied = _push_to_egress(plan, frame, ld64(copies + 16 * i))
        if copied:
            pool.become_copy(plan, copied)


@kernel
def _clear_metadata(plan, frame):
    start = ld64(plan + _METADATA)
    clear_block(frame + start, ld64(plan + _METADATA_END) - start)


@kernel
def _take_over(plan, frame, other, field_list, instance_type):
    """Reset a copy's metadata but for the fields of a list, which come from another packet."""
    _clear_metadata(plan, frame)
    if field_list < ld64(plan + _N_FIELD_LISTS):
        row = ld64(plan + _FIELD_LISTS) + 16 * field_list
        piece = ld64(row)
        for _ in range(ld64(row + 8)):
            offset, bit, width = ld64(piece), ld64(piece + 8), ld64(piece + 16)
            if bit == 0 and width & 7 == 0:
                copy(frame + offset, other + offset, width >> 3)
            else:
                while width > 0:
                    part = min(width, 32)
                    store_bits(
                        frame + offset + (bit >> 3),
                        bit & 7,
                        part,
                        load_bits(other + offset + (bit >> 3), bit & 7, part),
                    )
                    bit += part
                    width -= part
            piece += 24
    _set(plan, frame, INSTANCE_TYPE, instance_type)


@kernel
def _save(plan, frame):
    """Put the packet aside; where it is."""
    saved = ld64(plan + _SAVED)
    copy_block(saved, frame, ld64(plan + _PHV_END))
    return saved


@kernel
def _restore(plan, frame):
    copy_block(frame, ld64(plan + _SAVED), ld64(plan + _PHV_END))


@kernel
def _session(plan, clone):
    """Address of a mirroring session's row (exists, port or -1, group or -1), or 0."""
    row = ld64(plan + _SESSIONS) + 24 * (clone - 1)
    return row if ld64(row) else 0


@kernel
def _mirror(plan, frame, session):
    port, group = ld64(session + 8), ld64(session + 16)
    if group >= 0:
        _multicast(plan, frame, group)
    if port < 0 or not _push_to_egress(plan, frame, port):
        pool.end_packet(plan, frame)


@kernel
def _clone_at_ingress(plan, frame):
    session = _session(plan, ld64(frame + _CLONE))
    st64(frame + _CLONE, 0)
    if session == 0:
        return
    saved = _save(plan, frame)
    _begin(
        plan, frame, ld64(saved + _PACKET), ld64(saved + _LENGTH), ld64(saved + _PORT), ld64(saved + _INGRESS_LENGTH)
    )
    st64(frame + _REG, ld64(saved + _START_LENGTH))
    _set(plan, frame, INGRESS_PORT, ld64(saved + _PORT))
    if _parse(plan, frame):
        _forget_requests(frame)
        _take_over(plan, frame, saved, ld64(saved + _CLONE_LIST), INGRESS_CLONE)
        _mirror(plan, frame, session)
    _restore(plan, frame)


@kernel
def _clone_at_egress(plan, frame):
    session = _session(plan, ld64(frame + _CLONE))
    st64(frame + _CLONE, 0)
    if session == 0:
        return
    saved = _save(plan, frame)
    _forget_requests(frame)
    pool.become_copy(plan, frame)
    _take_over(plan, frame, saved, ld64(saved + _CLONE_LIST), EGRESS_CLONE)
    _mirror(plan, frame, session)
    _restore(plan, frame)


@kernel
def _learn(plan, frame):
    for i in range(ld64(plan + _N_DIGESTS)):
        row = ld64(plan + _DIGESTS) + 16 * i
        if ld64(row) == ld64(frame + _DIGEST):
            call2(ld64(plan + _VM), frame, ld64(row + 8))


@kernel
def _resubmit(plan, frame):
    saved = _save(plan, frame)
    length = ld64(saved + _START_LENGTH)
    _begin(
        plan, frame, ld64(saved + _PACKET), ld64(saved + _LENGTH), ld64(saved + _PORT), ld64(saved + _INGRESS_LENGTH)
    )
    _take_over(plan, frame, saved, ld64(saved + _RESUBMIT), RESUBMITTED)
    st64(frame + _REG, length)
    _set(plan, frame, PACKET_LENGTH, length)
    _push(plan, frame, _RETURNED, _ZERO, _ZERO)
    pool.end_packet(plan, saved)


@kernel
def _ingress(plan, frame):
    """Parse, run the ingress pipeline and carry out its requests; the port if the packet continues to egress at once,
    -1 if it ends here, or waits (then `frame` is not it any more, or a copy of it)."""
    port = _ingress_stage(plan, frame)
    if port == ENDS:
        pool.end_packet(plan, frame)
    return max(port, -1)


@kernel
def _ingress_stage(plan, frame):
    """The port, WAITS, or ENDS."""
    st64(frame + _START_LENGTH, ld64(frame + _REG))
    if not _parse(plan, frame):
        return ENDS
    _set(plan, frame, PARSER_ERROR, ld64(frame + _ERROR))
    _set(plan, frame, CHECKSUM_ERROR, ld64(frame + _CHECKSUM))
    if not _run(plan, frame, _INGRESS):
        return ENDS
    st64(frame + _EXIT, 0)
    if ld64(frame + _CLONE):
        _clone_at_ingress(plan, frame)
    if ld64(frame + _DIGEST):
        _learn(plan, frame)
    if ld64(frame + _RESUBMIT):
        _resubmit(plan, frame)
        return WAITS
    group = _get(plan, frame, MCAST_GRP)
    if group:
        _set(plan, frame, INSTANCE_TYPE, REPLICATED)
        _multicast(plan, frame, group)
        return ENDS
    port = _get(plan, frame, EGRESS_SPEC)
    if port == ld64(plan + _DROP_PORT):
        return ENDS
    _set(plan, frame, INSTANCE_TYPE, NORMAL)
    if ld64(plan + _QUEUED_N) or ld64(plan + _RETURNED_N):
        return WAITS if _push_to_egress(plan, frame, port) else ENDS
    return port


@kernel
def _recirculate(plan, frame, address, length):
    saved = _save(plan, frame)
    _begin(plan, frame, address, length, ld64(saved + _PORT), length)
    _take_over(plan, frame, saved, ld64(saved + _RECIRCULATE), RECIRCULATED)
    _set(plan, frame, PACKET_LENGTH, length)
    _push(plan, frame, _RETURNED, _ZERO, _ZERO)
    copy_block(frame, saved, ld64(plan + _PHV_END))


@kernel
def _egress(plan, frame, port, priority, out):
    """Run the egress pipeline, carry out its requests, deparse and send; the address for the next frame."""
    out = _egress_stage(plan, frame, port, priority, out)
    pool.end_packet(plan, frame)
    return out


@kernel
def _egress_stage(plan, frame, port, priority, out):
    now = ld64(plan + _PLAN_NOW)
    _set(plan, frame, EGRESS_TIME, now)
    _set(plan, frame, DEQ_DELTA, now - _get(plan, frame, ENQ_TIME))
    _set(plan, frame, DEQ_DEPTH, _ZERO)
    _set(plan, frame, QID, priority)
    _set(plan, frame, EGRESS_PORT, port)
    _set(plan, frame, EGRESS_SPEC, ld64(plan + _DROP_PORT) + 1)
    _set(plan, frame, PACKET_LENGTH, ld64(frame + _REG))
    if not _run(plan, frame, _EGRESS):
        return out
    if ld64(frame + _CLONE):
        _clone_at_egress(plan, frame)
    if _get(plan, frame, EGRESS_SPEC) == ld64(plan + _DROP_PORT):
        return out
    cursor = ld64(frame + _CURSOR)
    rest = ld64(frame + _LENGTH) - cursor
    if out + ld64(plan + _HEADER_BYTES) + rest > ld64(plan + _OUT_END) or ld64(plan + _N_RECORDS) >= ld64(
        plan + _MAX_RECORDS
    ):
        st64(plan + _LOST, ld64(plan + _LOST) + 1)
        return out
    st64(frame + _OUT, out)
    if not _run(plan, frame, _DEPARSER):
        return out
    end = ld64(frame + _OUT)
    copy(end, ld64(frame + _PACKET) + cursor, rest)
    length = end + rest - out
    if ld64(frame + _RECIRCULATE):
        _recirculate(plan, frame, out, length)
        return out + length
    truncate = ld64(frame + _TRUNCATE)
    n = ld64(plan + _N_RECORDS)
    record = ld64(plan + _RECORDS) + 8 * RECORD_WORDS * n
    st64(record, port)
    st64(record + 8, out)
    st64(record + 16, min(length, truncate - 1) if truncate else length)
    st64(record + 24, ld64(plan + _SOURCE))
    st64(plan + _N_RECORDS, n + 1)
    return out + length


@kernel
def _settle(plan, frame, out, passes):
    """Serve the rings until they are empty: first packets that return to ingress, then egress. `passes`: the number so
    far."""
    while ld64(plan + _STATUS) == 0:
        passes += 1
        if passes > MAX_PASSES:
            st64(plan + _LOST, ld64(plan + _LOST) + ld64(plan + _RETURNED_N) + ld64(plan + _QUEUED_N))
            st64(plan + _RETURNED_N, 0)
            st64(plan + _QUEUED_N, 0)
            break
        if ld64(plan + _RETURNED_N):
            _pop(plan, frame, _RETURNED)
            port = _ingress(plan, frame)
            if port >= 0:
                passes += 1
                priority = _enqueue(plan, frame, port)
                if priority >= 0 and passes <= MAX_PASSES:
                    out = _egress(plan, frame, port, priority, out)
                else:
                    pool.end_packet(plan, frame)
        elif ld64(plan + _QUEUED_N):
            entry = _pop(plan, frame, _QUEUED)
            out = _egress(plan, frame, ld64(entry), ld64(entry + 8), out)
        else:
            break
    return out


@kernel
def process(plan, first, n, out):
    """Take frames first..n-1 of the batch through the switch, one after the other; the number of the first one that was
    not taken, because the output might not fit, or because the program aborted (then `status` is
    set)."""
    frame = ld64(plan + _FRAME)
    context = ld64(frame + _CONTEXT)
    end, most = ld64(plan + _OUT_END) - ld64(plan + _RESERVE), ld64(plan + _MAX_RECORDS) >> 1
    for number in range(first, n):
        if out > end or ld64(plan + _N_RECORDS) > most or ld64(context + _EVENT_AT) > ld64(plan + _MAX_EVENTS):
            return number
        port, length = ld64(ld64(plan + _IN_PORT) + 8 * number), ld64(ld64(plan + _IN_LENGTH) + 8 * number)
        st64(plan + _SOURCE, number)
        _begin(plan, frame, ld64(ld64(plan + _IN_ADDRESS) + 8 * number), length, port, length)
        if ld64(plan + _POOL):
            _clear_metadata(plan, frame)
        _set(plan, frame, INGRESS_PORT, port)
        _set(plan, frame, PACKET_LENGTH, length)
        _set(plan, frame, INSTANCE_TYPE, NORMAL)
        _set(plan, frame, INGRESS_TIME, ld64(plan + _PLAN_NOW))
        port = _ingress(plan, frame)
        passes = 0
        if port >= 0:
            priority = _enqueue(plan, frame, port)
            if priority >= 0:
                passes = 1
                out = _egress(plan, frame, port, priority, out)
            else:
                pool.end_packet(plan, frame)
        if ld64(plan + _QUEUED_N) or ld64(plan + _RETURNED_N):
            out = _settle(plan, frame, out, passes)
        if ld64(plan + _STATUS):
            return number
    return n
