"""When one rank sends packets again: timers, order, waits, and the estimates behind them."""

from switchml.protocol import retransmission as rules
from switchml.protocol.retransmission import MICROSECOND, MILLISECOND, SECOND
from tests.support.single_rank import NEVER, Rank, is_repeat, seqs, steady

# -- retransmission --


def test_nothing_is_due_while_nothing_is_under_way():
    rank = Rank()
    assert rank(0) == [] and rank.worker.deadline == NEVER
    rank.start(1)
    rank(0)
    assert rank.worker.deadline < NEVER
    rank(MILLISECOND, rank.result(0))
    assert rank(MILLISECOND) == [] and rank.worker.deadline == NEVER


def test_a_packet_is_sent_again_when_its_timer_ends_and_not_before():
    rank = Rank(3)
    packets = rank(5)
    assert rank.worker.deadline == 5 + rules.INITIAL_RTO
    assert rank(rank.worker.deadline - 1) == []
    again = rank(rank.worker.deadline)
    assert [data[1:] for data in again] == [data[1:] for data in packets]
    assert [data[0] for data in again] == [data[0] | 8 for data in packets]
    assert rank.counters["retransmitted"] == 3 and rank.counters["sent"] == 6


def test_a_repeated_chunk_is_a_new_packet():
    """A retransmitted round leaves no R flag on the next packet of its slot."""
    rank = Rank(2, slots=1)
    rank(0)
    assert is_repeat(rank(rules.INITIAL_RTO)[0])
    (packet,) = rank(rules.INITIAL_RTO, rank.result(0))
    assert seqs([packet]) == [1] and not is_repeat(packet)
    (packet,) = rank(rules.INITIAL_RTO, rank.result(1, flags=2))
    assert seqs([packet]) == [2] and not is_repeat(packet)


def test_only_the_lowest_eight_are_resent_by_the_clock():
    rank = Rank(16)
    rank(0)
    now = rank.worker.deadline
    assert seqs(rank(now)) == list(range(8))
    # Others become the lowest: their timers ended while nobody looked, the next look finds them.
    assert seqs(rank(now + 1, rank.result(0), rank.result(5))) == [8, 9]
    assert seqs(rank(rank.worker.deadline)) == [1, 2, 3, 4, 6, 7]
    # From the third time on that the lowest has no answer, half as many.
    assert [seqs(packets) for packets in asked(rank, 4)] == [[1, 2, 3, 4], [1, 2], [1], [1]]


def asked(rank: Rank, times: int) -> list[list[bytes]]:
    """What the clock alone makes a rank send, so many times."""
    sent = []
    while len(sent) < times:
        packets = rank(rank.worker.deadline)
        sent += [packets] if packets else []
    return sent


def test_the_timeout_grows_while_nothing_moves_and_ends_at_200_ms():
    rank, start = steady()
    rank.start(1)
    rank(start)
    now, pauses = start, []
    while now < start + 3 * SECOND:
        previous, now = now, rank.worker.deadline
        assert rank(now - 1) == [] and len(rank(now)) == 1
        pauses.append(now - previous)
    assert pauses[0] == rank.rtt["rto"] == MILLISECOND
    assert pauses == sorted(pauses) and pauses[-1] == rules.LONGEST_PROBE == 200 * MILLISECOND
    assert all(later <= max(MILLISECOND, 1.3 * pause) for pause, later in zip(pauses, pauses[1:], strict=False))
    assert len(pauses) < 40
    rank.start(1)
    rank(now, rank.result(200))
    (packet,) = rank(now + rank.rtt["rto"])
    assert is_repeat(packet), "once something has moved, patience is the RTO again"


def test_the_first_timer_after_a_pause_is_the_rto():
    """A rank that computed for seconds between two tensors has not been waiting for the network."""
    rank, now = steady()
    rank.start(1)
    now += 5 * SECOND
    rank(now)
    assert rank.worker.deadline == now + rank.rtt["rto"]
    rank(rank.worker.deadline)
    assert rank.worker.deadline == now + 2 * rank.rtt["rto"]


