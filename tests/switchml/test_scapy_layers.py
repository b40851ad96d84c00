"""The Scapy layers against packet.py, in both directions, and against bytes that are no packets at all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.packet import Raw

from switchml.protocol import packet as p
from switchml.protocol.packet import AddressedPacket, SparsePacket, V1Packet, V2Packet, WaitPacket
from switchml.scapy_layers import (
    IP,
    UDP,
    Ether,
    SwitchML,
    SwitchMLAddressed,
    SwitchMLSparse,
    SwitchMLv1,
    SwitchMLv2,
    SwitchMLWait,
    bind,
    conf,
)
from tests.support import golden
from tests.support.examples import examples
from tests.support.vectors_io import load_all

VECTOR_PACKETS = sorted(
    {data for s in load_all() for step in s.steps for data in (step.data, step.reply) if data is not None}
)


def layer_of(packet):
    """The layer that the fields of one of packet.py's packets make."""
    if isinstance(packet, V1Packet):
        return SwitchMLv1(
            job_number=packet.job_number,
            tsi=packet.tsi,
            slot=packet.slot,
            set=packet.set,
            e0=packet.e0,
            e1=packet.e1,
            values=packet.values,
        )
    if isinstance(packet, WaitPacket):
        return SwitchMLWait(seq=packet.seq, tag=packet.job_tag, missing=packet.missing)
    if isinstance(packet, SparsePacket):
        last = {"mark": packet.mark} if packet.kind == p.CONTRIBUTION else {"flags": packet.mark & 0xFF}
        return SwitchMLSparse(
            type=packet.kind | packet.wire,
            r=int(packet.r),
            seq=packet.seq,
            tag=packet.job_tag,
            words=packet.words,
            values=() if packet.values is None else packet.values,
            **last,
        )
    last = {"used": packet.used} if packet.kind == p.CONTRIBUTION else {"flags": packet.used & 0xFF}
    if isinstance(packet, AddressedPacket):
        return SwitchMLAddressed(
            type=packet.kind | packet.wire,
            r=int(packet.r),
            seq=packet.seq,
            tag=packet.job_tag,
            need=packet.need,
            reach=packet.reach,
            root=packet.root,
            op=packet.op,
            ahead=packet.ahead,
            values=() if packet.values is None else packet.values,
            **last,
        )
    return SwitchMLv2(
        type=packet.kind | packet.wire,
        r=int(packet.r),
        seq=packet.seq,
        tag=packet.job_tag,
        ahead=packet.ahead,
        need=packet.need,
        values=packet.values,
        **last,
    )


def fields_agree(layer, packet) -> bool:
    if isinstance(packet, WaitPacket):
        return (layer.seq, layer.tag, tuple(layer.missing)) == (packet.seq, packet.job_tag, packet.missing)
    if isinstance(packet, SparsePacket):
        last = layer.mark if packet.kind == p.CONTRIBUTION else np.uint8(int(layer.flags)).astype(np.int8)
        got = (layer.type, bool(layer.r), layer.seq, layer.tag, int(last), tuple(layer.words), layer.values)
        values = [] if packet.values is None else packet.values.tolist()
        kind = packet.kind | packet.wire
        return got == (kind, packet.r, packet.seq, packet.job_tag, packet.mark, packet.words, values)
    if layer.values != ([] if packet.values is None else packet.values.tolist()):
        return False
    if isinstance(packet, AddressedPacket) and any(
        getattr(layer, name) != getattr(packet, name) for name in ("reach", "root", "op")
    ):
        return False
    if isinstance(packet, V1Packet):
        names = ("job_number", "tsi", "slot", "set", "e0", "e1")
        return all(getattr(layer, name) == getattr(packet, name) for name in names)
    last = layer.used if packet.kind == p.CONTRIBUTION else np.uint8(int(layer.flags)).astype(np.int8)
    got = (layer.type, bool(layer.r), layer.seq, layer.tag, layer.ahead, layer.need, int(last))
    kind = packet.kind | packet.wire
    return got == (kind, packet.r, packet.seq, packet.job_tag, packet.ahead, packet.need, packet.used)


signed8, u8, u16, u32 = st.integers(-128, 127), st.integers(0, 255), st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF)


