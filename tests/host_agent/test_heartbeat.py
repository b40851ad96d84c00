"""When an agent asks a silent aggregator whether it is there, and when it takes it for lost."""

from host_agent.heartbeat import ANSWER_TURNS, IDLE_TURNS, MAX_ANSWER_TURNS, QUIET_TURNS, TURN_S, Beat, Heartbeat


def turns_until(beat: Heartbeat, what: Beat, heard: int = 7, is_waiting: bool = True) -> int:
    """How many turns in silence it takes."""
    turns = 1
    while beat.turn(heard, is_waiting) is not what:
        turns += 1
    return turns


def test_a_silent_aggregator_is_asked_and_then_lost_within_a_second():
    beat = Heartbeat()
    beat.turn(7, True)
    asked = turns_until(beat, Beat.ASK)
    assert asked == QUIET_TURNS
    lost = turns_until(beat, Beat.LOST)
    assert lost == ANSWER_TURNS
    # It may fall silent just after a turn began.
    assert (1 + asked + lost) * TURN_S < 1.0


def test_packets_and_answers_are_signs_of_life():
    beat = Heartbeat()
    assert all(beat.turn(heard, True) is Beat.CALM for heard in range(100))
    turns_until(beat, Beat.ASK, 100)
    for heard in range(101, 104):  # an answer, or a packet at last
        for _ in range(ANSWER_TURNS - 1):
            assert beat.turn(heard - 1, True) is not Beat.LOST
        assert beat.turn(heard, True) is Beat.CALM


def test_who_awaits_nothing_asks_less_often():
    beat = Heartbeat()
    beat.turn(7, False)
    assert turns_until(beat, Beat.ASK, is_waiting=False) == IDLE_TURNS > QUIET_TURNS


def test_each_loss_gives_the_next_aggregator_twice_the_time():
    beat, waited = Heartbeat(), []
    for _ in range(8):
        beat.begin()
        turns_until(beat, Beat.ASK)
        waited.append(turns_until(beat, Beat.LOST))
    assert waited[:3] == [ANSWER_TURNS, 2 * ANSWER_TURNS, 4 * ANSWER_TURNS]
    assert waited[-1] == MAX_ANSWER_TURNS
