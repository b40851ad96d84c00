"""Scapy layers for both protocols of docs/protocol.md: `SwitchMLv1`, `SwitchMLv2`, `SwitchMLSparse` and `SwitchMLWait`.

Importing this module binds them to the 16 UDP ports of the protocol, in either direction; `bind(port)` adds another
one. A datagram's first byte selects the layer. Bytes that match none become Raw, so dissecting never fails; a packet
whose length does not match its size code keeps the existing lanes, and the rest is Raw.

    >>> from switchml.scapy_layers import *
    >>> packet = IP(dst="10.0.0.254") / UDP() / SwitchMLv2(seq=4096, tag=0x5EED, values=[1, -2])
    >>> packet.show2()                                               # the lanes were padded with zeros

A v2 packet does not contain its job's number of slots. Set `conf.contribs["switchml"]["slots"]`, and show() displays
the slot, version and round of a sequence number (rounds count from sequence number 0, not from the isn).
"""

from typing import Any

import numpy as np
from scapy import fields
from scapy.config import conf
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
"""Names of the packet types, by the first nibble."""
FLAGS = ["OVERFLOW", "MIXED", "4", "PARTIAL", "LATE"]
"""Names of a result's flags, bit by bit."""

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
    """Text of an exponent code (docs/protocol.md, section 4): 2^e, or its special meaning in `field`. (Codes of float64
    differ.)"""
    if (field, code) in SPECIAL_CODES:
        return f"{code} ({SPECIAL_CODES[field, code]})"
    zeros = " or zeros" if code == wire.CODE_ZERO else ""
    return f"{code} (2^{code + wire.CODE_BIAS}{zeros})"


def slot_of(seq: int, slots: int) -> tuple[int, int, int]:
    """(slot, version, round) of a sequence number in a job of `slots` slots; rounds count from sequence number 0."""
    return seq % slots, seq // slots % 2, seq // slots


class ExponentCode(fields.SignedByteField):
    """A signed byte, shown as the power of two that it represents."""

    def i2repr(self, pkt: Any, x: Any) -> str:
        return exponent_text(self.name, int(x)) if x is not None else repr(x)


class SequenceNumber(fields.IntField):
    """A sequence number, shown with slot, version and round if the number of slots is set."""

    def i2repr(self, pkt: Any, x: Any) -> str:
        slots = conf.contribs["switchml"]["slots"]
        if not slots or x is None:
            return repr(x)
        slot, version, number = slot_of(int(x), slots)
        return f"{x} (slot {slot}, version {version}, round {number})"


class Integers(fields.Field[Any, Any]):
    """Base of the fields that hold a list of integers."""

    islist = 1

    def __init__(self, name: str) -> None:
        fields.Field.__init__(self, name, [], "B")

    def any2i(self, pkt: Any, x: Any) -> list[int]:
        return [] if x is None else [int(v) for v in x]

    def i2len(self, pkt: Any, x: Any) -> int:
        return len(self.addfield(pkt, b"", x))


class Lanes(Integers):
    """The payload: signed big-endian integers; their width depends on the packet's type, their number on its
    size code."""

    __slots__ = ["payload_of"]

    def __init__(self, name: str, payload_of: dict[int, int]) -> None:
        self.payload_of = payload_of
        super().__init__(name)

    def i2repr(self, pkt: Any, x: Any) -> str:
        head = np.trim_zeros(x, "b")
        zeros = len(x) - len(head)
        shown = [str(v) for v in head[:16]]
        if len(head) > 16:
            shown.append(f"… {len(head) - 16} more")
        if zeros:
            shown.append("0" if zeros == 1 else f"{zeros} zeros")
        return f"[{', '.join(shown)}]"

    @staticmethod
    def _dtype(pkt: Any) -> str:
        return (">i4", ">i2", ">i1", ">i4")[pkt.type & 3 if pkt.type & 8 else 0]

    def i2len(self, pkt: Any, x: Any) -> int:
        return len(x) * np.dtype(self._dtype(pkt)).itemsize

    def addfield(self, pkt: Any, s: bytes, val: Any) -> bytes:
        data = np.array(val, self._dtype(pkt)).tobytes()
        if pkt.size is None:
            # With an explicit size, a packet may be malformed on purpose; without one it is padded to a valid size.
            data = data.ljust(256 if len(data) <= 256 else 1024, b"\0")
        return s + data

    def getfield(self, pkt: Any, s: bytes) -> tuple[bytes, Any]:
        width = np.dtype(self._dtype(pkt)).itemsize
        end = min(self.payload_of.get(pkt.size, len(s)), len(s)) // width * width
        return s[end:], np.frombuffer(s[:end], self._dtype(pkt)).tolist()


