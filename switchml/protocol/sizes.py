"""Sizes on the wire, each in one place: integers of a packet, packets, and what frames add to them."""

from switchml.protocol.packet import HEADER_BYTES, WIRE_INT8, WIRE_INT16, WIRE_INT32

WIRES = {"int32": WIRE_INT32, "int16": WIRE_INT16, "int8": WIRE_INT8}
"""Integers that aggregators add up, by the name that jobs choose them by: their codes in packets (docs/protocol.md,
section 3)."""
EXACT = "exact"
"""The wire of jobs whose sums of floats are exact: int32, in as many rounds as they need (section 5 there)."""
AUTO = "auto"
"""The default: half precision as it is where the aggregator adds that up (section 11), else int32."""
AGENT_WIRES = (AUTO, *WIRES, EXACT)
"""What a job may be joined with."""
LANE_BYTES = {"int32": 4, "int16": 2, "int8": 1}
"""Of one such integer."""


def lanes_of(wire: str) -> str:
    """The integers that a job's packets hold, by its wire."""
    return "int32" if wire in (AUTO, EXACT) else wire


PAYLOAD_BYTES = 1024
"""Of a full packet."""
ETHERNET_BYTES = 14
"""An Ethernet header: what tc and tbf count of a frame besides the IP packet (linux/net/sched)."""
ETHERNET_LINE_BYTES = 8 + ETHERNET_BYTES + 4 + 12
"""The same on the line: with preamble, check sequence and gap (IEEE 802.3)."""
IP_BYTES, UDP_BYTES = 20, 8
TCP_BYTES = 20 + 12
"""With the timestamp option that Linux always negotiates."""
MTU = 1500

FRAME_OVERHEAD_BYTES = HEADER_BYTES + UDP_BYTES + IP_BYTES + ETHERNET_BYTES
"""Of a packet of ours, as tc counts it."""
LINE_OVERHEAD_BYTES = HEADER_BYTES + UDP_BYTES + IP_BYTES + ETHERNET_LINE_BYTES
"""Of a packet of ours, on the line."""
SWITCHML_SHARE = PAYLOAD_BYTES / (PAYLOAD_BYTES + FRAME_OVERHEAD_BYTES)
"""Of a link's bits, as tc counts them, that are data in our packets."""
TCP_SHARE = (MTU - IP_BYTES - TCP_BYTES) / (MTU + ETHERNET_BYTES)
"""The same for TCP: segments of 1448 bytes in frames of 1514."""
