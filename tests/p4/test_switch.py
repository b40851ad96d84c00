"""What the P4 program does besides single jobs: it is a host and an Ethernet switch, loses packets when told, and keeps
jobs apart; and against the pool on random packets."""

import itertools
import random
import struct

import numpy as np
import pytest

from switchml.control.p4.tables import OUTCOMES, RegisterPlace, address_number, job_counters, loss_changes, open_slots
from switchml.counters import COUNTERS
from switchml.protocol.packet import FLAG_LATE, FLAG_PARTIAL, UDP_PORT, UDP_PORTS
from switchml.protocol.pool import Pool, PoolV1
from tests.peers import simple_switch
from tests.support import p4_programming
from tests.support.bmv2_replay import replay
from tests.support.p4_frames import SWITCH_ADDRESS, SWITCH_MAC, Datagram, ethernet, ipv4, ones_complement_sum, udp
from tests.support.p4_jobs import COMPILED, PORTS, Job, fits, program, read, switch_itself
from tests.support.vectors_io import Scenario, Step, load_all

OURS = address_number(SWITCH_ADDRESS)
ALICE, BOB = (0x02_00_00_00_AA_01, address_number("10.9.0.1")), (0x02_00_00_00_AA_02, address_number("10.9.0.2"))
BROADCAST = 0xFFFF_FFFF_FFFF
OTHERS = [1, 2, 3]  # ports but for 0


def arp(operation: int, sender: tuple[int, int], target: tuple[int, int]) -> bytes:
    fields = [
        mac_or_ip for mac, ip in (sender, target) for mac_or_ip in (mac.to_bytes(6, "big"), ip.to_bytes(4, "big"))
    ]
    return struct.pack(">HHBBH", 1, 0x0800, 6, 4, operation) + b"".join(fields)


def echo(kind: int, rest: bytes) -> bytes:
    message = struct.pack(">BBH", kind, 0, 0) + rest
    return message[:2] + struct.pack(">H", ones_complement_sum(message) ^ 0xFFFF) + message[4:]


def small_job(generation: int = 1, **changes) -> Job:
    about = {"workers": 2, "payload_bytes": 256, "slots": 4, "tag": 77, "isn": 800} | changes
    return Job(Scenario("small", 2, "", **about), RegisterPlace(row=64, worker=3, group=9, generation=generation))


def contribution(
    rank: int, seq: int, *, job_tag: int = 77, value: int = 1, kind: int = 8, r: int = 0, used: int = 0
) -> Step:
    data = (
        struct.pack(">BbIHbb", kind << 4 | r << 3 | 1, 0, seq % 2**32, job_tag, 0, used) + struct.pack(">i", value) * 64
    )
    return Step("", rank, data, {}, "", "", None, {})


def start(switch, job: Job) -> None:
    p4_programming.apply(switch.state, job.changes())


def give(switch, job: Job, step: Step) -> list:
    return read(switch.receive(*job.frame(step)))


# A host


def test_arp_is_answered(switch):
    question = ethernet(BROADCAST, ALICE[0], 0x0806, arp(1, ALICE, (0, OURS)) + bytes(18))
    answer = ethernet(ALICE[0], SWITCH_MAC, 0x0806, arp(2, (SWITCH_MAC, OURS), ALICE) + bytes(18))
    assert switch.receive(2, question) == [(2, answer)]


def test_arp_for_others_is_flooded(switch):
    question = ethernet(BROADCAST, ALICE[0], 0x0806, arp(1, ALICE, (0, BOB[1])))
    assert switch.receive(0, question) == [(port, question) for port in OTHERS]


def test_arp_answers_to_the_switch_end_there(switch):
    assert switch.receive(0, ethernet(SWITCH_MAC, ALICE[0], 0x0806, arp(2, ALICE, (SWITCH_MAC, OURS)))) == []


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("rest", [b"", bytes(4), b"\x12\x34\x00\x01abcdefg", b"\xf7\xff" + bytes(500), b"\xf8\x00"])
def test_echo_is_answered(switch, rest):
    request = ethernet(SWITCH_MAC, ALICE[0], 0x0800, ipv4(ALICE[1], OURS, 1, echo(8, rest)))
    ((port, reply),) = switch.receive(1, request)
    assert port == 1
    assert reply[:14] == ethernet(ALICE[0], SWITCH_MAC, 0x0800, b"")
    assert ones_complement_sum(reply[14:34]) == 0xFFFF
    assert reply[26:34] == struct.pack(">II", OURS, ALICE[1])
    assert (reply[34:36], reply[38:]) == (b"\0\0", rest)
    assert ones_complement_sum(reply[34:]) == 0xFFFF


