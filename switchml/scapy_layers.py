"""Scapy layers for both protocols of docs/protocol.md: `SwitchMLv1`, `SwitchMLv2`, `SwitchMLSparse` and `SwitchMLWait`.

Importing this module binds them to the 16 UDP ports of the protocol, in either direction; `bind(port)` adds another
one. Which of them a datagram is, its first byte says. Bytes that are none of them become Raw, so dissecting
never fails; a packet whose length does not fit its size code keeps what there is of its lanes, and the rest is Raw.

    >>> from switchml.scapy_layers import *
    >>> packet = IP(dst="10.0.0.254") / UDP() / SwitchMLv2(seq=4096, tag=0x5EED, values=[1, -2])
    >>> packet.show2()                                               # the lanes were padded with zeros

A v2 packet does not say how many slots its job has. Who knows sets `conf.contribs["switchml"]["slots"]`, and show()
then tells slot, version and round of a sequence number (rounds count from sequence number 0, not from the isn).
"""

from __future__ import annotations

import struct

from scapy.config import conf
from scapy.fields import (
    BitEnumField,
    BitField,
    ByteField,
    ConditionalField,
    Field,
    FlagsField,
    IntField,
    SignedByteField,
    XByteField,
    XShortField,
)
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_bottom_up, bind_top_down

from switchml.protocol import packet as wire

__all__ = [
    "IP",
    "UDP",
    "Ether",
    "SwitchML",
    "SwitchMLSparse",
    "SwitchMLv1",
    "SwitchMLv2",
    "SwitchMLWait",
    "bind",
    "conf",
    "exponent_text",
    "slot_of",
]

TYPES = {
    wire.V1_TYPE: "v1",
    **{wire.CONTRIBUTION + w: f"contribution int{8 * d.itemsize}" for w, d in wire.WIRE_DTYPES.items()},
    **{wire.RESULT + w: f"result int{8 * d.itemsize}" for w, d in wire.WIRE_DTYPES.items()},
    wire.WAIT: "wait",
}
"""The first nibble, in words."""

conf.contribs.setdefault("switchml", {"slots": None})

PARTIAL_SIZES = {code | 4: payload for code, payload in wire.SIZE_CODES.items()}
"""Size codes of partial sums."""

SPECIAL_CODES = {
    ("ahead", wire.CODE_UNKNOWN): "unknown",
    ("need", wire.CODE_UNKNOWN): "not finite",
    ("used", wire.CODE_UNKNOWN): "classify",
    ("used", wire.CODE_INTEGER): "integer",
    ("used", wire.CODE_INTEGER64): "integer64",
}


def exponent_text(field: str, code: int) -> str:
    """An exponent code as section 4 reads it: 2^e, or what the code stands for in `field`. Float64 has other codes."""
    if (field, code) in SPECIAL_CODES:
        return f"{code} ({SPECIAL_CODES[field, code]})"
    zeros = " or zeros" if code == wire.CODE_ZERO else ""
    return f"{code} (2^{code + wire.CODE_BIAS}{zeros})"


def slot_of(seq: int, slots: int) -> tuple[int, int, int]:
    """(slot, version, round) of a sequence number in a job of `slots` slots; rounds count from sequence number 0."""
    return seq % slots, seq // slots % 2, seq // slots


class ExponentCode(SignedByteField):
    """A signed byte, shown as the power of two that it stands for."""

    def i2repr(self, pkt, x):
        return exponent_text(self.name, int(x)) if x is not None else repr(x)


class SequenceNumber(IntField):
    """Shown with slot, version and round where the number of slots is known."""

    def i2repr(self, pkt, x):
        slots = conf.contribs["switchml"]["slots"]
        if not slots or x is None:
            return repr(x)
        slot, version, number = slot_of(int(x), slots)
        return f"{x} (slot {slot}, version {version}, round {number})"