class SparseLanes(Lanes):
    """The lanes of a sparse packet, which may be absent."""

    def addfield(self, pkt: Any, s: bytes, val: Any) -> bytes:
        return s if not val and pkt.size is None else super().addfield(pkt, s, val)


class Words(Integers):
    """By column, the next entry of the sender of a sparse packet, and the exponent code of its block."""

    def i2repr(self, pkt: Any, x: Any) -> str:
        def text(word: int) -> str:
            if word >> 8 == wire.NO_ENTRY:
                return "no more"
            return f"{word >> 8} at {exponent_text('need', wire.CODE_UNKNOWN - (word & 0xFF))}"

        return f"[{', '.join(text(word) for word in x)}]"

    def addfield(self, pkt: Any, s: bytes, val: Any) -> bytes:
        return s + np.array(val, ">u4").tobytes()

    def getfield(self, pkt: Any, s: bytes) -> tuple[bytes, Any]:
        end = min(pkt.columns, len(s) // wire.WORD_BYTES) * wire.WORD_BYTES
        return s[end:], np.frombuffer(s[:end], ">u4").tolist()


class PartialFlags(fields.ByteField):
    """The trailer of a partial sum: its flags and a byte 0. None if it is absent."""

    def i2repr(self, pkt: Any, x: Any) -> str:
        return "+".join(name for bit, name in enumerate(("OVERFLOW", "MIXED")) if x and x >> bit & 1) or repr(x)

    def addfield(self, pkt: Any, s: bytes, val: Any) -> bytes:
        return s if val is None else s + bytes([val, 0])

    def getfield(self, pkt: Any, s: bytes) -> tuple[bytes, Any]:
        return (s, None) if len(s) < 2 else (s[2:], s[0])


class MissingRanks(Integers):
    """The bitmap of a wait packet, as a sorted list of ranks."""

    def any2i(self, pkt: Any, x: Any) -> list[int]:
        return sorted(super().any2i(pkt, x))

    def i2repr(self, pkt: Any, x: Any) -> str:
        return repr(list(x))

    def addfield(self, pkt: Any, s: bytes, val: Any) -> bytes:
        bitmap: int = sum(1 << rank for rank in set(val))
        return s + bitmap.to_bytes(wire.BITMAP_BYTES, "little")

    def getfield(self, pkt: Any, s: bytes) -> tuple[bytes, Any]:
        bitmap = int.from_bytes(s[: wire.BITMAP_BYTES], "little")
        return s[wire.BITMAP_BYTES :], [rank for rank in range(8 * wire.BITMAP_BYTES) if bitmap >> rank & 1]


def _is_partial(data: bytes) -> bool:
    """Whether the bytes are a partial sum, whose size codes are those of sparse packets, but whose lengths differ."""
    payload = PARTIAL_SIZES.get(data[0] & 7)
    return not data[0] >> 4 & 4 and payload is not None and len(data) == wire.HEADER_BYTES + payload + 2


class SwitchML(Packet):
    """Base of all layers, to which UDP is bound. Dissecting returns a class below; `packet[SwitchML]` finds any of
    them."""

    name = "SwitchML"
    match_subclass = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Scapy ignores an inherited dispatch_hook.
        cls.dispatch_hook = SwitchML.__dict__["dispatch_hook"]  # type: ignore[method-assign]  # a copy

    @classmethod
    def dispatch_hook(cls, _pkt: Any = None, *args: Any, **kargs: Any) -> Any:
        if _pkt is None or (cls is SwitchML and not _pkt):
            return cls
        if len(_pkt) < wire.HEADER_BYTES:
            return conf.raw_layer
        if cls is not SwitchML:
            return cls
        kind = _pkt[0] >> 4
        if kind == wire.V1_TYPE:
            return SwitchMLv1
        if kind == wire.WAIT:
            return SwitchMLWait
        if kind in TYPES:
            if not _pkt[0] & wire.SPARSE or _is_partial(_pkt):
                return SwitchMLv2
            is_addressed = _pkt[1] & 0x0F == wire.ADDRESSED and len(_pkt) >= wire.ADDRESSED_BYTES
            return SwitchMLAddressed if is_addressed else SwitchMLSparse
        return conf.raw_layer

    @property
    def is_result(self) -> bool:
        return bool(self.type & 0xC == wire.RESULT)

    def post_build(self, p: bytes, pay: bytes) -> bytes:
        if self.fields_desc and self.size is None:
            p = bytes([p[0] | (1 if len(p) - wire.HEADER_BYTES <= 256 else 3)]) + p[1:]
        return p + pay


class SwitchMLv1(SwitchML):
    """A v1 packet, in either direction: p4app-switchML's SwitchML-UDP. `tsi` is read as a big-endian number."""

    name = "SwitchML v1"
    fields_desc = [
        fields.BitEnumField("type", wire.V1_TYPE, 4, TYPES),
        fields.BitField("unused", 0, 1),
        fields.BitField("size", None, 3),
        fields.ByteField("job_number", 0),
        fields.IntField("tsi", 0),
        fields.BitField("set", 0, 1),
        fields.BitField("unused_index", 0, 1),
        fields.BitField("slot", 0, 14),
        fields.SignedByteField("e0", 0),
        fields.SignedByteField("e1", 0),
        Lanes("values", {0: 128, 1: 256, 2: 512, 3: 1024}),
    ]

    def answers(self, other: Any) -> int:
        return int(
            isinstance(other, SwitchMLv1) and (self.slot, self.set, self.tsi) == (other.slot, other.set, other.tsi)
        )

    def mysummary(self) -> str:
        return self.sprintf("SwitchML v1 slot %slot% set %set% job %job_number%")


class SwitchMLv2(SwitchML):
    """A v2 contribution or result. Byte 9 is `used` in a contribution and `flags` in a result."""

    name = "SwitchML v2"
    fields_desc = [
        fields.BitEnumField("type", wire.CONTRIBUTION, 4, TYPES),
        fields.BitField("r", 0, 1),
        fields.BitField("size", None, 3),
        ExponentCode("ahead", wire.CODE_UNKNOWN),
        SequenceNumber("seq", 0),
        fields.XShortField("tag", 0),
        ExponentCode("need", wire.CODE_ZERO),
        fields.ConditionalField(ExponentCode("used", wire.CODE_ZERO), lambda pkt: not pkt.is_result),
        fields.ConditionalField(
            fields.FlagsField("flags", 0, 8, ["OVERFLOW", "MIXED", "4", "PARTIAL", "LATE"]), lambda pkt: pkt.is_result
        ),
        Lanes("values", {**wire.SIZE_CODES, **PARTIAL_SIZES}),
        fields.ConditionalField(PartialFlags("partial_flags", None), lambda pkt: pkt.is_partial),
    ]

    @property
    def is_partial(self) -> bool:
        """Whether this is a partial sum, sent by one switch of a tree to another (section 9)."""
        return self.size in PARTIAL_SIZES and not self.is_result

    def answers(self, other: Any) -> int:
        return int(self.is_result and _same_round(self, other))

    def mysummary(self) -> str:
        kind = _kind(self)
        retransmission = (", answers a retransmission" if self.is_result else ", retransmission") if self.r else ""
        flags = f", {self.flags}" if self.is_result and self.flags else ""
        return f"SwitchML v2 {kind} seq {self.seq} tag {self.tag:#06x}{flags}{retransmission}"


PARTIAL_BITS = (
    fields.BitField("is_partial", 0, 1),
    fields.BitField("unused", 0, 1),
    fields.FlagsField("partial_flags", 0, 2, ["OVERFLOW", "MIXED"]),
)
"""Bits before the columns: whether this is a partial sum, and its flags (section 9)."""


class SwitchMLSparse(SwitchML):
    """A packet of a sparse stream, in either direction (section 8). Without `values` it has no data; byte 9 is `flags`
    in a result. A word is `entry << 8 | 127 - code`."""

    name = "SwitchML v2 sparse"
    fields_desc = [
        fields.BitEnumField("type", wire.CONTRIBUTION, 4, TYPES),
        fields.BitField("r", 0, 1),
        fields.BitField("size", None, 3),
        *PARTIAL_BITS,
        fields.BitField("columns", None, 4),
        SequenceNumber("seq", 0),
        fields.XShortField("tag", 0),
        fields.XByteField("reserved", 0),
        fields.ConditionalField(fields.SignedByteField("mark", 0), lambda pkt: not pkt.is_result),
        fields.ConditionalField(fields.FlagsField("flags", 0, 8, ["OVERFLOW", "MIXED"]), lambda pkt: pkt.is_result),
        Words("words"),
        SparseLanes("values", {4: 0, 5: 256, 6: wire.PADDING_BYTES, 7: 1024}),
    ]

    def post_build(self, p: bytes, pay: bytes) -> bytes:
        if self.columns is None:
            p = p[:1] + bytes([p[1] & 0xF0 | len(self.words)]) + p[2:]
        if self.size is None:
            data = len(p) - wire.HEADER_BYTES - wire.WORD_BYTES * len(self.words)
            p = bytes([p[0] | wire.SPARSE | (0 if not data else 1 if data <= 256 else 3)]) + p[1:]
        return p + pay

    def answers(self, other: Any) -> int:
        return int(self.is_result and _same_round(self, other))

    def mysummary(self) -> str:
        kind = _kind(self)
        return f"SwitchML v2 sparse {kind} seq {self.seq} tag {self.tag:#06x}, {self.columns} columns"


class AnnouncedCode(ExponentCode):
    """An exponent code as encoded in a word: 127 minus the code, so that the minimum of several is the largest code."""

    def i2m(self, pkt: Any, x: Any) -> int:
        return int(np.uint8(wire.CODE_UNKNOWN - (x or 0)).astype(np.int8))

    def m2i(self, pkt: Any, x: Any) -> int:
        return wire.CODE_UNKNOWN - (int(x) & 0xFF)


class SwitchMLAddressed(SwitchML):
    """A packet of a collective other than a sum for all ranks, in either direction (section 11). Without `values` it
    has no data; a result may be truncated before them, in which case they are missing although the size is 5 or 7."""

    name = "SwitchML v2 addressed"
    fields_desc = [
        fields.BitEnumField("type", wire.CONTRIBUTION, 4, TYPES),
        fields.BitField("r", 0, 1),
        fields.BitField("size", None, 3),
        *PARTIAL_BITS,
        fields.BitField("columns", wire.ADDRESSED, 4),
        SequenceNumber("seq", 0),
        fields.XShortField("tag", 0),
        ExponentCode("need", wire.CODE_ZERO),
        fields.ConditionalField(ExponentCode("used", wire.CODE_ZERO), lambda pkt: not pkt.is_result),
        fields.ConditionalField(fields.FlagsField("flags", 0, 8, ["OVERFLOW", "MIXED"]), lambda pkt: pkt.is_result),
        fields.ByteEnumField("reach", wire.REACH_ALL, {0: "all", 1: "root", 2: "all but the root"}),
        fields.ByteField("root", 0),
        fields.ByteEnumField("op", wire.OP_SUM, {0: "sum", 1: "max32", 2: "max64", 3: "or", 4: "xor"}),
        AnnouncedCode("ahead", wire.CODE_UNKNOWN),
        SparseLanes("values", {4: 0, 5: 256, 6: wire.PADDING_BYTES, 7: 1024}),
    ]

    def post_build(self, p: bytes, pay: bytes) -> bytes:
        if self.size is None:
            data = len(p) - wire.ADDRESSED_BYTES
            p = bytes([p[0] | wire.SPARSE | (0 if not data else 1 if data <= 256 else 3)]) + p[1:]
        return p + pay

    def answers(self, other: Any) -> int:
        return int(self.is_result and _same_round(self, other))

    def mysummary(self) -> str:
        kind = _kind(self)
        return self.sprintf(f"SwitchML v2 {kind} seq {self.seq} tag {self.tag:#06x}, %op%, to %reach% (root %root%)")


class SwitchMLWait(SwitchML):
    """The aggregator's answer to a needless retransmission: it waits for the ranks in `missing`."""

    name = "SwitchML v2 wait"
    fields_desc = [
        fields.BitEnumField("type", wire.WAIT, 4, TYPES),
        fields.BitField("r", 0, 1),
        fields.BitField("size", 0, 3),
        fields.XByteField("ahead", 0),
        SequenceNumber("seq", 0),
        fields.XShortField("tag", 0),
        fields.XByteField("need", 0),
        fields.XByteField("used", 0),
        MissingRanks("missing"),
    ]

    def answers(self, other: Any) -> int:
        return int(_same_round(self, other))

    def mysummary(self) -> str:
        return f"SwitchML v2 wait seq {self.seq} tag {self.tag:#06x} missing {self.missing}"


def _kind(packet: Any) -> str:
    kind = TYPES.get(packet.type, f"type {packet.type}")
    return "partial sum" + kind.removeprefix("contribution") if packet.is_partial else kind


def _same_round(answer: Any, other: Any) -> bool:
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