def test_what_is_for_nobody_on_the_switch_is_dropped(switch):
    for number, payload in ((1, echo(0, b"")), (17, struct.pack(">HHHH", 5, 53, 8, 0)), (6, bytes(20))):
        assert switch.receive(0, ethernet(SWITCH_MAC, ALICE[0], 0x0800, ipv4(ALICE[1], OURS, number, payload))) == []


# An Ethernet switch


def test_stations_are_learned(switch):
    there = ethernet(BOB[0], ALICE[0], 0x0800, ipv4(ALICE[1], BOB[1], 6, b"tcp"))
    back = ethernet(ALICE[0], BOB[0], 0x86DD, b"anything")
    assert switch.receive(0, there) == [(port, there) for port in OTHERS]
    assert switch.receive(2, back) == [(0, back)]
    assert switch.receive(0, there) == [(2, there)]
    assert switch.receive(2, there) == []  # Alice moved beside Bob, who has heard it already
    assert switch.receive(3, back) == [(2, back)]


def test_a_station_whose_cell_was_overwritten_is_flooded(switch):
    stations, owners = switch.state.register("stations"), {}
    for mac in range(0x02_00_00_01_00_00, 0x02_00_00_01_20_00):
        switch.receive(1, ethernet(BROADCAST, mac, 0x0800, b"x"))
        (cell,) = [i for i in np.flatnonzero(stations.data[:, 0]) if stations[i] % 2**48 == mac]
        if cell in owners:
            break
        owners[cell] = mac
    to_new, to_old = ethernet(mac, ALICE[0], 0x0800, b"x"), ethernet(owners[cell], ALICE[0], 0x0800, b"x")
    assert switch.receive(0, to_new) == [(1, to_new)]
    assert switch.receive(0, to_old) == [(port, to_old) for port in OTHERS]


def test_groups_are_flooded_and_never_learned(switch):
    for dst in (BROADCAST, 0x01_00_5E_00_00_01):
        frame = ethernet(dst, dst, 0x0800, b"x")
        assert switch.receive(0, frame) == [(port, frame) for port in OTHERS]
    assert not any(switch.state.register("stations").read_all())


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("length", [0, 10, 266, 1034])
def test_packets_for_another_aggregator_pass_unchanged(switch, length):
    """Also those that are parsed as far as their lanes."""
    frame = udp(Datagram((*ALICE, 5000), (*BOB, UDP_PORT), bytes(i % 251 for i in range(length))))
    assert switch.receive(0, frame) == [(port, frame) for port in OTHERS]


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("length", [0, 5, 13, 14, 20, 33, 34, 41, 60, 200])
def test_fragments_of_frames_do_no_harm(switch, length):
    job = small_job()
    start(switch, job)
    port, frame = job.frame(contribution(0, 800))
    before = [register.data.copy() for register in switch.state.registers if register.name != "stations"]
    switch.receive(port, frame[:length])
    after = [register.data for register in switch.state.registers if register.name != "stations"]
    assert all((a == b).all() for a, b in zip(before, after, strict=True))


