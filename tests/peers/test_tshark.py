"""scripts/switchml.lua in tshark: what it decodes agrees with packet.py, and nothing makes it raise a Lua error."""

import json
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import PcapWriter

from switchml.errors import PacketError
from switchml.protocol.packet import (
    CONTRIBUTION,
    FLAG_MIXED,
    FLAG_OVERFLOW,
    OP_MEAN_BFLOAT16,
    OP_MEAN_FLOAT16,
    OP_SUM_BFLOAT16,
    OP_SUM_FLOAT16,
    REACH_ALL,
    RESULT,
    UDP_PORT,
)
from tests.support.any_packet import by_name
from tests.support.packets import AddressedPacket, SparsePacket, V1Packet, V2Packet, WaitPacket
from tests.support.vectors_io import load_all

SCRIPT = Path(__file__).parents[2] / "scripts" / "switchml.lua"
# Wireshark asks the dissector of the lower port first, and 4000, the reference client's port, is ICQ's.
WORKER_PORT = 60000

VECTOR_PACKETS = sorted({data for s in load_all() for step in s.steps for data in (step.data, step.reply) if data})


def decode(data: bytes):
    """The packet in packet.py's words, or None."""
    for kind in (V1Packet, V2Packet, SparsePacket, AddressedPacket, WaitPacket):
        try:
            return kind.unpack(data)
        except PacketError:
            pass
    return None


PACKETS = [data for data in VECTOR_PACKETS if decode(data)]
BROKEN = [data for data in VECTOR_PACKETS if not decode(data)]


@pytest.fixture
def tshark(require_program, tmp_path):
    """`tshark(datagrams, *arguments)`: its output for a capture of these datagrams.

    A bytes goes to the aggregator; a tuple is (data, source port, destination port), and as a fourth element it may
    have how many bytes of the frame were captured.
    """
    program = require_program("tshark")

    def run(datagrams, *arguments: str) -> str:
        capture = tmp_path / "capture.pcap"
        with PcapWriter(str(capture), linktype=1) as writer:
            for datagram in datagrams:
                data, sport, dport, *cut = (
                    (datagram, WORKER_PORT, UDP_PORT) if isinstance(datagram, bytes) else datagram
                )
                addresses = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / IP(
                    src="10.0.0.1", dst="10.0.0.254"
                )
                frame = bytes(addresses / UDP(sport=sport, dport=dport) / Raw(data))
                record = Raw(frame[: cut[0]] if cut else frame)
                record.wirelen = len(frame)
                writer.write(record)
        command = [program, "-X", f"lua_script:{SCRIPT}", "-r", str(capture), *arguments]
        # A home of its own: the user's preferences and plugins are not under test.
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        if "switchml" in done.stderr and "neither a field nor a protocol" in done.stderr and "superuser" in done.stderr:
            pytest.skip("this tshark runs no Lua scripts as root")
        assert done.returncode == 0, done.stderr
        assert "Lua" not in done.stderr and "Lua Error" not in done.stdout, done.stderr + done.stdout[-2000:]
        return done.stdout

    return run


def fields(output: str, names) -> list[dict[str, list[str]]]:
    """The rows of `-T fields`, as a list of values for each name."""
    rows = [line.split("\t") for line in output.splitlines()]
    return [{name: cell.split(",") if cell else [] for name, cell in zip(names, row, strict=True)} for row in rows]


def ask(names) -> list[str]:
    """The arguments that make tshark print these fields."""
    wanted = (word for name in names for word in ("-e", name))
    return ["-T", "fields", "-E", "occurrence=a", "-E", "aggregator=,", *wanted]


NAMES = [f"switchml.{name}" for name in (
    "version", "type", "job", "tsi", "slot", "set", "e0", "e1", "seq", "tag", "need", "used", "ahead", "flags",
    "flags.overflow", "flags.mixed", "retransmission", "missing", "values", "malformed", "columns", "mark",
    "words", "reach", "root", "op")]  # fmt: skip