def test_a_wait_packet_doubles_the_timeout():
    rank, now = steady(workers=300 // 2)
    rank.start(1)
    rank(now)
    assert len(rank(now + rank.rtt["rto"])) == 1
    now += rank.rtt["rto"] + 10
    assert rank(now, rank.wait(200, 3, 149)) == []
    assert rank.worker.missing_ranks() == (3, 149) and rank.counters["waits"] == 1
    assert rank.worker.deadline == now + 2 * rank.rtt["rto"]
    assert rank(now + 2 * rank.rtt["rto"] - 1) == [] and len(rank(now + 2 * rank.rtt["rto"])) == 1


def test_a_wait_packet_for_another_round_is_ignored():
    rank, now = steady()
    rank.start(1)
    rank(now)
    deadline = rank.worker.deadline
    for number in (199, 200 - 16, 200 + 16, 201):
        rank(now, rank.wait(number, 1))
    assert rank.counters["waits"] == 0 and rank.worker.missing_ranks() == ()
    assert rank.worker.deadline == deadline


def test_a_lost_round_is_resent_when_a_later_one_is_done():
    """RACK: long before its timer ends, once the answer to a packet sent 200 us later is here, whatever its place."""
    rank = Rank(8)
    rank(0)
    rank.start(8)
    rank(500 * MICROSECOND)
    assert rank(600 * MICROSECOND, *(rank.result(n) for n in (0, 2, 3, 4, 6, 7))) == []
    assert seqs(rank(620 * MICROSECOND, rank.result(12))) == [1, 5]
    assert rank.counters["retransmitted"] == 2


def test_a_round_sent_shortly_before_is_not_taken_for_lost():
    rank = Rank(1)
    rank(0)
    rank.start(1)
    rank(rules.MIN_REORDERING)
    assert rank(rules.MIN_REORDERING + 1, rank.result(1)) == []
    rank.start(1)
    rank(rules.MIN_REORDERING + 1)
    assert seqs(rank(rules.MIN_REORDERING + 2, rank.result(2))) == [0]


def test_where_nothing_is_lost_a_round_is_asked_for_only_to_learn_who_is_missing():
    """Through shared memory: no resending by order, and a round is asked for five times a second."""
    rank = Rank(8, lossless=True)
    rank(0)
    rank.start(8)
    rank(500 * MICROSECOND)
    assert rank(600 * MICROSECOND, *(rank.result(n) for n in (0, 2, 12))) == []
    questions = []
    while rank.worker.deadline < SECOND:
        questions += seqs(rank(rank.worker.deadline))
    assert questions.count(1) == 4 and len(questions) == 8 + 6 + 4 + 2


def test_the_margin_doubles_with_each_resend_three_times():
    rank = Rank(1, slots=128)
    rank.rtt["backoff"] = rules.MAX_BACKOFF  # so that no timer gets in the way
    now, sent_at, gaps = 0, 0, []
    rank(now)
    for number in range(1, 128):
        now += 50 * MICROSECOND
        rank.start(1)
        assert seqs(rank(now)) == [number]
        if rank(now, rank.result(number)):
            gaps.append(now - sent_at)
            sent_at = now
    margins = [rules.MIN_REORDERING << doublings for doublings in (0, 1, 2, 3, 3)]
    assert gaps[:5] == [margin + 50 * MICROSECOND for margin in margins]


def test_results_of_retransmitted_rounds_say_nothing_about_order_or_rtt():
    rank = Rank(1)
    rank(0)
    rank.start(1)
    rank(MILLISECOND)
    now = rules.INITIAL_RTO
    assert seqs(rank(now)) == [0]
    now += 2 * MILLISECOND
    assert seqs(rank(now)) == [1]
    before = int(rank.rtt["samples"])
    assert rank(now + MILLISECOND, rank.result(1)) == []
    assert rank.rtt["samples"] == before


def test_a_round_that_was_waited_for_is_no_sample():
    rank, now = steady()
    before = int(rank.rtt["samples"])
    rank.start(1)
    rank(now)
    rank(now + 1, rank.wait(200, 1))
    rank(now + 2, rank.result(200))
    assert rank.rtt["samples"] == before


def test_results_restart_the_clock():
    """What queues behind others is not lost as long as those come: however long it takes, nobody asks."""
    rank, now = steady(slots=128)
    rank.start(100)
    assert len(rank(now)) == 100
    for number in range(200, 300):
        now += rank.rtt["rto"] - 1
        assert rank(now, rank.result(number)) == []
    assert rank.counters["retransmitted"] == 0 and rank.rtt["rto"] == MILLISECOND


def test_an_answer_to_a_needless_retransmission_restarts_the_clock():
    """Else it would go on: the lowest rounds, resent while their results wait behind others, would all count as resent
    when those come, and the next ones would be the lowest."""
    rank, now = steady(slots=64)
    rank.start(40)
    rank(now)
    now = rank.worker.deadline
    assert seqs(rank(now)) == list(range(200, 208))
    assert seqs(rank(now + 1, *(rank.result(n) for n in range(200, 204)))) == list(range(208, 212))
    now += 2
    assert rank(now, rank.result(200, r=True)) == []
    for number in range(204, 240):
        now += rank.rtt["rto"] // 64
        assert rank(now, rank.result(number)) == []


def silent(rank: Rank, now: int, first: int, pause: int, wait: bool = False) -> int:
    """64 rounds of which the second half comes `pause` later; how many were asked for. With `wait`, one comes too."""
    before = int(rank.counters["retransmitted"])
    rank.start(64)
    rank(now)
    now += 100 * MICROSECOND
    rank(now, *(rank.result(n) for n in range(first, first + 32)))
    while rank.worker.deadline < now + pause:
        rank(rank.worker.deadline)
        if wait:
            rank(rank.worker.deadline, rank.wait(first + 32, 1))
    rank(now + pause, *(rank.result(n) for n in range(first + 32, first + 64)))
    return int(rank.counters["retransmitted"]) - before


def test_a_pause_that_ends_by_itself_is_learned():
    """As behind a token bucket, where results come train by train. It is forgotten again where nothing pauses."""
    rank, now = steady(slots=128)
    assert silent(rank, now, 200, 30 * MILLISECOND) > 8
    assert rank.rtt["rto"] == 45 * MILLISECOND
    assert silent(rank, now + SECOND, 264, 30 * MILLISECOND) == 0
    number, now = 328, now + 2 * SECOND
    rank.start(128)
    for _ in range(4000):
        rank(now)
        now += 500 * MICROSECOND
        rank(now, rank.result(number))
        number += 1
        rank.start(1)
    assert rank.rtt["rto"] < 2 * MILLISECOND


def test_a_pause_that_a_peer_makes_is_not():
    rank, now = steady(slots=128)
    assert silent(rank, now, 200, 30 * MILLISECOND, wait=True) > 0
    assert rank.rtt["rto"] == MILLISECOND


def test_after_a_wait_the_first_result_restarts_the_clock():
    """The peer is there again: the rest is on its way, and need not be asked for round by round."""
    rank, now = steady(slots=64)
    rank.start(40)
    rank(now)
    asked_at = rank.worker.deadline
    assert len(rank(asked_at)) == 8
    rank(asked_at + 1, rank.wait(200, 1))
    for number in range(200, 240):
        asked_at += 20 * MICROSECOND
        assert rank(asked_at, rank.result(number)) == []


def test_as_many_rounds_are_taken_for_lost_as_results_come_in():
    """Most of a window found a queue full: to send it again at once would fill that again."""
    rank = Rank(512, slots=512)
    rank.window["limit"] = 512
    assert len(rank(0)) == 512
    rank.start(8)
    rank.window["limit"] = 1024
    now = rank.worker.deadline - 1
    for number in range(8):  # the first slots take the new chunks, long after the others were sent
        rank(now - 100, rank.result(number))
    assert len(rank(now, rank.result(512))) == rules.MIN_IN_FLIGHT
    assert [len(rank(now, rank.result(512 + n))) for n in range(1, 4)] == [1, 1, 1]


def test_the_margin_follows_the_reordering_seen():
    """A round that came by itself, overtaken by 190 us, makes it 285; what comes in order brings it down again."""
    rank = Rank(1, slots=64)
    rank(0)
    rank.start(1)
    rank(190 * MICROSECOND)
    assert rank(200 * MICROSECOND, rank.result(1)) == [] and rank(201 * MICROSECOND, rank.result(0)) == []
    now = MILLISECOND
    rank.start(1)
    rank(now)
    rank.start(1)
    rank(now + 284 * MICROSECOND)
    assert rank(now + 285 * MICROSECOND, rank.result(3)) == []
    rank.start(1)
    rank(now + 286 * MICROSECOND)
    assert seqs(rank(now + 287 * MICROSECOND, rank.result(4))) == [2]


# -- estimates --


def test_the_rto_follows_the_rtt():
    rank, _ = steady(rtt=100 * MICROSECOND)
    assert abs(rank.rtt["srtt"] - 100 * MICROSECOND) < 5 * MICROSECOND and rank.rtt["rto"] == rules.MINIMUM_RTO
    rank, _ = steady(rtt=4 * MILLISECOND, rounds=400)
    assert abs(rank.rtt["srtt"] - 4 * MILLISECOND) < MILLISECOND // 4
    assert 7 * MILLISECOND < rank.rtt["rto"] < 10 * MILLISECOND


def test_the_rto_is_known_after_the_first_sample():
    rank = Rank(1)
    rank(0)
    rank(MILLISECOND, rank.result(0))
    assert (rank.rtt["srtt"], rank.rtt["rttvar"]) == (MILLISECOND, MILLISECOND // 2)
    assert rank.rtt["rto"] == 3 * MILLISECOND


def test_only_the_least_of_eight_round_trips_counts():
    """A peer's recovery from a loss makes an RTT long, and must not make the next recovery longer."""
    rank, now = steady()
    before = int(rank.rtt["rto"])
    for number in range(200, 240):
        rank.start(1)
        rank(now)
        now += 100 * MICROSECOND if number % 8 == 0 else 900 * MICROSECOND
        rank(now, rank.result(number))
    assert rank.rtt["rto"] == before


def test_a_time_longer_than_the_rto_is_no_sample():
    rank, now = steady()
    before = int(rank.rtt["samples"])
    rank.start(1)
    rank(now)
    rank.worker.receive([rank.result(200)], now + rank.rtt["rto"] + 1)
    assert rank.rtt["samples"] == before


def spurious_answer(rank: Rank, number: int, now: int) -> int:
    """Chunk `number` is asked for again although its result was on the way: both answers come; returns the time."""
    rank.start(1)
    rank(now)
    now = rank.worker.deadline
    assert len(rank(now)) == 1
    rank(now + 1, rank.result(number))
    rank(now + 2, rank.result(number, r=True))
    return now + 2


def test_spurious_retransmissions_raise_the_backoff_and_it_decays():
    rank, now = steady()
    assert rank.rtt["backoff"] == rules.MIN_BACKOFF
    number, backoffs = 200, []
    for _ in range(12):
        now = spurious_answer(rank, number, now)
        number += 1
        backoffs.append(int(rank.rtt["backoff"]))
    assert backoffs[:3] == [24, 36, 54] and backoffs[-1] == rules.MAX_BACKOFF == 32 * rules.MIN_BACKOFF
    assert rank.counters["spurious"] == 12 and rank.rtt["rto"] > 10 * MILLISECOND
    for _ in range(8 * 40):
        rank.start(1)
        rank(now)
        now += 100 * MICROSECOND
        rank(now, rank.result(number))
        number += 1
    assert rank.rtt["backoff"] == rules.MIN_BACKOFF and rank.rtt["rto"] == rules.MINIMUM_RTO


def test_the_backoff_grows_once_an_rto_however_many_answers_come():
    rank, now = steady()
    rank.start(8)
    rank(now)
    now = rank.worker.deadline
    assert len(rank(now)) == 8
    rank(now + 1, *(rank.result(n) for n in range(200, 208)))
    rank(now + 2, *(rank.result(n, r=True) for n in range(200, 208)))
    assert rank.counters["spurious"] == 8 and rank.rtt["backoff"] == 24
    rank(now + 3, rank.result(200, r=True))
    assert rank.rtt["backoff"] == 24


def test_an_rtt_beyond_the_rto_is_learned_through_spurious_answers():
    """The path became 20 times slower: needless retransmissions stop once backoff has made up for it."""
    rank, now = steady()
    number, resent = 200, []
    for _ in range(300):
        rank.start(1)
        rank(now)
        arrival, asked = now + 2 * MILLISECOND, False
        while rank.worker.deadline < arrival:
            asked |= bool(rank(rank.worker.deadline))
        rank(arrival, rank.result(number))
        if asked:
            rank(arrival + 1, rank.result(number, r=True))
        resent.append(asked)
        now = arrival + 1
        number += 1
    assert all(resent[:2]) and not any(resent[-100:])
    assert rank.rtt["srtt"] > MILLISECOND
