"""Packets of every kind for tests of codecs and dissectors: drawn ones, and what their fields are called elsewhere."""

import numpy as np
from hypothesis import strategies as st

from switchml.protocol import packet as p
from tests.support.packets import AddressedPacket, SparsePacket, V1Packet, V2Packet, WaitPacket

signed8, u8, u16, u32 = st.integers(-128, 127), st.integers(0, 255), st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF)


@st.composite
def packets(draw):
    """A packet of any kind that its `pack` accepts."""
    of = draw(st.sampled_from([V1Packet, V2Packet, SparsePacket, AddressedPacket, WaitPacket]))
    if of is WaitPacket:
        return WaitPacket(draw(u32), draw(u16), tuple(sorted(draw(st.sets(u8)))))
    wire = draw(st.sampled_from(sorted(p.WIRE_DTYPES))) if of is not V1Packet else p.WIRE_INT32
    dtype, payload = p.WIRE_DTYPES[wire], draw(st.sampled_from(sorted(p.SIZE_CODE_OF)))
    pattern = draw(st.binary(min_size=1, max_size=24))
    values = np.frombuffer((pattern * payload)[:payload], dtype).astype(dtype.newbyteorder("="))
    if of is V1Packet:
        place = draw(st.integers(0, p.V1_SLOT_MASK)), draw(st.integers(0, 1))
        return V1Packet(draw(u8), draw(u32), *place, draw(signed8), draw(signed8), values)
    head = draw(st.sampled_from([p.CONTRIBUTION, p.RESULT])), draw(u32), draw(u16), draw(signed8)
    rest, data = (wire, draw(st.booleans())), draw(st.sampled_from([values, None]))
    if of is SparsePacket:
        columns = draw(st.sampled_from(p.COLUMNS))
        return SparsePacket(*head, tuple(draw(st.lists(u32, min_size=columns, max_size=columns))), data, *rest)
    codes = draw(signed8), draw(signed8)
    if of is AddressedPacket:
        return AddressedPacket(*head, *codes, draw(st.integers(0, 2)), draw(u8), draw(st.integers(0, 4)), data, *rest)
    return V2Packet(*head, *codes, values, *rest)


def by_name(packet) -> dict:
    """The fields of one of packets.py's as dissectors have them: numbers, and lists of numbers."""
    fields = {name: getattr(packet, name) for name in packet.__dataclass_fields__}
    for name in ("padded", "payload_bytes"):
        fields.pop(name, None)
    for name in {"words", "missing"} & set(fields):
        fields[name] = list(fields[name])
    if "values" in fields:
        fields["values"] = [] if packet.values is None else np.asarray(packet.values).tolist()
    if "job_tag" in fields:
        fields["tag"] = fields.pop("job_tag")
    if "kind" in fields:
        fields |= {"type": fields.pop("kind") | fields.pop("wire"), "r": int(packet.r)}
        if packet.kind == p.RESULT:
            fields["flags"] = fields.pop("mark" if "mark" in fields else "used") & 0xFF
    return fields
