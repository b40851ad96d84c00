"""The Scapy layers against packet.py, in both directions, and against bytes that are no packets at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.packet import Raw

from switchml.protocol import packet as p
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
from tests.support.any_packet import by_name, packets, u8
from tests.support.examples import examples
from tests.support.packets import AddressedPacket, SparsePacket, V1Packet, V2Packet, WaitPacket
from tests.support.vectors_io import load_all

VECTOR_PACKETS = sorted(
    {data for s in load_all() for step in s.steps for data in (step.data, step.reply) if data is not None}
)


LAYERS = {
    V1Packet: SwitchMLv1, V2Packet: SwitchMLv2, SparsePacket: SwitchMLSparse, AddressedPacket: SwitchMLAddressed,
    WaitPacket: SwitchMLWait,
}  # fmt: skip


def layer_of(packet):
    """The layer that the fields of one of packet.py's packets make."""
    return LAYERS[type(packet)](**by_name(packet))


@given(packets())
def test_builds_the_bytes_of_the_codec(packet):
    assert bytes(layer_of(packet)) == packet.pack()


@given(packets())
def test_dissects_the_bytes_of_the_codec(packet):
    data = packet.pack()
    layer = SwitchML(data)
    assert type(layer) is type(layer_of(packet))
    for name, value in by_name(packet).items():
        got = getattr(layer, name)
        assert (list(got) if isinstance(value, list) else int(got)) == value, name
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
    kinds = {1: SwitchMLv1, 15: SwitchMLWait} | dict.fromkeys((8, 9, 10, 12, 13, 14), SwitchMLv2)
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
