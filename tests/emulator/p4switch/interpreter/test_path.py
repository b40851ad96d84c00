"""simple_switch's packet path where the recordings do not go: rounds without end, queues in time, asserts."""

import pytest

from emulator.p4switch.interpreter import path
from switchml.errors import ProgramAbort

ETHERNET = bytes.fromhex("0102030405060708090a0b0c0d0e")


def number(value, n=2):
    return value.to_bytes(n, "big")


# Resubmit and recirculate


def test_a_packet_that_goes_round_for_ever_is_dropped(switch, monkeypatch):
    monkeypatch.setattr(path, "MAX_PASSES", 3)
    assert switch("recirculate").receive(4, ETHERNET + b"\7" + bytes(7)) == []


# Queues


def queued(port, priority=0):
    return ETHERNET + number(port) + bytes([priority]) + bytes(27)


def depths(frame):
    return int.from_bytes(frame[22:25], "big"), int.from_bytes(frame[29:32], "big")


def test_a_queue_with_a_rate_lets_packets_go_one_by_one(switch):
    running = switch("queues")
    running.state.queues.set_rate(1000)
    assert [len(running.receive(1, queued(2))) for _ in range(3)] == [1, 0, 0]
    running.now = 999
    assert running.poll() == []
    running.now = 1000
    [(port, frame)] = running.poll()
    assert port == 2
    assert depths(frame) == (0, 1)
    assert frame[18:22] == number(0, 4)  # enq_timestamp
    assert frame[25:29] == number(1000, 4)  # deq_timedelta
    running.now = 2000
    [(_, frame)] = running.poll()
    assert depths(frame) == (1, 0)


def test_a_full_queue_drops(switch):
    running = switch("queues")
    running.state.queues.set_rate(10, port=2)
    running.state.queues.set_depth(2, port=2)
    for _ in range(5):
        running.receive(1, queued(2))
    running.now = 10_000_000
    assert len(running.poll()) == 2


def test_a_queue_of_depth_0_drops_everything(switch):
    running = switch("queues")
    running.state.queues.set_depth(0)
    assert running.receive(1, queued(2)) == []


def test_the_higher_priority_leaves_first_and_one_too_high_is_dropped(switch):
    running = switch("queues", n_priorities=2)
    running.state.queues.set_rate(1000)
    running.receive(1, queued(2, 0))
    running.receive(1, queued(2, 1))
    for priority in (0, 1, 2):
        running.receive(1, queued(2, priority))
    running.now = 1_000_000
    assert [frame[16] for _, frame in running.poll()] == [1, 0]


def test_time_of_the_next_poll(switch):
    running = switch("queues")
    assert running.next_us() is None
    running.state.queues.set_rate(1000)
    running.receive(1, queued(2))
    running.receive(1, queued(2))
    assert running.next_us() == 1000
    learning = switch("digest")
    learning.now = 5
    learning.receive(1, ETHERNET)
    assert learning.next_us() == 1_000_005


def test_a_packet_may_grow_more_than_in_bmv2_with_a_warning(switch, monkeypatch, caplog):
    monkeypatch.setattr(path, "MAX_GROWTH", 3)
    running = switch("metadata")
    for _ in range(2):
        assert len(running.receive(4, ETHERNET + b"\1" + bytes(11))[0][1]) == 30
    assert ["26 bytes grew to 30" in message for message in caplog.messages] == [True]


# Digests


def test_a_digest_has_the_fields_when_ingress_ended(switch):
    running = switch("digest")
    sent = []
    running.state.digests[0].listeners.append(sent.append)
    running.receive(5, ETHERNET)
    running.receive(5, ETHERNET)
    running.now = 1_000_000
    running.poll()
    assert [digest.samples for digest in sent] == [((0x0708090A0B0C, 5),)]


# assert, log_msg


@pytest.mark.parametrize(("type_", "what"), [("dead", "Assert"), ("beef", "Assume")])
def test_a_failed_assert_ends_the_run(switch, type_, what):
    """BMv2 calls abort(); here the caller decides."""
    running = switch("assert")
    with pytest.raises(ProgramAbort, match=rf"{what} error: .* failed, file assert.p4, line \d+") as caught:
        running.receive(1, ETHERNET[:12] + bytes.fromhex(type_))
    assert caught.value.exit_code == -6
    assert running.receive(1, ETHERNET) == [(1, ETHERNET[:12] + bytes.fromhex("600d"))]
