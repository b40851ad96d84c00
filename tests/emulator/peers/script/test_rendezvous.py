"""Ranks that come to transfers, wait and end, without processes."""

from emulator.peers.script.rendezvous import Answer, Arrival, Broadcast, InputDigest, Published, Rendezvous, WaitRequest


def message(rank, number, ready_s, source, to, **more):
    ends = (source, to)
    return Arrival(rank, ("0", ends, number), ends, ready_s, "a message", needed=ends, **more)


def collective(rank, number, ready_s, call="all-reduce"):
    return Arrival(rank, ("0", None, number), (0, 1, 2, 3), ready_s, call)


def test_a_message_begins_when_both_are_ready():
    ranks = Rendezvous({0})
    assert ranks.add(message(0, 0, 1.0, 0, 2, payload=b"x")) == {2}
    ranks.wait(WaitRequest(0, ("0", (0, 2), 0)))
    assert list(ranks.answers()) == []  # rank 2 has just begun
    assert ranks.add(message(2, 0, 3.0, 0, 2)) == set()
    assert list(ranks.answers()) == [(0, Answer(3.0, {0: b"x"}))]


def test_a_collective_waits_for_its_members_that_run():
    ranks = Rendezvous({0, 2, 7})
    ranks.add(collective(0, 0, 5.0))
    ranks.wait(WaitRequest(0, ("0", None, 0)))
    assert list(ranks.answers()) == []
    ranks.add(collective(2, 0, 4.0))  # rank 7 is no member, 1 and 3 don't run
    assert list(ranks.answers()) == [(0, Answer(5.0))]


def test_ranks_that_wait_for_each_other():
    """Each is answered why; a rank that has ended comes no more."""
    ranks = Rendezvous({0, 2})
    ranks.add(message(0, 0, 0.0, 2, 0))
    ranks.wait(WaitRequest(0, ("0", (2, 0), 0)))
    assert list(ranks.answers()) == []
    ranks.add(collective(2, 0, 0.0))
    ranks.wait(WaitRequest(2, ("0", None, 0)))
    answers = dict(ranks.answers())
    of_both = "rank 0 waits for rank 2 to take part in a message", "rank 2 waits for rank 0 to take part in all-reduce"
    expected = "deadlock: " + "; ".join(of_both)
    assert answers == {0: Answer(error=expected), 2: Answer(error=expected)}
    ranks.wait(WaitRequest(0, ("0", (2, 0), 0)))
    ranks.ended(2)
    [(rank, answer)] = ranks.answers()
    assert rank == 0 and "rank 2 (which has ended)" in answer.error


def test_different_calls_are_an_error():
    ranks = Rendezvous({0, 1})
    ranks.add(collective(0, 0, 0.0))
    ranks.add(collective(1, 0, 0.0, "broadcast"))
    ranks.wait(WaitRequest(1, ("0", None, 0)))
    [(rank, answer)] = ranks.answers()
    assert rank == 1 and answer.error.endswith("rank 0: all-reduce, rank 1: broadcast")


def test_it_is_over_when_all_have_played_enough():
    ranks = Rendezvous({0, 1})
    ranks.add(collective(0, 3, 0.0))
    ranks.done(0)
    ranks.wait(WaitRequest(0, ("0", None, 3)))
    assert list(ranks.answers()) == [] and not ranks.is_over
    ranks.done(1)
    assert list(ranks.answers()) == [(0, Answer(is_over=True))] and ranks.is_over


def test_values_that_differ_are_refused():
    """Copies of a rank's own would go on as if they were the other's."""
    ranks = Rendezvous({0, 2})
    for rank, digest in ((0, b"a"), (2, b"a")):
        ranks.add_digest(InputDigest(rank, ("0", "values", 1), "broadcast", digest, is_exact=True))
    ranks.add(collective(0, 0, 0.0))
    ranks.add(collective(2, 0, 0.0))
    ranks.wait(WaitRequest(0, ("0", None, 0)))
    assert list(ranks.answers()) == [(0, Answer(0.0))]
    for rank, digest in ((2, b"b"), (0, b"c")):
        ranks.add_digest(InputDigest(rank, ("0", "values", 2), "broadcast", digest, is_exact=True))
    ranks.wait(WaitRequest(2, ("0", None, 0)))
    ((rank, answer),) = ranks.answers()
    assert rank == 2 and "broadcast: ranks 2 and 0 have different input values" in answer.error


def test_values_of_a_broadcast():
    """Who asks waits for its root, if that runs."""
    ranks = Rendezvous({0, 2})
    one, other = Broadcast("0", 0, 1), Broadcast("0", 1, 1)
    ranks.wait(WaitRequest(2, one))
    assert list(ranks.answers()) == []
    ranks.publish(Published(one, b"x"))
    assert list(ranks.answers()) == [(2, Answer(payloads={0: b"x"}))]
    ranks.wait(WaitRequest(2, other))
    assert list(ranks.answers()) == [(2, Answer())]
