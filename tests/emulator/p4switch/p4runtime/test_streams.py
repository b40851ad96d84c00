"""What passes in the stream and beside it: packets, digests, and the clones and copies of the replication engine."""

import time

import pytest

from emulator.p4switch.interpreter.interpreter import Interpreter
from emulator.p4switch.process import compiled
from tests.support.launch import until
from tests.support.p4runtime_controller import CPU_PORT, exact, refused, short, v1

ETHERNET = bytes.fromhex("000000000001 000000000002 0800")
FRAME = ETHERNET + bytes(50)


def port(number, instance=0):
    return {"port": short(number), "instance": instance}


def metadata(packet):
    return [(item.metadata_id, item.value) for item in packet.metadata]


def test_packet_in(primary, target):
    controller = primary("packet_io")
    target.receive(300, FRAME)  # the default action sends it to the controller
    packet = controller.stream.next("packet")
    assert packet.payload == FRAME
    assert metadata(packet) == [(1, short(300)), (2, b"\0"), (3, b"\0"), (4, b"\x01")]


def test_packets_through_the_compiled_engine(primary, target):
    controller = primary("packet_io")
    target.device.switch.change_engine(compiled)
    target.receive(300, FRAME)
    assert metadata(controller.stream.next("packet"))[0] == (1, short(300))
    controller.push("packet_io")  # stays with that kind of engine
    assert not isinstance(target.device.switch.engine, Interpreter)
    target.receive(300, FRAME)
    assert controller.stream.next("packet").payload == FRAME
    controller.stream.send(packet={"payload": FRAME, "metadata": [{"metadata_id": 1, "value": short(300)}]})
    until(lambda: any(number == 300 for number, _ in target.ports.sent))


def test_only_primaries_get_packets(primary, new_controller, target):
    controller = primary("packet_io")
    backup = new_controller(0)
    backup.arbitrate()
    target.receive(1, FRAME)
    assert controller.stream.next("packet").payload == FRAME
    assert backup.stream.is_quiet()


def test_packet_out(primary, target):
    controller = primary("packet_io")
    sent = target.ports.sent
    fields = [{"metadata_id": 3, "value": b"\xbe\xef"}, {"metadata_id": 1, "value": short(300)}]
    controller.stream.send(packet={"payload": FRAME, "metadata": fields})
    controller.stream.send(packet={"payload": FRAME})  # what is not given is 0
    until(lambda: len(sent) == 2)
    assert sent == [(300, FRAME[:12] + b"\xbe\xef" + FRAME[14:]), (0, FRAME[:12] + b"\0\0" + FRAME[14:])]


@pytest.mark.parametrize("field", [{"metadata_id": 9, "value": b"\0"}, {"metadata_id": 1, "value": b"\2\0"}])
def test_bad_packet_out(primary, target, field):
    controller = primary("packet_io")
    controller.stream.send(packet={"payload": FRAME, "metadata": [field]})
    error = controller.stream.next("error")
    assert error.packet_out.packet_out.payload == FRAME and error.canonical_code
    assert target.ports.sent == []


def test_clone_to_the_controller(primary, target):
    controller = primary("packet_io")
    controller.write("INSERT", table_entry=controller.entry("stations", {1: exact(1)}, controller.action("send", 2)))
    session = {"session_id": 5, "replicas": [port(CPU_PORT, 33)]}
    controller.write("INSERT", packet_replication_engine_entry={"clone_session_entry": session})
    assert (2, FRAME) in target.receive(1, FRAME)
    packet = controller.stream.next("packet")
    assert packet.payload == FRAME and metadata(packet)[:2] == [(1, b"\x21"), (2, b"\x01")]
    read = controller.read(packet_replication_engine_entry={"clone_session_entry": {}})
    assert [entry.clone_session_entry for entry in read] == [v1.CloneSessionEntry(**session)]
    session["replicas"] = [port(7), port(8)]
    controller.write("MODIFY", packet_replication_engine_entry={"clone_session_entry": session})
    assert [number for number, _ in target.receive(1, FRAME)] in ([7, 8, 2], [2, 7, 8])
    controller.write("DELETE", packet_replication_engine_entry={"clone_session_entry": {"session_id": 5}})
    assert target.receive(1, FRAME) == [(2, FRAME)]
    assert not target.state.mirroring.sessions and not target.state.replication.nodes