@st.composite
def packets(draw):
    which = draw(st.sampled_from(["v1", "v2", "sparse", "addressed", "wait"]))
    if which == "wait":
        return WaitPacket(draw(u32), draw(u16), tuple(sorted(draw(st.sets(u8)))))
    wire = draw(st.sampled_from(sorted(p.WIRE_DTYPES))) if which != "v1" else p.WIRE_INT32
    dtype, payload = p.WIRE_DTYPES[wire], draw(st.sampled_from(sorted(p.SIZE_CODE_OF)))
    pattern = draw(st.binary(min_size=1, max_size=24))
    values = np.frombuffer((pattern * payload)[:payload], dtype).astype(dtype.newbyteorder("="))
    if which == "v1":
        return V1Packet(
            draw(u8),
            draw(u32),
            draw(st.integers(0, p.V1_SLOT_MASK)),
            draw(st.integers(0, 1)),
            draw(signed8),
            draw(signed8),
            values,
        )
    if which == "sparse":
        columns = draw(st.sampled_from(p.COLUMNS))
        return SparsePacket(
            draw(st.sampled_from([p.CONTRIBUTION, p.RESULT])),
            draw(u32),
            draw(u16),
            draw(signed8),
            tuple(draw(st.lists(u32, min_size=columns, max_size=columns))),
            draw(st.sampled_from([values, None])),
            wire,
            draw(st.booleans()),
        )
    if which == "addressed":
        numbers = (draw(u32), draw(u16), draw(signed8), draw(signed8), draw(signed8))
        address = (draw(st.integers(0, 2)), draw(u8), draw(st.integers(0, 4)))
        kind, data = draw(st.sampled_from([p.CONTRIBUTION, p.RESULT])), draw(st.sampled_from([values, None]))
        return AddressedPacket(kind, *numbers, *address, data, wire, draw(st.booleans()))
    return V2Packet(
        draw(st.sampled_from([p.CONTRIBUTION, p.RESULT])),
        draw(u32),
        draw(u16),
        draw(signed8),
        draw(signed8),
        draw(signed8),
        values,
        wire,
        draw(st.booleans()),
    )


@given(packets())
def test_builds_the_bytes_of_the_codec(packet):
    assert bytes(layer_of(packet)) == packet.pack()


@given(packets())
def test_dissects_the_bytes_of_the_codec(packet):
    data = packet.pack()
    layer = SwitchML(data)
    assert type(layer) is type(layer_of(packet))
    assert fields_agree(layer, packet)
    layer.clear_cache()
    assert bytes(layer) == data


def test_vector_packets_survive_dissection():
    for data in VECTOR_PACKETS:
        layer = SwitchML(data)
        layer.show(dump=True)
        assert bytes(layer) == data
        rebuilt = layer.copy()
        rebuilt.clear_cache()
        assert bytes(rebuilt) == data


def frame(data: bytes, sport: int, dport: int) -> bytes:
    return bytes(Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / IP(src="10.0.0.1", dst="10.0.0.2")
                 / UDP(sport=sport, dport=dport) / Raw(data))  # fmt: skip


@given(
    st.one_of(
        st.binary(max_size=64),
        st.sampled_from(VECTOR_PACKETS).flatmap(
            lambda data: st.builds(
                lambda cut, at, value: data[:at] + bytes([value]) + data[at + 1 : cut],
                st.integers(0, len(data) + 3),
                st.integers(0, 11),
                u8,
            )
        ),
    )
)
@examples(200)
def test_garbage_never_raises(data):
    for layer in (SwitchML, SwitchMLv1, SwitchMLv2, SwitchMLWait):
        dissected = layer(data)
        dissected.show(dump=True)
        dissected.summary()
        assert bytes(dissected) == data
    whole = Ether(frame(data, 4000, p.UDP_PORT))
    whole.show(dump=True)
    assert bytes(whole[UDP].payload) == data


@pytest.mark.parametrize("port", p.UDP_PORTS)
def test_bound_to_the_ports_in_both_directions(port):
    data = V1Packet(1, 2, 3, 0, 0, 0, [5] * 64).pack()
    for sport, dport in ((4000, port), (port, 4000)):
        assert Ether(frame(data, sport, dport))[SwitchMLv1].values == [5] * 64
    assert UDP(bytes(UDP() / SwitchMLv1(slot=3))).dport == p.UDP_PORT
    assert Raw in Ether(frame(data, 4000, 48880))


def test_bind_another_port():
    data = WaitPacket(1, 2, (3,)).pack()
    # 53 is DNS to Scapy; whoever asks for it gets SwitchML. The table is Scapy's own, so put it back.
    before = UDP.payload_guess
    try:
        bind(53)
        bind(50123)
        assert Ether(frame(data, 40000, 50123))[SwitchMLWait].missing == [3]
        assert Ether(frame(data, 53, 40000))[SwitchML].missing == [3]
    finally:
        UDP.payload_guess = before
    assert not Ether(frame(data, 40000, 50123)).haslayer(SwitchML)