def expected(packet) -> dict[str, list[int]]:
    """What tshark's fields should hold."""
    words = by_name(packet)
    if isinstance(packet, V1Packet):
        words |= {"version": 1, "type": 1, "job": words.pop("job_number")}
    else:
        again = words.pop("r", 0)
        words = {"type": 15} | words | {"version": 2, "retransmission": again}
    if "words" in words:
        words["columns"] = len(packet.words)
    if "flags" in words:
        flags = words["flags"]
        words |= {"flags.overflow": flags & FLAG_OVERFLOW, "flags.mixed": (flags & FLAG_MIXED) // 2}
    return {f"switchml.{name}": value if isinstance(value, list) else [value] for name, value in words.items()}


def numbers(row: dict[str, list[str]]) -> dict[str, list[int]]:
    """The fields that are there. Newer versions print True and False."""
    return {
        name: [int({"True": "1", "False": "0"}.get(v, v), 0) for v in values] for name, values in row.items() if values
    }


def test_every_vector_packet(tshark):
    rows = fields(tshark(PACKETS, *ask(NAMES)), NAMES)
    assert len(rows) == len(PACKETS) > 200
    for row, data in zip(rows, PACKETS, strict=True):
        assert numbers(row) == {name: value for name, value in expected(decode(data)).items() if value}


def test_json(tshark):
    packet = V2Packet(RESULT, 4100, 0x5EED, 3, FLAG_OVERFLOW, 127, [7, -7] + [0] * 62, r=True)
    (frame,) = json.loads(tshark([(packet.pack(), UDP_PORT, WORKER_PORT)], "-T", "json", "--no-duplicate-keys"))
    layer = frame["_source"]["layers"]["switchml"]
    assert (layer["switchml.seq"], layer["switchml.need"], layer["switchml.ahead"]) == ("4100", "3", "127")
    tree = next(value for key, value in layer.items() if key.startswith("switchml.payload") and isinstance(value, dict))
    assert tree["switchml.values"][:3] == ["7", "-7", "0"] and len(tree["switchml.values"]) == 64


@pytest.mark.parametrize(
    "sport, dport", [(WORKER_PORT, 48864), (WORKER_PORT, 48879), (48864, WORKER_PORT), (48870, 40000)]
)
def test_ports(tshark, sport, dport):
    packet = WaitPacket(1, 2, (3,)).pack()
    assert tshark([(packet, sport, dport)], *ask(["switchml.missing"])) == "3\n"


def test_other_ports_by_preference_and_decode_as(tshark):
    packet = WaitPacket(1, 2, (3,)).pack()
    datagrams = [(packet, WORKER_PORT, 50000), (packet, WORKER_PORT, 48880), (packet, WORKER_PORT, UDP_PORT)]
    names = ["switchml.missing"]
    assert tshark(datagrams, *ask(names)).splitlines() == ["", "", "3"]
    assert tshark(datagrams, "-o", "switchml.ports:50000,48880", *ask(names)).splitlines() == ["3", "3", ""]
    assert tshark(datagrams, "-o", "switchml.ports:", *ask(names)).splitlines() == ["", "", ""]
    assert tshark(datagrams, "-d", "udp.port==50000,switchml", *ask(names)).splitlines() == ["3", "", "3"]


def test_slots_preference(tshark):
    datagrams = [V2Packet(CONTRIBUTION, seq, 1, 0, 0, 0, [0] * 64).pack() for seq in (4096, 4101, 4099, 2**32 - 1)]
    names = ["switchml.slot", "switchml.set"]
    assert tshark(datagrams, *ask(names)).split() == []
    rows = fields(tshark(datagrams, "-o", "switchml.slots:4", *ask(names)), names)
    assert [(row["switchml.slot"], row["switchml.set"]) for row in rows] == [
        (["0"], ["0"]),
        (["1"], ["1"]),
        (["3"], ["0"]),
        (["3"], ["1"]),
    ]


@pytest.mark.parametrize("display_filter, count", [
    ("switchml", 5), ("switchml.version == 1", 1), ("switchml.flags.overflow == 1", 1), ("switchml.missing == 9", 1),
    ("switchml.values == -42", 2), ("switchml.type >= 12", 2), ("switchml.retransmission == 1", 1),
    ("switchml.need > 3", 1), ("switchml.again", 1), ("switchml.overflowed", 1), ("switchml.malformed", 0),
    ("switchml.tag == 0x5eed && switchml.used == 8", 2),
])  # fmt: skip
def test_filters(tshark, display_filter, count):
    datagrams = [
        V1Packet(1, 0, 3, 0, 0, 0, [-42] * 64).pack(),
        V2Packet(CONTRIBUTION, 1, 0x5EED, 4, 8, 0, [0] * 64).pack(),
        V2Packet(CONTRIBUTION, 1, 0x5EED, 3, 8, 0, [0] * 63 + [-42], r=True).pack(),
        V2Packet(RESULT, 1, 0x5EED, 0, FLAG_OVERFLOW, 0, [0] * 64).pack(),
        WaitPacket(1, 0x5EED, (9, 11)).pack(),
    ]
    assert len(tshark(datagrams, "-Y", display_filter, *ask(["frame.number"])).splitlines()) == count


def test_info_column(tshark):
    datagrams = [
        V1Packet(7, 0x05000000, 130, 1, -3, 0, [0] * 64).pack(),
        (V1Packet(7, 0x05000000, 130, 1, -3, 0, [0] * 64).pack(), UDP_PORT, WORKER_PORT),
        V2Packet(CONTRIBUTION, 4101, 0x5EED, 5, 8, 0, [0] * 64, r=True).pack(),
        V2Packet(RESULT, 4101, 0x5EED, 5, FLAG_OVERFLOW | FLAG_MIXED, 0, [0] * 128, wire=1).pack(),
        WaitPacket(4101, 0x5EED, (0, 200)).pack(),
        b"\x81" + bytes(20),
        b"\x87" + bytes(9 + 1024) + b"\x01\0",
    ]
    columns = 'gui.column.format:"Protocol","%p","Info","%i"'
    lines = tshark(datagrams, "-o", "switchml.slots:4", "-o", columns, "-T", "tabs").splitlines()
    assert lines == [f"SwitchML\t{info}" for info in (
        "v1 contribution slot 130 set 1, job 7, tsi 83886080 (le 5), e0 -3",
        "v1 result slot 130 set 1, job 7, tsi 83886080 (le 5), e0 -3",
        "contribution int32 seq 4101 (slot 1.1) tag 0x5eed need 5 used 8 [retransmission]",
        "result int16 seq 4101 (slot 1.1) tag 0x5eed need 5 [OVERFLOW] [MIXED]",
        "wait seq 4101 (slot 1.1) tag 0x5eed missing ranks 0, 200",
        "contribution int32 seq 0 (slot 0.0) tag 0x0000 need 0 used 0 [malformed]",
        "partial sum of contribution int32 seq 0 (slot 0.0) tag 0x0000 need 0 used 0",
    )]  # fmt: skip


def test_exponents_in_words(tshark):
    output = tshark([V2Packet(CONTRIBUTION, 0, 0, 127, 125, 127, [0] * 64).pack(),
                     V2Packet(CONTRIBUTION, 0, 0, -128, 127, 5, [0] * 64).pack()], "-V")  # fmt: skip
    for text in ("Ahead: 127 (unknown)", "Need: 127 (not finite)", "Used: 125 (integer)",
                 "Need: -128 (2^-126 or zeros)", "Used: 127 (classify)", "Ahead: 5 (2^7)"):  # fmt: skip
        assert text in output


@pytest.mark.parametrize(("op", "dtype"), [
    (OP_SUM_FLOAT16, "float16"), (OP_SUM_BFLOAT16, "bfloat16"), (OP_MEAN_FLOAT16, "float16"),
    (OP_MEAN_BFLOAT16, "bfloat16"),
])  # fmt: skip
def test_lanes_of_half_precision(tshark, op, dtype):
    torch = pytest.importorskip("torch")
    lanes = torch.tensor([0.0, 1.0, -1.5, 2**-10, -(2**-20), 300.0, float("inf"), float("nan")] * 16)
    halves = lanes.to(getattr(torch, dtype))
    words = np.frombuffer(halves.view(torch.int16).numpy().tobytes(), ">i4").tolist()
    packet = AddressedPacket(CONTRIBUTION, 4096, 7, 0, 127, 5, REACH_ALL, 0, op, words)
    (row,) = fields(tshark([packet.pack()], *ask(["switchml.malformed", "switchml.halves"])), ["malformed", "halves"])
    assert row["malformed"] == []
    np.testing.assert_array_equal([float(value) for value in row["halves"]], halves.double().numpy())


def test_broken_packets_get_an_expert_info(tshark):
    names = ["switchml.malformed", "switchml.dropped"]
    rows = fields(tshark(BROKEN, *ask(names)), names)
    assert len(rows) == len(BROKEN) > 20
    for row, data in zip(rows, BROKEN, strict=True):
        # v1's 128 and 512 bytes are well formed, though no aggregator takes them.
        wrong = "switchml.dropped" if (data[0], len(data)) in ((0x10, 138), (0x12, 522)) else "switchml.malformed"
        assert [name for name in names if row[name]] == [wrong], data[:16].hex(" ")


def test_garbage_is_no_lua_error(tshark):
    chooser = random.Random(1)
    garbage = [chooser.randbytes(chooser.choice((1, 5, 9, 10, 11, 30, 42, 266, 300))) for _ in range(300)]
    for data in chooser.choices(PACKETS, k=200):
        at = chooser.randrange(10)
        garbage.append(data[:at] + chooser.randbytes(1) + data[at + 1 : chooser.choice((12, 41, 43, 265, 266, 1034))])
    output = tshark(garbage, "-V")
    assert output.count("\nSwitchML in-network aggregation") == len(garbage)


def test_cut_captures_are_not_called_malformed(tshark):
    """A capture with a short snapshot length: the lanes that are there, and no complaint about the others."""
    packet = V2Packet(CONTRIBUTION, 1, 2, 3, 4, 5, list(range(64))).pack()
    wait = WaitPacket(1, 2, (0, 9, 255)).pack()
    datagrams = [(packet, WORKER_PORT, UDP_PORT, 42 + n_bytes) for n_bytes in (5, 10, 13, 14, 21, 266)]
    datagrams += [(wait, WORKER_PORT, UDP_PORT, 42 + n_bytes) for n_bytes in (10, 11, 12, 42)]
    names = ["switchml.values", "switchml.missing", "switchml.malformed"]
    rows = fields(tshark(datagrams, *ask(names)), names)
    assert [len(row["switchml.values"]) for row in rows] == [0, 0, 0, 1, 2, 64, 0, 0, 0, 0]
    assert [row["switchml.missing"] for row in rows[6:]] == [[], ["0"], ["0", "9"], ["0", "9", "255"]]
    assert not any(row["switchml.malformed"] for row in rows)


def test_trains_that_loopback_delivers_are_split(tshark):
    """A datagram that the kernel would cut later (UDP_SEGMENT): packets of one length, the last may be shorter."""
    dense = [V2Packet(CONTRIBUTION, seq, 0x5EED, 1, 2, 3, [seq] * 256).pack() for seq in range(58)]
    sparse = [SparsePacket(CONTRIBUTION, seq, 0x5EED, 0, (seq + 1, seq + 2), [seq] * 256).pack() for seq in range(3)]
    partial = [b"\x87\0\0\0\0" + bytes([seq]) + b"\x5e\xed" + bytes(2 + 1024 + 2) for seq in range(3)]
    wait = [WaitPacket(seq, 0x5EED, (seq,)).pack() for seq in range(4)]
    old = [V1Packet(1, seq, 3, 0, 0, 0, [seq] * 64).pack() for seq in range(5)]
    tagged = [packet + bytes(range(8)) for packet in dense[:6]]
    trains = [dense, sparse, partial, wait, old, tagged, [*dense[:2], wait[2]], dense[:1]]
    names = ["switchml.seq", "switchml.tsi", "switchml.type", "switchml.malformed", "switchml.auth"]
    rows = fields(tshark([b"".join(train) for train in trains], *ask(names)), names)
    assert [len(row["switchml.type"]) for row in rows] == [len(train) for train in trains]
    assert not any(row["switchml.malformed"] for row in rows)
    assert [len(row["switchml.auth"]) for row in rows] == [0, 0, 0, 0, 0, 6, 0, 0]
    for row in rows[:4]:
        assert [int(seq) for seq in row["switchml.seq"]] == list(range(len(row["switchml.type"])))
    assert [int(tsi.split("(")[0], 0) for tsi in rows[4]["switchml.tsi"]] == list(range(5))


def test_cut_train_shows_the_packets_that_were_captured(tshark):
    packets = [V2Packet(CONTRIBUTION, seq, 1, 1, 2, 3, [seq] * 256).pack() for seq in range(9)]
    names = ["switchml.seq", "switchml.values", "switchml.malformed"]
    [row] = fields(tshark([(b"".join(packets), WORKER_PORT, UDP_PORT, 42 + 1034 + 10 + 400)], *ask(names)), names)
    assert (row["switchml.seq"], len(row["switchml.values"]), row["switchml.malformed"]) == (["0", "1"], 356, [])
