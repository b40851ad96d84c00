"""When a worker asks again, and how much it keeps on the way: round-trip times, the retransmission timeout, patience,
and the limit in flight (docs/protocol.md, section 6).

Kernels over a worker's scalars (`me`, a record of worker.ME). Times are int64 nanoseconds.
"""

from switchml.runtime.jit import kernel

MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000

INITIAL_RTO = 10 * MILLISECOND
MINIMUM_RTO = MILLISECOND
MAXIMUM_RTO = SECOND
LEAST_VARIANCE = MILLISECOND // 2
"""RTO = SRTT + max(4 RTTVAR, SRTT, LEAST_VARIANCE): RFC 6298 with a grain fit for one switch between hosts, and at
least twice the round-trip time, because a result also waits for the ranks that are a queue's length behind."""
LEAST_CAUTION, MOST_CAUTION = 16, 512
"""RTO is multiplied by caution / 16, which needless retransmissions raise and RTT estimates bring down again."""
SAMPLES = 8
"""RTTs of which only the least counts. A result comes when the slowest rank has sent, so an RTT may hold a peer's whole
recovery from a loss; an RTO made of such RTTs would make the next recovery slower still."""
LONGEST_PROBE = 200 * MILLISECOND
"""A round is asked for again after RTO, or a quarter of the time that nothing has moved if that is longer, up to this.
So a lost packet is made good at the pace of the path, and a peer that computes for seconds is not pestered."""
PROBES = 8
"""Rounds, the lowest first, that are resent when only the clock says so, and half as many each time after the second
that the lowest has no answer: a slow peer is no reason to send a whole window again."""
LEAST_REORDERING = 200 * MICROSECOND
"""A round sent this much (or SRTT/4, or half again the reordering seen lately, if that is more) before one that has its
result is taken for lost (RACK, RFC 8985)."""
MOST_REORDERING, REORDERINGS = MILLISECOND, 1024
"""Reordering counts up to this, and is forgotten over so many results."""

SURE, ASKED, WAITED = range(3)
"""What happened since the last result: nothing, the clock made us ask, a wait came."""
OWN_ACCORD = 2 * PROBES
"""So many results without having been asked for show that a silence ended of its own accord."""
SILENCES = 32
"""A silence is forgotten after so many times its length without another one."""

LEAST_IN_FLIGHT = 128
"""Rounds that a worker may always have on the way, if its window has as many; also what it begins with."""
QUEUE_TIME = 10 * MILLISECOND
"""What a path delivers in this time (or in two of the shortest RTTs) is enough to keep on the way: more would only
stand in queues, where it makes RTTs longer and the repair of a loss slower."""


@kernel
def sample_rtt(me, rtt, is_first):
    """RFC 6298 over the least of every SAMPLES round-trip times (of the first one, to begin with), in nanoseconds, of
    rounds that queued behind no other (`is_first`).

    Downwards both halve: the first times of a job, or of a tensor, hold the ranks' different starts. A time longer than
    the RTO is no sample: it may be a stall, which must not teach patience. If the path itself has become slower,
    answers to needless retransmissions tell (`spurious`).
    """
    me.base_rtt = min(me.base_rtt, rtt)
    if not is_first or (me.rtt_samples and rtt > me.rto):
        return
    me.least_rtt = rtt if me.rtt_samples % SAMPLES == 0 else min(me.least_rtt, rtt)
    me.rtt_samples += 1
    if me.rtt_samples == 1:
        me.srtt, me.rttvar = min(rtt, INITIAL_RTO), min(rtt, INITIAL_RTO) // 2
    elif me.rtt_samples % SAMPLES == 0:
        if me.least_rtt < me.srtt:
            me.srtt, me.rttvar = (me.srtt + me.least_rtt) // 2, me.rttvar // 2
        else:
            me.rttvar += (me.least_rtt - me.srtt - me.rttvar) // 4
            me.srtt += (me.least_rtt - me.srtt) // 8
    else:
        return
    set_rto(me)


@kernel
def set_rto(me):
    rto = (me.srtt + max(4 * me.rttvar, me.srtt, LEAST_VARIANCE)) * me.caution // LEAST_CAUTION
    me.rto = min(max(rto, me.silence + me.silence // 2, MINIMUM_RTO), MAXIMUM_RTO)


@kernel
def sample_silence(me, now, sent_at):
    """An expected result is here: how long did it take since the one before, or since there is something to wait for?
    `sent_at`: when its round was sent, -1 if more than once. Returns whether it was the first of its flight.

    Behind a token bucket results come in trains with long pauses between; the RTO is to be longer than those. A silence
    that made us ask counts if OWN_ACCORD rounds from before have their results without having been asked for, and no
    wait told of a peer: it ended by itself then. One beyond the RTO in which we did not ask, we slept.
    """
    silence = now - max(me.answered_at, me.flight_at)
    is_first = me.answered_at <= me.flight_at
    if me.doubt == ASKED:
        me.suspected, me.unasked = silence, 0
    elif me.doubt == SURE and silence and silence <= me.rto - me.rto // 3 and not is_first:
        learn_silence(me, silence)
    if me.suspected and 0 <= sent_at < me.asked_at:
        me.unasked += 1
        if me.unasked == OWN_ACCORD:
            learn_silence(me, me.suspected)
            me.suspected = 0
    me.answered_at, me.doubt = now, SURE
    if me.caution > LEAST_CAUTION and me.received % SAMPLES == 0:
        me.caution -= (me.caution - LEAST_CAUTION + 7) // 8
        set_rto(me)
    return is_first


@kernel
def learn_silence(me, silence):
    """The longest counts, and fades with the time that is spent waiting for results."""
    me.silence = min(max(silence, me.silence - silence // SILENCES), LONGEST_PROBE)
    set_rto(me)


@kernel
def sample_reordering(me, overtaken):
    """A result came that nobody had asked for again, `overtaken` (ns) by that of a round sent so much later.

    Ranks with much to do send what they have in bunches, those of a length together, and each in bunches of its own.
    """
    if overtaken > me.reordered:
        me.reordered = min(overtaken, MOST_REORDERING)
    else:
        me.reordered -= (me.reordered + REORDERINGS - 1) // REORDERINGS


@kernel
def spurious(me, now, by_clock):
    """The result was on its way when we asked for it again. If the clock made us, be slower to ask (once an RTO,
    however many answers come); if it was the order, a peer's packet was lost perhaps."""
    me.spurious += 1
    if by_clock and now - me.cautioned_at > me.rto:
        me.cautioned_at = now
        me.caution = min(me.caution + me.caution // 2, MOST_CAUTION)
        set_rto(me)


@kernel
def patience(me, now):
    """How long to wait before a round is asked for again (ns)."""
    return max(me.rto, me.least_patience, min((now - me.progress_at) // 4, LONGEST_PROBE))


@kernel
def adapt_limit(me, now):
    """Once a QUEUE_TIME: let as many rounds be in flight as have been answered in that time, if the limit was felt.

    As long as less than the path can carry is on the way, that more than doubles the limit each time.
    """
    period = max(QUEUE_TIME, 2 * me.base_rtt)
    if now - me.counted_at < period:
        return
    answered = (me.received - me.counted) * period // (now - me.counted_at)
    if me.limited and now - me.counted_at < 2 * (period + me.silence):
        me.limit = min(max(answered, LEAST_IN_FLIGHT), me.window)
    me.counted_at, me.counted, me.limited = now, me.received, 0