def test_first_nibble_decides():
    kinds = {
        1: SwitchMLv1,
        8: SwitchMLv2,
        9: SwitchMLv2,
        10: SwitchMLv2,
        12: SwitchMLv2,
        13: SwitchMLv2,
        14: SwitchMLv2,
        15: SwitchMLWait,
    }
    for nibble in range(16):
        assert type(SwitchML(bytes([nibble << 4 | 1]) + bytes(265))) is kinds.get(nibble, Raw)
    assert type(SwitchML(b"\x81" + bytes(8))) is Raw


def test_lengths_that_do_not_fit():
    short = SwitchML(b"\x81" + bytes(9) + bytes.fromhex("00000001 ffffffff 7f"))
    assert short.values == [1, -1] and bytes(short[Raw]) == b"\x7f"
    long = SwitchML(b"\x81" + bytes(9) + bytes(256) + b"more")
    assert len(long.values) == 64 and bytes(long[Raw]) == b"more"
    assert len(SwitchML(b"\x12" + bytes(9 + 600)).values) == 128


def test_short_lists_are_padded_and_a_given_size_is_obeyed():
    assert bytes(SwitchMLv1(values=[1, 2])) == V1Packet(0, 0, 0, 0, 0, 0, [1, 2] + [0] * 62).pack()
    assert bytes(SwitchMLv1(values=[1] * 65)) == V1Packet(0, 0, 0, 0, 0, 0, [1] * 65 + [0] * 191).pack()
    assert bytes(SwitchMLv2(type=14, values=[-1]))[0] == 0xE1
    assert len(bytes(SwitchMLv1(size=1, values=[1, 2]))) == 18
    assert bytes(SwitchMLv1(size=0, values=[0] * 32)) == b"\x10" + bytes(9 + 128)


def test_what_people_see(monkeypatch):
    layers = [
        SwitchMLv2(type=9, r=1, seq=4101, tag=0x5EED, ahead=127, need=5, used=8, values=[1, -2]),
        SwitchMLv2(type=12, need=127, ahead=-128, flags="OVERFLOW+MIXED", values=range(64)),
        SwitchMLv2(type=12, seq=7, tag=9, r=1, flags="MIXED"),
        SwitchMLv2(used=125),
        SwitchMLv2(used=127),
        SwitchMLWait(seq=7, tag=9, missing=[200, 1]),
        SwitchMLv1(set=1, slot=130, job_number=7),
        SwitchML(b"\x85\0" + bytes(8) + b"\xff\xff\xff\xfe" * 64 + b"\x03\0"),
    ]
    shown = [f"{(UDP() / layer).summary()}\n{layer.show2(dump=True)}" for layer in layers]
    monkeypatch.setitem(conf.contribs["switchml"], "slots", 4)
    shown.append(SwitchMLv2(seq=4101).show(dump=True))
    golden.check("scapy", "\n".join(shown))


def test_partial_sums():
    data = b"\x85\0" + bytes(8) + b"\xff\xff\xff\xfe" * 64 + b"\x03\0"
    partial = SwitchML(data)
    assert (partial.values, partial.partial_flags) == ([-2] * 64, 3) and bytes(partial) == data
    assert "partial sum int32" in partial.summary() and "OVERFLOW+MIXED" in partial.show(dump=True)


@pytest.mark.parametrize(
    ("layer", "columns", "word"), [(SwitchMLAddressed, 0, b"\1\2\0\x7f"), (SwitchMLSparse, 1, b"\0\0\7\0")]
)
def test_partial_sums_with_words(layer, columns, word):
    data = bytes([0x85, 0xB0 | columns]) + bytes(8) + word + b"\xff\xff\xff\xfe" * 64
    partial = SwitchML(data)
    assert type(partial) is layer and (partial.columns, partial.values) == (columns, [-2] * 64)
    assert partial.partial_flags == 3 and bytes(partial) == data and bytes(layer(**partial.fields)) == data
    assert "partial sum int32" in partial.summary() and "OVERFLOW+MIXED" in partial.show(dump=True)


def test_answers():
    contribution = SwitchMLv2(seq=7, tag=9)
    assert SwitchMLv2(type=12, seq=7, tag=9).answers(contribution)
    assert SwitchMLWait(seq=7, tag=9).answers(contribution)
    assert not SwitchMLv2(type=12, seq=8, tag=9).answers(contribution)
    assert not contribution.answers(contribution)
    assert SwitchMLv1(slot=1, set=1, tsi=5).answers(SwitchMLv1(slot=1, set=1, tsi=5))
    assert not SwitchMLv1(slot=1, set=0, tsi=5).answers(SwitchMLv1(slot=1, set=1, tsi=5))
