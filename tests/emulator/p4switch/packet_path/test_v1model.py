"""simple_switch's packet path: BMv2's documented behaviours that are easily missed, one test each (frames as bytes)."""

from functools import partial

import pytest

from emulator.p4switch.engine.engine import CompiledEngine
from emulator.p4switch.interpreter import interpreter
from emulator.p4switch.packet_path import traffic_manager
from switchml.errors import ProgramAbort

ON_THE_INTERPRETER = pytest.mark.parametrize("switch", [interpreter.Interpreter], indirect=True)
"""For what kernels have compiled in, or do not report."""
ETHERNET = bytes.fromhex("0102030405060708090a0b0c0d0e")


def number(value, n=2):
    return value.to_bytes(n, "big")


@pytest.fixture(params=[interpreter.Interpreter, CompiledEngine])
def switch(switch, request):
    """The function from a program's name to a switch that runs it, on either engine."""
    return partial(switch, engine=request.param)


# Where packets go


@pytest.mark.parametrize(
    ("mode", "ports"),
    [(0, [0]), (2, []), (5, []), (4, [0])],
    ids=["nobody sends it", "511 drops in ingress", "511 drops in egress", "egress can't change the port"],
)
def test_where_packets_go(switch, mode, ports):
    assert [port for port, _ in switch("metadata").receive(4, ETHERNET + bytes([mode]) + bytes(11))] == ports


# Multicast


def multicasting(switch):
    running = switch("multicast")
    pre = running.state.replication
    pre.create_group(9)
    for rid, ports in ((11, [1, 2]), (12, [2])):
        pre.associate_node(9, pre.create_node(rid, ports))
    return running


def group(mode, number_=9):
    return ETHERNET + number(number_) + bytes([mode]) + bytes(5)


def test_multicast_comes_before_unicast_and_an_unknown_group_swallows_the_packet(switch):
    running = multicasting(switch)
    assert [port for port, _ in running.receive(1, group(0))] == [2, 2]
    assert [port for port, _ in running.receive(1, group(3))] == [1, 2, 2]
    assert running.receive(1, group(0, 77)) == []
    assert [port for port, _ in running.receive(1, group(0, 0))] == [1]


# Clones


def cloning(switch):
    running = switch("clone")
    for session, port in ((5, 50), (6, 60), (7, 70)):
        running.state.mirroring.add(session, port=port)
    return running


def probe(what):
    return ETHERNET + bytes([what]) + bytes(7) + b"rest"


def test_an_ingress_clone_is_the_packet_as_it_came_with_the_final_values_of_its_fields(switch):
    """The clone's addresses are those before ingress; kept has its last value; what is in no list is 0."""
    (port, clone), (_, packet) = cloning(switch).receive(1, probe(1))
    assert port == 50
    assert clone == ETHERNET + b"\1\1" + number(0x3333) + number(0) + number(26) + b"rest"
    assert packet[6:14] == bytes.fromhex("0a0b0c0d0e0f9999")


def test_of_two_clone_calls_the_last_counts(switch):
    sent = cloning(switch).receive(1, probe(5))
    assert [port for port, _ in sent] == [60, 1]
    assert sent[0][1][16:20] == bytes(4)  # clone() without a list keeps nothing


def test_an_unknown_session_clones_nothing(switch):
    assert [port for port, _ in switch("clone").receive(1, probe(1))] == [1]


def test_a_clone_may_go_to_a_group(switch):
    running = switch("clone")
    running.state.replication.create_group(4)
    running.state.replication.associate_node(4, running.state.replication.create_node(1, [8, 9]))
    running.state.mirroring.add(5, port=50, mgid=4)
    assert [port for port, _ in running.receive(1, probe(1))] == [8, 9, 50, 1]


# Recirculate


def test_recirculate_takes_the_deparsed_packet(switch):
    [(port, frame)] = switch("recirculate").receive(4, ETHERNET + b"\2" + bytes(7))
    assert port == 0
    assert frame[14:22] == b"\0\4" + number(3) + number(1) + number(26)
    assert frame[22:] == bytes.fromhex("aaaaaaaa")


@ON_THE_INTERPRETER
def test_a_packet_that_goes_round_for_ever_is_dropped(switch, monkeypatch):
    monkeypatch.setattr(traffic_manager, "MAX_PASSES", 3)
    assert switch("recirculate").receive(4, ETHERNET + b"\7" + bytes(7)) == []


# Truncate


def test_truncate_limits_what_is_sent_but_not_packet_length(switch):
    running = switch("truncate")
    [(_, frame)] = running.receive(1, ETHERNET + number(20) + number(0) + bytes(30))
    assert (len(frame), frame[16:18]) == (20, number(48))
    [(_, frame)] = running.receive(1, ETHERNET + number(60) + number(0) + bytes(30))
    assert len(frame) == 48


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


@pytest.mark.parametrize("depth", [0, 2])
def test_a_full_queue_drops(switch, depth):
    running = switch("queues")
    running.state.queues.set_rate(10, port=2)
    running.state.queues.set_depth(depth, port=2)
    sent = [running.receive(1, queued(2)) for _ in range(5)]
    running.now = 10_000_000
    assert len(running.poll()) == depth and (depth or not any(sent))


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


@ON_THE_INTERPRETER
def test_a_packet_may_grow_more_than_in_bmv2_with_a_warning(switch, monkeypatch, caplog):
    monkeypatch.setattr(interpreter, "MAX_GROWTH", 3)
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
