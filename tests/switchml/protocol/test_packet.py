"""The codec: every packet of the vectors in both directions, bytes spelled out, round trips, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchml.errors import PacketError
from switchml.protocol import packet as p
from tests.support.any_packet import packets
from tests.support.packets import AddressedPacket, SparsePacket, V1Packet, V2Packet, WaitPacket, sparse_word
from tests.support.vectors_io import FLAGS, OPS, REACHES, lanes, load_all

SCENARIOS = load_all()


def described(scenario):
    """(label, bytes, packet as `packets.py` builds it) of everything that a scenario gives as fields."""
    for step in scenario.steps:
        for data, fields, reply in ((step.data, step.fields, False), (step.reply, step.reply_fields, True)):
            f = {"r": 0, "wire": scenario.wire, **fields}
            values = None
            if f.get("values") is not None:
                values = lanes(scenario, f["values"], f["wire"])
            if "slot" in f:
                built = V1Packet(f["job_number"], f["tsi"], f["slot"], f["set"], f["e0"], f["e1"], values)
            elif "missing" in f:
                built = WaitPacket(f["seq"], f["tag"], tuple(f["missing"]))
            elif "reach" in f:
                kind, last = (
                    (p.RESULT, sum(FLAGS[name] for name in f["flags"])) if reply else (p.CONTRIBUTION, f["used"])
                )
                address = (REACHES[f["reach"]], f["root"], OPS[f.get("op", "sum")])
                if "length" in f or (address[2] and f["wire"]):
                    continue
                whole = scenario.payload_bytes if f.get("cut") else 0
                built = AddressedPacket(
                    kind, f["seq"], f["tag"], f["need"], last, f["ahead"], *address, values, f["wire"], bool(f["r"]),
                    bool(f.get("padded")), whole
                )  # fmt: skip
            elif "words" in f:
                if len(f["words"]) not in p.COLUMNS or f.get("columns", len(f["words"])) != len(f["words"]):
                    continue
                words = tuple(p.NO_WORD if word is None else sparse_word(*word) for word in f["words"])
                mark = sum(FLAGS[name] for name in f["flags"]) if reply else f["mark"]
                kind, padded = p.RESULT if reply else p.CONTRIBUTION, bool(f.get("padded"))
                built = SparsePacket(kind, f["seq"], f["tag"], mark, words, values, f["wire"], bool(f["r"]), padded)
            elif "values" in f:
                used = sum(FLAGS[name] for name in f["flags"]) if reply else f["used"]
                kind = p.RESULT if reply else p.CONTRIBUTION
                built = V2Packet(kind, f["seq"], f["tag"], f["need"], used, f["ahead"], values, f["wire"], bool(f["r"]))
            else:
                continue
            yield step.label, data, built


def same(a, b) -> bool:
    """Dataclasses with an array in them have no useful ==."""
    return type(a) is type(b) and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in a.__dataclass_fields__
    )


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_vectors_pack_and_unpack(scenario):
    packets = list(described(scenario))
    assert packets
    for label, data, built in packets:
        assert built.pack() == data, label
        assert same(type(built).unpack(data), built), label


def test_bytes_spelled_out():
    zeros = bytes(256)
    assert (
        V1Packet(7, 0x05000000, 5, 0, -3, 0, [0] * 64).pack() == bytes.fromhex("11 07 05 00 00 00 00 05 fd 00") + zeros
    )
    assert (
        V1Packet(7, 0x02010000, 130, 1, 4, 0, [0] * 64).pack() == bytes.fromhex("11 07 02 01 00 00 80 82 04 00") + zeros
    )
    assert V1Packet(0, 0, 0, 0, 0, 0, [1, -2] + [0] * 254).pack()[:18] == bytes.fromhex(
        "13 00 00000000 0000 00 00 00000001 fffffffe"
    )
    contribution = V2Packet(p.CONTRIBUTION, 0x12345678, 0xBEEF, -3, 4, 127, [0] * 64, r=True)
    assert contribution.pack() == bytes.fromhex("89 7f 12345678 beef fd 04") + zeros
    result = V2Packet(p.RESULT, 0xFFFFFFFF, 1, -128, p.FLAG_OVERFLOW | p.FLAG_MIXED, -1, [0] * 512, p.WIRE_INT16)
    assert result.pack() == bytes.fromhex("d3 ff ffffffff 0001 80 03") + bytes(1024)
    assert (
        WaitPacket(0x1000, 0x5EED, (0, 7, 8, 255)).pack()
        == bytes.fromhex("f0 00 00001000 5eed 00 00 81 01") + bytes(29) + b"\x80"
    )
    assert WaitPacket(0, 0, ()).pack() == bytes([0xF0]) + bytes(41)


def test_bits_that_v1_ignores():
    packet = V1Packet.unpack(bytes.fromhex("19 00 00000000 ffff 00 00") + bytes(256))
    assert (packet.set, packet.slot) == (1, 0x3FFF)
    assert packet.pack()[:8] == bytes.fromhex("11 00 00000000 bfff")


def test_a_sequence_number_wraps():
    assert V2Packet(p.CONTRIBUTION, 2**32 + 5, 0, 0, 0, 0, [0] * 64).pack()[2:6] == bytes([0, 0, 0, 5])


@given(packets())
def test_round_trip(packet):
    data = packet.pack()
    assert same(type(packet).unpack(data), packet)
    assert type(packet).unpack(data).pack() == data


@given(
    st.one_of(st.binary(max_size=64), st.binary(min_size=266, max_size=266), st.binary(min_size=1034, max_size=1034))
)
def test_other_bytes_are_a_packet_or_a_packet_error(data):
    for kind in (V1Packet, V2Packet, WaitPacket):
        try:
            packet = kind.unpack(data)
        except PacketError:
            continue
        assert len(packet.pack()) == len(data)


@pytest.mark.parametrize("kind, start, length, problem", [
    (V1Packet, "", 0, "0 bytes"),
    (V1Packet, "11", 9, "9 bytes: shorter than the 10-byte header"),
    (V1Packet, "11", 10, "size code 1 with 0 bytes"),
    (V1Packet, "11", 265, "size code 1 with 255 bytes"),
    (V1Packet, "13", 266, "size code 3 with 256 bytes"),
    (V1Packet, "10", 138, "size code 0 with 128 bytes"),
    (V1Packet, "12", 522, "size code 2 with 512 bytes"),
    (V1Packet, "81", 266, "message type 8: expected 1"),
    (V2Packet, "", 0, "0 bytes"),
    (V2Packet, "81", 265, "size code 1 with 255 bytes"),
    (V2Packet, "80", 138, "size code 0 with 128 bytes"),
    (V2Packet, "11", 266, "message type 1"),
    (V2Packet, "b1", 266, "message type 11"),
    (V2Packet, "f1", 266, "message type 15"),
    (V2Packet, "41", 266, "message type 4"),
    *((WaitPacket, *bad, "not a wait packet") for bad in (("", 0), ("f0", 41), ("f0", 43), ("f1", 42), ("f8", 42),
                                                         ("e0", 42))),
])  # fmt: skip
def test_what_is_no_packet_is_refused(kind, start, length, problem):
    with pytest.raises(PacketError, match=problem):
        kind.unpack(bytes.fromhex(start).ljust(length, b"\0"))


@pytest.mark.parametrize("count", [0, 1, 63, 65, 128, 255, 257])
def test_only_full_payloads_are_packed(count):
    with pytest.raises(PacketError, match=f"payload of {4 * count} bytes"):
        V1Packet(0, 0, 0, 0, 0, 0, np.zeros(count, np.int32)).pack()
    with pytest.raises(PacketError, match=f"payload of {4 * count} bytes"):
        V2Packet(p.CONTRIBUTION, 0, 0, 0, 0, 0, np.zeros(count, np.int32)).pack()


def test_ports():
    assert p.UDP_PORT == 48864 and list(p.UDP_PORTS) == list(range(48864, 48880))
    assert all(port & p.UDP_PORT_MASK == p.UDP_PORT for port in p.UDP_PORTS)