class Lanes(Field):
    """The payload: signed big-endian integers, as wide as the packet's type says, as many as its size code says."""

    islist = 1
    __slots__ = ["payload_of"]

    def __init__(self, name: str, payload_of: dict[int, int]):
        self.payload_of = payload_of
        Field.__init__(self, name, [], "B")

    def any2i(self, pkt, x):
        return [] if x is None else [int(v) for v in x]

    def i2repr(self, pkt, x):
        head, zeros = list(x), 0
        while head and head[-1] == 0:
            head.pop()
            zeros += 1
        shown = [str(v) for v in head[:16]]
        if len(head) > 16:
            shown.append(f"… {len(head) - 16} more")
        if zeros:
            shown.append("0" if zeros == 1 else f"{zeros} zeros")
        return f"[{', '.join(shown)}]"

    def i2len(self, pkt, x):
        return len(x) * self._lane(pkt)[0]

    @staticmethod
    def _lane(pkt) -> tuple[int, str]:
        """(bytes of a lane, its letter in struct)."""
        return ((4, "i"), (2, "h"), (1, "b"), (4, "i"))[pkt.type & 3 if pkt.type & 8 else 0]

    def addfield(self, pkt, s, val):
        width, letter = self._lane(pkt)
        data = struct.pack(f">{len(val)}{letter}", *val)
        if pkt.size is None:
            # With a size of its own a packet may be as wrong as its author likes; without, it is made to fit.
            data = data.ljust(256 if len(data) <= 256 else 1024, b"\0")
        return s + data

    def getfield(self, pkt, s):
        width, letter = self._lane(pkt)
        count = min(self.payload_of.get(pkt.size, len(s)), len(s)) // width
        return s[count * width :], list(struct.unpack(f">{count}{letter}", s[: count * width]))


class SparseLanes(Lanes):
    """Those of a sparse packet, which may have none."""

    def addfield(self, pkt, s, val):
        return s if not val and pkt.size is None else super().addfield(pkt, s, val)


