"""Retransmission and congestion control of a worker: round-trip times, the retransmission timeout, and the limit in
flight (docs/protocol.md, section 6).

Kernels over a worker's scalars (`me`: SCALARS of worker_state.py). Times are int64 nanoseconds.
"""

from typing import Any

from switchml.runtime.jit import kernel

MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000

INITIAL_RTO = 10 * MILLISECOND
MINIMUM_RTO = MILLISECOND
MAXIMUM_RTO = SECOND
MIN_VARIANCE = MILLISECOND // 2
"""RTO = SRTT + max(4 RTTVAR, SRTT, MIN_VARIANCE): RFC 6298 with a clock granularity suited to one switch between
hosts, and at least twice the round-trip time, because a result also waits for the ranks that are a queue's length
behind."""
MIN_BACKOFF, MAX_BACKOFF = 16, 512
"""RTO is multiplied by backoff / 16, which needless retransmissions raise and RTT estimates lower again."""
SAMPLES = 8
"""Number of RTTs of which only the minimum counts. A result is sent when the slowest rank has contributed, so an RTT
may include a peer's whole recovery from a loss; an RTO based on such RTTs would make the next recovery slower still."""
LONGEST_PROBE = 200 * MILLISECOND
"""Limit of the probe timeout: a round is resent after RTO, or after a quarter of the time without progress if that is
longer, up to this. So a lost packet is repaired at the pace of the path, and a peer that computes for seconds gets few
retransmissions."""
PROBES = 8
"""Number of rounds, the lowest first, that are resent on a timeout alone, and half as many each time after the second
one without an answer to the lowest: a slow peer is no reason to resend a whole window."""
MIN_REORDERING = 200 * MICROSECOND
"""A round sent this much (or SRTT/4, or 1.5 times the recent reordering, if that is more) before one that has its
result is considered lost (RACK, RFC 8985)."""
MAX_REORDERING, REORDERINGS = MILLISECOND, 1024
"""Maximum reordering that counts, and number of results over which it decays."""

NONE, PROBED, WAITED = range(3)
"""Event since the last result: none, a timeout caused a retransmission, a wait packet arrived."""
UNPROMPTED = 2 * PROBES
"""Number of results of rounds that were not resent which show that a silence ended without a retransmission."""
SILENCES = 32
"""A silence decays over this many times its length without another one."""

MIN_IN_FLIGHT = 128
"""Number of rounds that a worker may always have in flight, within its window; also the initial limit."""
QUEUE_TIME = 10 * MILLISECOND
"""The amount that a path delivers in this time (or in two of the shortest RTTs) is enough to keep in flight: more would
only be queued, which makes RTTs longer and loss recovery slower."""
LIMITS = 8
"""One period lowers the limit by at most this part: a pause of a busy machine does not mean a slower path."""


@kernel
def sample_rtt(me: Any, sample: int, is_first: bool) -> None:
    """RFC 6298 over the minimum of every SAMPLES round-trip times (initially of the first one), in nanoseconds, of
    rounds that did not queue behind others (`is_first`).

    Decreases halve both estimates: the first times of a job, or of a tensor, include the ranks' different start times.
    A time longer than the RTO is not a sample: it may be a stall, which must not raise the RTO. If the path itself has
    become slower, answers to needless retransmissions show it (`back_off`).
    """
    rtt = me.rtt
    rtt.base = min(rtt.base, sample)
    if not is_first or (rtt.samples and sample > rtt.rto):
        return
    rtt.least = sample if rtt.samples % SAMPLES == 0 else min(rtt.least, sample)
    rtt.samples += 1
    if rtt.samples == 1:
        rtt.srtt, rtt.rttvar = min(sample, INITIAL_RTO), min(sample, INITIAL_RTO) // 2
    elif rtt.samples % SAMPLES == 0:
        if rtt.least < rtt.srtt:
            rtt.srtt, rtt.rttvar = (rtt.srtt + rtt.least) // 2, rtt.rttvar // 2
        else:
            rtt.rttvar += (rtt.least - rtt.srtt - rtt.rttvar) // 4
            rtt.srtt += (rtt.least - rtt.srtt) // 8
    else:
        return
    set_rto(me)