def test_all_of_this_is_the_same_on_simple_switch(require_program):
    """ARP, echo, forwarding and what is dropped, on simple_switch and on the reference engine."""
    programs = require_program("simple_switch"), require_program("simple_switch_CLI")
    job = small_job()
    port, aggregated = job.frame(contribution(0, 800))
    there = ethernet(BOB[0], ALICE[0], 0x0800, ipv4(ALICE[1], BOB[1], 6, b"tcp"))
    packets = [
        (2, ethernet(BROADCAST, ALICE[0], 0x0806, arp(1, ALICE, (0, OURS)) + bytes(18))),
        (0, ethernet(BROADCAST, ALICE[0], 0x0806, arp(1, ALICE, (0, BOB[1])))),
        (0, ethernet(SWITCH_MAC, ALICE[0], 0x0800, ipv4(ALICE[1], OURS, 1, echo(8, b"\xf7\xff" + bytes(51))))),
        (0, ethernet(SWITCH_MAC, ALICE[0], 0x0800, ipv4(ALICE[1], OURS, 6, bytes(20)))), (0, there),
        (2, ethernet(ALICE[0], BOB[0], 0x86DD, b"anything")), (0, there), (2, there),
        (3, udp(Datagram((*ALICE, 5000), (*BOB, UDP_PORT), bytes(i % 251 for i in range(1034))))),
        (port, aggregated[:24] + bytes([aggregated[24] ^ 1]) + aggregated[25:]),
        *((port, aggregated[:length]) for length in (13, 33, 41, 60, 200)), (port, aggregated),
        job.frame(contribution(1, 800)),
    ]  # fmt: skip
    lines = p4_programming.commands([switch_itself(), job.changes(), loss_changes(3, 0, 1)])
    path = COMPILED / "switchml.json"
    sent, _, _ = simple_switch.run(*programs, path, lines, packets, PORTS)
    ours = replay(program("switchml"), lines, packets, ports=PORTS)
    assert all(ours.accepted)
    assert sent == ours.sent
    assert sum(map(len, sent.values())) > 12


# Losses


def test_certain_loss_at_ingress_changes_nothing(switch):
    job = small_job()
    start(switch, job)
    p4_programming.apply(switch.state, loss_changes(job.port(0), 0.999999999999, 0))
    assert give(switch, job, contribution(0, 800)) == []
    assert not any(switch.state.register("rounds").read_all())
    assert give(switch, job, contribution(1, 800)) == []
    assert any(switch.state.register("rounds").read_all())


def test_certain_loss_at_egress_spares_the_others(switch):
    job = small_job()
    start(switch, job)
    p4_programming.apply(switch.state, loss_changes(job.port(1), 0, 1))
    assert give(switch, job, contribution(0, 800)) == []
    assert [port for port, _ in give(switch, job, contribution(1, 800))] == [job.port(0)]


def test_losses_have_the_configured_rate(switch):
    p4_programming.apply(switch.state, loss_changes(0, 0.25, 0))
    frame = ethernet(BROADCAST, ALICE[0], 0x0806, arp(1, ALICE, (0, OURS)))
    answered = sum(len(switch.receive(0, frame)) for _ in range(800))
    assert 500 < answered < 700


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_probabilities_are_checked(probability):
    with pytest.raises(ValueError, match="expected 0 to 1"):
        loss_changes(0, probability, 0)


# Jobs


def test_strangers_are_counted_and_change_nothing(switch):
    job = small_job()
    start(switch, job)
    end = job.end(0)
    ours = SWITCH_MAC, OURS, UDP_PORT
    data = contribution(0, 800).data
    for src, dst in (
        ((end[0], end[1] + 100, end[2]), ours),
        ((end[0], end[1], end[2] + 100), ours),
        (end, (SWITCH_MAC, OURS, UDP_PORT + 1)),
    ):
        assert switch.receive(0, udp(Datagram(src, dst, data))) == []
    assert switch.state.counter("outcomes").read(0)[0] == 3
    assert not any(switch.state.register("rounds").read_all())


def test_wrong_ipv4_checksum(switch):
    job = small_job()
    start(switch, job)
    port, frame = job.frame(contribution(0, 800))
    assert switch.receive(port, frame[:24] + bytes([frame[24] ^ 1]) + frame[25:]) == []
    assert not any(switch.state.register("rounds").read_all())


def test_v1_at_all_of_its_ports_and_with_ipv4_checksum_0(switch):
    """As p4app-switchML's DPDK client sends it."""
    job = Job(Scenario("client", 1, "", 2, 256), RegisterPlace(row=64, worker=3, group=9, generation=1))
    start(switch, job)

    def send(rank: int, port: int, checksum: bytes, kind: int = 1) -> list:
        data = struct.pack(">BBIHbb", kind << 4 | 1, 0, 0, 0, 0, 0) + struct.pack(">i", 1 + rank) * 64
        frame = udp(Datagram(job.end(rank), (SWITCH_MAC, OURS, port), data))
        return read(switch.receive(job.port(rank), frame[:24] + checksum + frame[26:]))

    assert send(0, UDP_PORTS[1], b"\0\1") == send(0, UDP_PORTS[1], b"\0\0", kind=8) == []
    assert not any(switch.state.register("rounds").read_all())
    assert send(0, UDP_PORTS[1], b"\0\0") == []
    results = send(1, UDP_PORTS[-1], b"\0\0")
    assert [datagram.src for _, datagram in results] == [(SWITCH_MAC, OURS, UDP_PORTS[-1])] * 2
    assert {datagram.payload[10:] for _, datagram in results} == {struct.pack(">i", 3) * 64}