def write_group(controller, kind, number, *replicas):
    group = {"multicast_group_id": number, "replicas": replicas}
    controller.write(kind, packet_replication_engine_entry={"multicast_group_entry": group})


def read_groups(controller, number=0):
    pattern = {"multicast_group_entry": {"multicast_group_id": number}}
    return [entry.multicast_group_entry for entry in controller.read(packet_replication_engine_entry=pattern)]


def test_multicast_groups(primary, target):
    controller = primary("multicast")
    write_group(controller, "INSERT", 1, port(4, 1), port(3, 1), {"egress_port": 5, "instance": 2})
    assert target.state.replication.copies(1) == [(3, 1), (4, 1), (5, 2)]
    (group,) = read_groups(controller)
    assert [replica.WhichOneof("port_kind") for replica in group.replicas] == ["port", "port", "egress_port"]
    write_group(controller, "MODIFY", 1, port(9))
    assert target.state.replication.copies(1) == [(9, 0)]
    write_group(controller, "INSERT", 2)
    assert [group.multicast_group_id for group in read_groups(controller)] == [1, 2]
    assert [group.multicast_group_id for group in read_groups(controller, 2)] == [2]
    write_group(controller, "DELETE", 1)
    assert target.state.replication.copies(1) is None
    assert not target.state.replication.nodes


def test_backup_replicas(primary, target):
    """The first that is up is taken, the replica itself if none is; and others as ports come and go."""
    controller = primary("multicast")
    copies = target.state.replication.copies
    first = {"port": b"\1", "instance": 5, "backup_replicas": [{"port": b"\2", "instance": 6}, {"port": b"\3"}]}
    write_group(controller, "INSERT", 1, first, {"port": b"\4"})
    assert copies(1) == [(1, 5), (4, 0)]
    for up, expected in [
        ({2, 3}, [(2, 6), (4, 0)]),
        ({3}, [(3, 0), (4, 0)]),
        ({1, 3}, [(1, 5), (4, 0)]),
        (set(), [(1, 5), (4, 0)]),
    ]:
        target.ports.up = up
        until(lambda expected=expected: copies(1) == expected)
    target.ports.up = {2}
    session = {"session_id": 3, "replicas": [first]}
    controller.write("INSERT", packet_replication_engine_entry={"clone_session_entry": session})
    assert copies(target.state.mirroring.get(3).mgid) == [(2, 6)]
    assert read_groups(controller, 1)[0].replicas[0].backup_replicas[0].instance == 6


def test_bad_groups_and_sessions(primary, target):
    controller = primary("multicast")
    write_group(controller, "INSERT", 1, port(9))
    target.state.replication.max_nodes = 2
    cases = [
        ("INSERT", 1, (), "ALREADY_EXISTS"), ("MODIFY", 2, (), "NOT_FOUND"), ("DELETE", 2, (), "NOT_FOUND"),
        ("INSERT", 0, (), "INVALID_ARGUMENT"), ("INSERT", 1 << 15, (), "INVALID_ARGUMENT"),
        ("INSERT", 2, (port(512),), "INVALID_ARGUMENT"), ("INSERT", 2, (port(1, 1 << 16),), "INVALID_ARGUMENT"),
        ("INSERT", 2, (port(1), {"egress_port": 1}), "INVALID_ARGUMENT"),
        ("INSERT", 2, ({"port": b"\1", "backup_replicas": [{"port": b"\2\0"}]},), "INVALID_ARGUMENT"),
        ("MODIFY", 1, (port(1), port(1, 1), port(1, 2)), "RESOURCE_EXHAUSTED"),
    ]  # fmt: skip
    for kind, number, replicas, code in cases:
        with refused(code):
            write_group(controller, kind, number, *replicas)
    for fields, code in [
        ({}, "INVALID_ARGUMENT"),
        ({"session_id": 1 << 15}, "INVALID_ARGUMENT"),
        ({"session_id": 1, "class_of_service": 1}, "UNIMPLEMENTED"),
        ({"session_id": 1, "packet_length_bytes": 64}, "UNIMPLEMENTED"),
    ]:
        with refused(code):
            controller.write("INSERT", packet_replication_engine_entry={"clone_session_entry": fields})
    for kind in ("write", "read"):
        with refused("INVALID_ARGUMENT"):
            if kind == "write":
                controller.write("INSERT", packet_replication_engine_entry={})
            else:
                controller.read(packet_replication_engine_entry={})
    assert target.state.replication.copies(1) == [(9, 0)]
    assert list(target.state.replication.groups) == [1]