class Words(Field):
    """What the sender of a sparse packet has next, by column: an entry and the exponent code of its block."""

    islist = 1

    def __init__(self, name: str):
        Field.__init__(self, name, [], "I")

    def any2i(self, pkt, x):
        return [] if x is None else [int(word) for word in x]

    def i2repr(self, pkt, x):
        def text(word: int) -> str:
            if word >> 8 == wire.NO_ENTRY:
                return "no more"
            return f"{word >> 8} at {exponent_text('need', wire.CODE_UNKNOWN - (word & 0xFF))}"

        return f"[{', '.join(text(word) for word in x)}]"

    def i2len(self, pkt, x):
        return wire.WORD_BYTES * len(x)

    def addfield(self, pkt, s, val):
        return s + struct.pack(f">{len(val)}I", *val)

    def getfield(self, pkt, s):
        count = min(pkt.columns, len(s) // wire.WORD_BYTES)
        end = count * wire.WORD_BYTES
        return s[end:], list(struct.unpack(f">{count}I", s[:end]))


class PartialFlags(ByteField):
    """What follows the lanes of a partial sum: its flags and a byte 0. None if it is not there."""

    def i2repr(self, pkt, x):
        return "+".join(name for bit, name in enumerate(("OVERFLOW", "MIXED")) if x and x >> bit & 1) or repr(x)

    def addfield(self, pkt, s, val):
        return s if val is None else s + bytes([val, 0])

    def getfield(self, pkt, s):
        return (s, None) if len(s) < 2 else (s[2:], s[0])


class MissingRanks(Field):
    """The bitmap of a wait packet, as a sorted list of ranks."""

    islist = 1

    def __init__(self, name: str):
        Field.__init__(self, name, [], "B")

    def any2i(self, pkt, x):
        return [] if x is None else sorted(int(rank) for rank in x)

    def i2repr(self, pkt, x):
        return repr(list(x))

    def i2len(self, pkt, x):
        return wire.BITMAP_BYTES

    def addfield(self, pkt, s, val):
        bitmap = bytearray(wire.BITMAP_BYTES)
        for rank in val:
            bitmap[rank // 8] |= 1 << rank % 8
        return s + bytes(bitmap)

    def getfield(self, pkt, s):
        bitmap = s[: wire.BITMAP_BYTES]
        return s[wire.BITMAP_BYTES :], [r for r in range(8 * len(bitmap)) if bitmap[r // 8] >> r % 8 & 1]


def _whole(cls, data):
    """`cls`, or Raw for bytes too short to have a header."""
    return cls if data is None or len(data) >= wire.HEADER_BYTES else conf.raw_layer


def _is_partial(data: bytes) -> bool:
    """Whether these are the bytes of a partial sum: its size codes are those of sparse packets, its lengths are not."""
    payload = PARTIAL_SIZES.get(data[0] & 7)
    return not data[0] >> 4 & 4 and payload is not None and len(data) == wire.HEADER_BYTES + payload + 2


class SwitchML(Packet):
    """Either protocol: what UDP is bound to. Dissecting gives a class below; `packet[SwitchML]` finds any of them."""

    name = "SwitchML"
    match_subclass = True

    @classmethod
    def dispatch_hook(cls, _pkt=None, *args, **kargs):
        if not _pkt:
            return cls
        kind = _pkt[0] >> 4
        if kind == wire.V1_TYPE:
            return _whole(SwitchMLv1, _pkt)
        if kind == wire.WAIT:
            return _whole(SwitchMLWait, _pkt)
        if kind in TYPES:
            is_sparse = _pkt[0] & wire.SPARSE and not _is_partial(_pkt)
            return _whole(SwitchMLSparse if is_sparse else SwitchMLv2, _pkt)
        return conf.raw_layer

    def post_build(self, p, pay):
        if self.fields_desc and self.size is None:
            p = bytes([p[0] | (1 if len(p) - wire.HEADER_BYTES <= 256 else 3)]) + p[1:]
        return p + pay


class SwitchMLv1(SwitchML):
    """A v1 packet, either way: p4app-switchML's SwitchML-UDP. `tsi` holds its four bytes read as big-endian."""

    name = "SwitchML v1"
    fields_desc = [
        BitEnumField("type", wire.V1_TYPE, 4, TYPES),
        BitField("unused", 0, 1),
        BitField("size", None, 3),
        ByteField("job_number", 0),
        IntField("tsi", 0),
        BitField("set", 0, 1),
        BitField("unused_index", 0, 1),
        BitField("slot", 0, 14),
        SignedByteField("e0", 0),
        SignedByteField("e1", 0),
        Lanes("values", {0: 128, 1: 256, 2: 512, 3: 1024}),
    ]

    @classmethod
    def dispatch_hook(cls, _pkt=None, *args, **kargs):
        return _whole(cls, _pkt)

    def answers(self, other):
        return int(
            isinstance(other, SwitchMLv1) and (self.slot, self.set, self.tsi) == (other.slot, other.set, other.tsi)
        )

    def mysummary(self):
        return self.sprintf("SwitchML v1 slot %slot% set %set% job %job_number%")


class SwitchMLv2(SwitchML):
    """A v2 contribution or result. Byte 9 is `used` in a contribution and `flags` in a result."""

    name = "SwitchML v2"
    fields_desc = [
        BitEnumField("type", wire.CONTRIBUTION, 4, TYPES),
        BitField("r", 0, 1),
        BitField("size", None, 3),
        ExponentCode("ahead", wire.CODE_UNKNOWN),
        SequenceNumber("seq", 0),
        XShortField("tag", 0),
        ExponentCode("need", wire.CODE_ZERO),
        ConditionalField(ExponentCode("used", wire.CODE_ZERO), lambda pkt: not pkt.is_result),
        ConditionalField(FlagsField("flags", 0, 8, ["OVERFLOW", "MIXED"]), lambda pkt: pkt.is_result),
        Lanes("values", {**wire.SIZE_CODES, **PARTIAL_SIZES}),
        ConditionalField(PartialFlags("partial_flags", None), lambda pkt: pkt.is_partial),
    ]

    @property
    def is_partial(self) -> bool:
        """Whether this is a partial sum, which one switch of a tree sends to another (section 9)."""
        return self.size in PARTIAL_SIZES and not self.is_result

    @property
    def is_result(self) -> bool:
        return self.type & 0xC == wire.RESULT

    @classmethod
    def dispatch_hook(cls, _pkt=None, *args, **kargs):
        return _whole(cls, _pkt)

    def answers(self, other):
        return int(self.is_result and _same_round(self, other))

    def mysummary(self):
        kind = TYPES.get(self.type, f"type {self.type}")
        again = (", answers a retransmission" if self.is_result else ", retransmission") if self.r else ""
        kind = "partial sum" + kind.removeprefix("contribution") if self.is_partial else kind
        flags = f", {self.flags}" if self.is_result and self.flags else ""
        return f"SwitchML v2 {kind} seq {self.seq} tag {self.tag:#06x}{flags}{again}"


class SwitchMLSparse(SwitchML):
    """A packet of a sparse stream, either way: section 8. Without `values` it has no data; byte 9 is `flags` in a
    result. `packet.sparse_word` makes words."""

    name = "SwitchML v2 sparse"
    fields_desc = [
        BitEnumField("type", wire.CONTRIBUTION, 4, TYPES),
        BitField("r", 0, 1),
        BitField("size", None, 3),
        ByteField("columns", None),
        SequenceNumber("seq", 0),
        XShortField("tag", 0),
        XByteField("reserved", 0),
        ConditionalField(SignedByteField("mark", 0), lambda pkt: not pkt.is_result),
        ConditionalField(FlagsField("flags", 0, 8, ["OVERFLOW", "MIXED"]), lambda pkt: pkt.is_result),
        Words("words"),
        SparseLanes("values", {4: 0, 5: 256, 6: wire.PADDING_BYTES, 7: 1024}),
    ]

    @property
    def is_result(self) -> bool:
        return self.type & 0xC == wire.RESULT

    @classmethod
    def dispatch_hook(cls, _pkt=None, *args, **kargs):
        return _whole(cls, _pkt)

    def post_build(self, p, pay):
        if self.columns is None:
            p = p[:1] + bytes([len(self.words)]) + p[2:]
        if self.size is None:
            data = len(p) - wire.HEADER_BYTES - wire.WORD_BYTES * len(self.words)
            p = bytes([p[0] | wire.SPARSE | (0 if not data else 1 if data <= 256 else 3)]) + p[1:]
        return p + pay

    def answers(self, other):
        return int(self.is_result and _same_round(self, other))

    def mysummary(self):
        kind = TYPES.get(self.type, f"type {self.type}")
        return f"SwitchML v2 sparse {kind} seq {self.seq} tag {self.tag:#06x}, {self.columns} columns"


class SwitchMLWait(SwitchML):
    """The aggregator's answer to a retransmission that it does not need: it waits for the ranks in `missing`."""

    name = "SwitchML v2 wait"
    fields_desc = [
        BitEnumField("type", wire.WAIT, 4, TYPES),
        BitField("r", 0, 1),
        BitField("size", 0, 3),
        XByteField("ahead", 0),
        SequenceNumber("seq", 0),
        XShortField("tag", 0),
        XByteField("need", 0),
        XByteField("used", 0),
        MissingRanks("missing"),
    ]

    @classmethod
    def dispatch_hook(cls, _pkt=None, *args, **kargs):
        return _whole(cls, _pkt)

    def answers(self, other):
        return int(_same_round(self, other))

    def mysummary(self):
        return f"SwitchML v2 wait seq {self.seq} tag {self.tag:#06x} missing {self.missing}"


def _same_round(answer, other) -> bool:
    return isinstance(other, SwitchMLv2) and not other.is_result and (answer.seq, answer.tag) == (other.seq, other.tag)


def bind(port: int) -> None:
    """Dissect UDP datagrams from or to `port` as SwitchML, before any protocol that Scapy binds to that port itself."""
    bind_bottom_up(UDP, SwitchML, dport=port)
    bind_bottom_up(UDP, SwitchML, sport=port)
    UDP.payload_guess = UDP.payload_guess[-2:] + UDP.payload_guess[:-2]


for _port in wire.UDP_PORTS:
    bind(_port)
for _layer in (SwitchMLv1, SwitchMLv2, SwitchMLWait):
    bind_top_down(UDP, _layer, dport=wire.UDP_PORT)