def test_jobs_do_not_touch_each_other(switch):
    """All scenarios of protocol 2, interleaved packet by packet, in neighbouring rows."""
    jobs, row, worker = [], 0, 1
    for number, scenario in enumerate(s for s in load_all() if s.protocol == 2 and fits(s)):
        jobs.append(Job(scenario, RegisterPlace(row, worker, 2 + number, 1), number))
        row, worker = row + jobs[-1].rows, worker + scenario.workers
        start(switch, jobs[-1])
    for steps in itertools.zip_longest(*(job.scenario.steps for job in jobs)):
        for job, step in zip(jobs, steps, strict=True):
            if step:
                assert sorted(give(switch, job, step)) == sorted(job.replies(step)), step.label


def open_now(switch, job: Job) -> tuple[int, tuple[int, ...]]:
    names = ("rounds", "marks")
    cells = [switch.state.register(name).read_all()[job.place.row :][: job.rows] for name in names]
    as_thrift = [[cell - (cell >> 63 << 64) for cell in column] for column in cells]
    assert open_slots(job.spec, job.place, *cells) == open_slots(job.spec, job.place, *as_thrift)
    return open_slots(job.spec, job.place, *cells)


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("protocol", [1, 2])
def test_open_slots(switch, protocol):
    job = Job(Scenario("open", protocol, "", 3, 256, 4, 0, 77, 800), RegisterPlace(0, 1, 2, 0xFFFF_FFFE))
    for row in range(job.rows):  # left by another job
        switch.state.register("rounds").write(row, (5 << 32) + 2)
        switch.state.register("marks").write(row, 3 << 32)
    start(switch, job)
    assert open_now(switch, job) == (0, ())

    def send(rank: int, slot: int) -> None:
        data = contribution(rank, 800 + slot).data
        if protocol == 1:
            data = struct.pack(">BBIHbb", 0x11, 0, 0, slot, 0, 0) + data[10:]
        switch.receive(*job.frame(Step("", rank, data, {}, "", "", None, {})))

    for rank, slot in ((0, 1), (2, 1), (0, 3)):
        send(rank, slot)
    assert open_now(switch, job) == (2, (1, 2))
    send(1, 1)
    assert open_now(switch, job) == (1, (1, 2))
    for rank in (1, 2):
        send(rank, 3)
    assert open_now(switch, job) == (0, ())


# Against the pool


def random_v2(source: random.Random, job: Job, progress: list[int]) -> Step:
    """Mostly what a slot waits for, or something beside it: other rounds, ranks that have sent, other lanes, tags."""
    s = job.scenario
    slot, rank = source.randrange(s.slots), source.randrange(s.workers)
    ahead = source.choice([0, 0, 0, 0, 0, 0, -1, -1, -2, 1, 2, 3, 1 << 29])
    seq = s.isn + (progress[slot] + ahead) * s.slots + slot
    kind = source.choice([8 + s.wire] * 20 + [8, 8, 9, 12, 1] + [11] * 5 * job.may_expire)
    first = kind << 4 | source.choice([0, 0, 8]) | source.choice([1] * 30 + [3, 0])
    codes = [source.choice([0, 0, 0, source.randrange(-128, 128)]) for _ in range(3)]
    job_tag = s.tag if source.random() < 0.97 else source.getrandbits(16)
    lanes = source.choice([bytes(256), source.randbytes(256), b"\x7f\xff\xff\xff" * 64, b"\x80" * 256])
    if source.random() < 0.5 and progress[slot] % 2:  # every other round mostly with words
        columns, has_data = source.choice([0, 0, 0, 1, 1, 2, 4, 8, 3]), source.choice([0, 1, 1])
        call = [source.choice([0, 1, 2, 2, 2, 3]), source.choice([0, 1, 1]), source.choice([0, 0, 0, 1, 2, 3, 4, 5])]
        words = bytes([*call, source.randrange(256)]) if columns == 0 else source.randbytes(4 * columns)
        kind = 8 if columns == 0 and call[2] else kind
        used = source.choice([4, 4, 4, 5])
        header = struct.pack(
            ">BBIHbb", kind << 4 | first & 8 | 4 | has_data, columns, seq % 2**32, job_tag, codes[1], used
        )
        return Step("", rank, header + words + lanes * has_data, {}, "", "", None, {})
    data = struct.pack(">BbIHbb", first, codes[0], seq % 2**32, job_tag, codes[1], codes[2]) + lanes
    return Step("", rank, data[: source.choice([266] * 50 + [265, 9])], {}, "", "", None, {})