# Digests


@pytest.fixture
def learner(primary):
    """A controller of `digest`, whose program tells of unknown sources."""
    return primary("digest")


def digest_entry(controller, **config):
    return {"digest_id": controller.id("digests", "learned_t"), "config": config}


def frame_from(source):
    return ETHERNET[:6] + source.to_bytes(6, "big") + ETHERNET[12:] + bytes(50)


def samples(message):
    return [tuple(int.from_bytes(part.bitstring, "big") for part in data.struct.members) for data in message.data]


def test_digests(learner, target):
    target.receive(1, frame_from(9))  # nobody has asked yet
    entry = digest_entry(learner, max_list_size=2, max_timeout_ns=10**12, ack_timeout_ns=10**12)
    learner.write("INSERT", digest_entry=entry)
    assert learner.read(digest_entry={}) == [v1.DigestEntry(**entry)]
    for source in (1, 1, 2):
        target.receive(3, frame_from(source))
    first = learner.stream.next("digest")
    assert samples(first) == [(1, 3), (2, 3)] and first.digest_id == entry["digest_id"]
    assert abs(first.timestamp - time.time_ns()) < 60e9
    for source in (1, 2):  # known, as they were not acknowledged
        target.receive(3, frame_from(source))
    assert learner.stream.is_quiet()
    learner.stream.send(digest_ack={"digest_id": first.digest_id, "list_id": first.list_id})
    until(lambda: not target.state.digests[0].known)
    for source in (1, 2):
        target.receive(3, frame_from(source))
    second = learner.stream.next("digest")
    assert samples(second) == samples(first) and second.list_id != first.list_id


def test_digests_by_time(learner, target):
    learner.write("INSERT", digest_entry=digest_entry(learner, max_timeout_ns=20_000_000, ack_timeout_ns=30_000_000))
    target.receive(3, frame_from(1))
    assert samples(learner.stream.next("digest")) == [(1, 3)]
    until(lambda: not target.state.digests[0].known)  # the time for an acknowledgement is over
    learner.write("MODIFY", digest_entry=digest_entry(learner, max_list_size=100))
    target.receive(3, frame_from(1))  # no time to wait, and nothing to acknowledge
    target.receive(3, frame_from(1))
    assert [samples(learner.stream.next("digest")) for _ in range(2)] == [[(1, 3)]] * 2
    learner.write("DELETE", digest_entry=digest_entry(learner))
    target.receive(3, frame_from(1))
    assert learner.stream.is_quiet()
    assert learner.read(digest_entry={}) == []


def test_bad_digests(learner):
    for kind, code in [("MODIFY", "NOT_FOUND"), ("DELETE", "NOT_FOUND")]:
        with refused(code):
            learner.write(kind, digest_entry=digest_entry(learner))
    with refused("INVALID_ARGUMENT"):
        learner.write("INSERT", digest_entry=digest_entry(learner, max_list_size=-1))
    with refused("INVALID_ARGUMENT", "no digest 5"):
        learner.write("INSERT", digest_entry={"digest_id": 5})
    learner.write("INSERT", digest_entry=digest_entry(learner))
    with refused("ALREADY_EXISTS"):
        learner.write("INSERT", digest_entry=digest_entry(learner))