@kernel
def set_rto(me: Any) -> None:
    rtt, longest = me.rtt, me.silence.longest
    rto = (rtt.srtt + max(4 * rtt.rttvar, rtt.srtt, MIN_VARIANCE)) * rtt.backoff // MIN_BACKOFF
    rtt.rto = min(max(rto, longest + longest // 2, MINIMUM_RTO), MAXIMUM_RTO)


@kernel
def sample_silence(me: Any, now: int, sent_at: int) -> Any:
    """Update the estimate of silences when an expected result arrives, with the time since the previous one, or since
    there has been something to wait for. `sent_at`: when its round was sent, -1 if more than once. Returns whether it
    was the first of its flight.

    Behind a token bucket results come in trains with long pauses between; the RTO should be longer than those. A
    silence that caused a retransmission counts if UNPROMPTED earlier rounds have their results without having been
    resent, and no wait packet named a peer: then it ended by itself. In one beyond the RTO without a retransmission,
    this process slept.
    """
    silence, rtt = me.silence, me.rtt
    length = now - max(silence.answered_at, silence.flight_at)
    is_first = silence.answered_at <= silence.flight_at
    if silence.suspicion == PROBED:
        silence.suspected, silence.unprompted = length, 0
    elif silence.suspicion == NONE and length and length <= rtt.rto - rtt.rto // 3 and not is_first:
        learn_silence(me, length)
    if silence.suspected and 0 <= sent_at < silence.probed_at:
        silence.unprompted += 1
        if silence.unprompted == UNPROMPTED:
            learn_silence(me, silence.suspected)
            silence.suspected = 0
    silence.answered_at, silence.suspicion = now, NONE
    if rtt.backoff > MIN_BACKOFF and me.counters.received % SAMPLES == 0:
        rtt.backoff -= (rtt.backoff - MIN_BACKOFF + 7) // 8
        set_rto(me)
    return is_first


@kernel
def learn_silence(me: Any, length: int) -> None:
    """Update the longest silence, which decays with the time spent waiting for results."""
    longest = me.silence.longest
    me.silence.longest = min(max(length, longest - length // SILENCES), LONGEST_PROBE)
    set_rto(me)


@kernel
def sample_reordering(me: Any, overtaken: int) -> None:
    """Update the reordering estimate with the result of a round that was not resent, and that arrived after the result
    of a round sent `overtaken` ns later.

    Ranks with much to do send packets in bunches, grouped by length, and each rank in different bunches.
    """
    timers = me.timers
    if overtaken > timers.reordering:
        timers.reordering = min(overtaken, MAX_REORDERING)
    else:
        timers.reordering -= (timers.reordering + REORDERINGS - 1) // REORDERINGS


@kernel
def back_off(me: Any, now: int, by_clock: bool) -> None:
    """Handle a needless retransmission, whose result was already on its way. If a timeout caused it, raise the RTO
    (once per RTO, however many answers arrive); if the order of results did, a peer's packet may have been lost."""
    me.counters.spurious += 1
    rtt = me.rtt
    if by_clock and now - rtt.backed_off_at > rtt.rto:
        rtt.backed_off_at = now
        rtt.backoff = min(rtt.backoff + rtt.backoff // 2, MAX_BACKOFF)
        set_rto(me)


@kernel
def probe_timeout(me: Any, queue: Any, now: int) -> Any:
    """Time in ns before a round of a queue is resent again."""
    return max(me.rtt.rto, me.identity.least_timeout, min((now - queue.progress_at) // 4, LONGEST_PROBE))


@kernel
def adapt_limit(me: Any, now: int) -> None:
    """Once per QUEUE_TIME, set the limit of rounds in flight to the number answered in that time, if the limit was
    reached.

    While fewer rounds than the path can carry are in flight, that more than doubles the limit each time.
    """
    window, received = me.window, me.counters.received
    period, elapsed = max(QUEUE_TIME, 2 * me.rtt.base), now - window.counted_at
    if elapsed < period:
        return
    answered = (received - window.counted) * period // elapsed
    if window.limited and elapsed < 2 * (period + me.silence.longest):
        least = max(MIN_IN_FLIGHT, window.limit - window.limit // LIMITS)
        window.limit = min(max(answered, least), window.size)
    window.counted_at, window.counted, window.limited = now, received, 0
