"""Retransmission of rounds by a worker (docs/protocol.md, section 6). Timeouts are computed in retransmission.py.

Kernels over a worker's State. Comments with T cite the numbered steps of section 6.
"""

import numpy as np

from switchml.protocol.chunks import packet_at
from switchml.protocol.fixedpoint import WIRES
from switchml.protocol.packet import CONTRIBUTION, EXPIRY, R_FLAG
from switchml.protocol.retransmission import MIN_REORDERING, NONE, PROBED, PROBES, probe_timeout
from switchml.protocol.worker_state import State, slot_of, task_at
from switchml.runtime.jit import int64, kernel
from switchml.runtime.memory import u8_at

_WIRES = np.array(WIRES, np.int64)


@kernel(forceinline=True)
def timeouts(w: State, now: int, out: np.ndarray, n: int) -> int:
    """Retransmit lost and overdue rounds: appends to `out` from `n`, returns the new n. `earliest` is then the next
    deadline."""
    me = w.scalars[0]
    window, timers, rtt = me.window, me.timers, me.rtt
    if now < timers.earliest:
        return n
    # T1. The tolerated reordering of results, and the time until which a queue's timeouts are suppressed: while its
    # results arrive, their order shows what is lost.
    margin = max(rtt.srtt // 4, timers.reordering + timers.reordering // 2, MIN_REORDERING)
    may_lose = me.identity.least_timeout == 0
    never = int64(0x7FFFFFFFFFFFFFFF)
    earliest = never
    for at in range(len(w.queues)):
        queue = w.queues[at]
        quiet_until = queue.heard_at + rtt.rto
        probes, probed = int64(PROBES), int64(0)
        for chunk in range(queue.base, min(queue.next, queue.base + queue.slots)):
            index = slot_of(queue, chunk)
            slot = w.slots[index]
            if not slot.busy:
                continue
            # T5. If sums do not wait for every rank, end a round that has waited long enough. An expiry does not end a
            # round that lacks this rank's contribution, so if that is overdue, too, they alternate.
            can_expire, is_turn = me.identity.deadline != 0 and slot.words == 0, False
            if can_expire and slot.expires <= now:
                slot.expires = now + me.identity.deadline
                header = u8_at(packet_at(w, index), 1)
                is_turn = header[0] >> 4 == EXPIRY and slot.deadline <= now
                if not is_turn:
                    header[0] = (EXPIRY << 4) | R_FLAG | (header[0] & 7)
                    me.counters.expired += 1
                    me.counters.sent += 1
                    out[n] = index
                    n += 1
                    earliest = min(earliest, slot.expires)
                    if slot.deadline > now:
                        earliest = min(earliest, slot.deadline)
                    continue
            if can_expire:
                earliest = min(earliest, slot.expires)
            # T2. Overtaken by more than the margin, or overtaken and without a result for that long: lost, as far as
            # the credit suffices.
            allowed = margin << min(slot.retries, 3)
            lost_at = queue.heard_at + allowed if queue.newest > slot.sent_at else never
            lost = may_lose and window.credit > 0 and (queue.newest - slot.sent_at > allowed or lost_at <= now)
            # T3. Otherwise the timeout decides, for the lowest rounds only.
            due = max(slot.deadline, quiet_until)
            if not slot.retries:  # this deadline was set before the first rounds of a burst had updated the RTO
                due = max(due, slot.sent_at + rtt.rto)
            if not probed:
                probes = max(PROBES >> max(slot.retries - 1, 0), 1)
            if lost or is_turn or ((slot.redo or probed < probes) and due <= now):
                # T4. Resend the same bytes with R set.
                due = now + probe_timeout(me, queue, now)
                if lost:
                    window.credit -= 1
                else:
                    slot.probed = slot.round
                    if me.silence.suspicion == NONE:
                        me.silence.suspicion, me.silence.probed_at = PROBED, now
                slot.retries += 1
                slot.sent_at, slot.resent = now, slot.round
                slot.deadline = due
                header = u8_at(packet_at(w, index), 1)
                if can_expire:  # it may have been an expiry
                    header[0] = ((CONTRIBUTION | _WIRES[task_at(w, slot.task).fmt]) << 4) | (header[0] & 7)
                header[0] |= R_FLAG
                me.counters.retransmitted += 1
                me.counters.sent += 1
                out[n] = index
                n += 1
            elif may_lose and window.credit > 0:
                earliest = min(earliest, lost_at)
            if slot.redo:  # a peer lacks its result, whatever lower rounds wait for
                earliest = min(earliest, due)
            elif probed < probes:
                probed += 1
                earliest = min(earliest, due)
    timers.earliest = earliest
    return n
