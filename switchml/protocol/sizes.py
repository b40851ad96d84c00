"""Sizes on the wire, each defined once: integers of a packet, packets, and the overhead of frames."""

from switchml.protocol.packet import HEADER_BYTES, WIRE_INT8, WIRE_INT16, WIRE_INT32

WIRES = {"int32": WIRE_INT32, "int16": WIRE_INT16, "int8": WIRE_INT8}
"""Integer types that aggregators sum, by the names used in options: their codes in packets (docs/protocol.md, section
3)."""
EXACT = "exact"
"""The wire of jobs with exact sums of floats: int32, in as many rounds as needed (section 5 there)."""
AUTO = "auto"
"""The default: unconverted half precision if the aggregator can sum it (section 11), else int32."""
AGENT_WIRES = (AUTO, *WIRES, EXACT)
"""Values of the option `wire` of a job."""
LANE_BYTES = {"int32": 4, "int16": 2, "int8": 1}
"""Bytes of an integer."""


def lanes_of(wire: str) -> str:
    """Integer type of a job's packets, by its wire."""
    return "int32" if wire in (AUTO, EXACT) else wire


PAYLOAD_BYTES = 1024
"""Payload of a full packet."""
ETHERNET_BYTES = 14
"""An Ethernet header, which tc and tbf count in addition to the IP packet (linux/net/sched)."""
ETHERNET_LINE_BYTES = 8 + ETHERNET_BYTES + 4 + 12
"""Ethernet overhead on the line: with preamble, check sequence and gap (IEEE 802.3)."""
IP_BYTES, UDP_BYTES = 20, 8
TCP_BYTES = 20 + 12
"""TCP header with the timestamp option that Linux always negotiates."""
MTU = 1500

FRAME_OVERHEAD_BYTES = HEADER_BYTES + UDP_BYTES + IP_BYTES + ETHERNET_BYTES
"""Overhead of a SwitchML packet, as counted by tc."""
LINE_OVERHEAD_BYTES = HEADER_BYTES + UDP_BYTES + IP_BYTES + ETHERNET_LINE_BYTES
"""Overhead of a SwitchML packet on the line."""
SWITCHML_SHARE = PAYLOAD_BYTES / (PAYLOAD_BYTES + FRAME_OVERHEAD_BYTES)
"""Share of data in the bits of a link, as counted by tc, with SwitchML packets."""
TCP_SHARE = (MTU - IP_BYTES - TCP_BYTES) / (MTU + ETHERNET_BYTES)
"""The corresponding share for TCP: segments of 1448 bytes in frames of 1514."""
