"""The plan: a block of words with the data about a program and a switch that the packet path's kernels need, their
input, and their results. Kernels identify an engine by the address of its plan."""

from emulator.p4switch.engine.layout import offsets
from emulator.p4switch.packet_path.fields import FIELDS

BLOCK_WORDS = ("ingress_parser", "ingress", "ingress_deparser", "egress_parser", "egress", "egress_deparser")
"""Start of each block's code, in the order of packet_path.engine.BLOCKS."""
FIELD_WORDS = tuple(f"{name} {word}" for name in FIELDS for word in ("offset", "mask"))
"""For each field of packet_path.fields: the cell's offset (-1: not in the program), and the mask of its width."""
WORDS = (
    "frame", "phv_end", "metadata", "metadata_end", "metadata_headers", "n_metadata_headers", "saved", "no_error",
    *BLOCK_WORDS, "vm", "header_bytes", "digests", "n_digests", "field_lists", "n_field_lists", "drop_port",
    "n_priorities", "groups", "n_groups", "sessions", "n_sessions", "returned", "returned_first", "returned_n",
    "queued", "queued_first", "queued_n", "is_held", "is_paced", "n_released", "queue_length", "ring_size",
    "ring_stride", "pool", "pool_n", "n_headers", "in_address", "in_length", "in_port", "now", "source", "out",
    "out_end", "reserve", "records", "n_records", "max_records", "max_events", "status", "lost", "bad_priority",
)  # fmt: skip
"""The words after those. frame: the current packet; phv_end, metadata, metadata_end: offsets in it; metadata_headers:
offsets of validity bytes; saved: the packet that is set aside; header_bytes: maximum bytes that a deparser writes;
groups: rows of address and number of a group's copies; sessions: rows of whether a session exists, port and group (-1:
none); returned, queued: rings of packets, each with its first position and length; is_held: the frame holds the only
packet in a queue; is_paced: packets leave queues only if n_released allows it; queue_length: the queue length visible
to the path; pool: 0 without stale fields; n_headers: 0 if copies need not reset invalid headers; in_…: the batch;
source: number of the received frame; out, out_end, reserve: position of the next deparsed packet, end of the buffer,
and free space required for another frame; records: outgoing frames; status: reason of a program abort; lost,
bad_priority: counts of dropped packets for the log."""
PLAN = offsets("Plan", WORDS, 8 * len(FIELD_WORDS))
PLAN_WORDS = (*FIELD_WORDS, *WORDS)