def random_v1(source: random.Random, job: Job, progress: list[int]) -> Step:
    slot = source.choice([0, 1, 8191, 8192, 0x3FFF])
    first = source.choice([0x11] * 20 + [0x19, 0x10, 0x12, 0x13, 0x81])
    index = source.getrandbits(1) << 15 | source.getrandbits(1) << 14 | slot
    data = struct.pack(">BBIH", first, 5, source.getrandbits(32), index) + source.randbytes(2 + 256)
    return Step("", source.randrange(job.scenario.workers), data, {}, "", "", None, {})


def is_addressed(result: bytes) -> bool:
    return result[0] >> 4 < 15 and result[0] & 4 != 0 and result[1] == 0


CASES = [*((seed, False) for seed in range(6)), (1, True), (5, True), (8, True)]


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize(("seed", "may_expire"), CASES)
def test_random_packets_as_the_pool_has_them(switch, seed, may_expire):
    source = random.Random(seed)
    protocol, workers = (1, 2, 2)[seed % 3], source.choice([1, 2, 3, 32])
    isn = source.choice([0, 1 << 20, (1 << 32) - 16])
    job = Job(Scenario("random", protocol, "", workers, 256, 4, seed % 3, 77, isn), RegisterPlace(128, 50, 2, 1 << 31),
              may_expire=may_expire)  # fmt: skip
    s = job.scenario
    pool = PoolV1(workers=workers) if protocol == 1 else Pool(
        workers=workers, slots=4, payload_bytes=256, wire=s.wire, job_tag=77, isn=isn
    )  # fmt: skip
    start(switch, job)
    progress, actions, flags = [0] * 4, set(), 0
    for _ in range(600):
        step = (random_v1 if protocol == 1 else random_v2)(source, job, progress)
        outcome = pool.receive(step.rank, step.data)
        actions.add(outcome.action)
        reach, root = outcome.packet[10:12] if outcome.packet and is_addressed(outcome.packet) else (0, 0)
        cut = [rank for rank in range(workers) if reach and (rank == root) != (reach == 1)]
        row = int.from_bytes(step.data[2:6], "big") % 8
        receivers = tuple(rank for rank in range(workers) if protocol == 1 or pool.gets_result(row, rank))
        flags |= outcome.packet[9] if outcome.action in ("multicast", "unicast") and protocol == 2 else 0
        reply = Step("", step.rank, b"", {}, outcome.action, "", outcome.packet, {}, tuple(cut), receivers)
        expected = job.replies(reply)
        assert sorted(give(switch, job, step)) == sorted(expected), step.data[:10].hex()
        if outcome.action == "multicast" and protocol == 2:
            progress[int.from_bytes(step.data[2:6], "big") % 4] += 1
    assert {"multicast", "unicast", "drop"} <= actions
    assert (flags & (FLAG_PARTIAL | FLAG_LATE) == FLAG_PARTIAL | FLAG_LATE) == may_expire
    first = OUTCOMES * job.place.worker
    cells = [switch.state.counter("outcomes").read(first + i) for i in range(OUTCOMES * workers)]
    for rank, counted in enumerate(job_counters(job.spec, cells)):
        for name, number in zip(COUNTERS, pool.counters[rank].tolist(), strict=True):
            if not name.startswith("sent"):
                assert counted[name] == number, (rank, name)
