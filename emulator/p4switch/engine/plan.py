"""The plan: a block of words with what the packet path's kernels need of a program and a switch, their input, and their
results. Kernels know an engine by the address of its plan."""

from emulator.p4switch.engine.layout import offsets
from emulator.p4switch.packet_path.fields import FIELDS

BLOCK_WORDS = ("ingress_parser", "ingress", "ingress_deparser", "egress_parser", "egress", "egress_deparser")
"""Where the code of each block begins, in the order of packet_path.engine.BLOCKS."""
FIELD_WORDS = tuple(f"{name} {word}" for name in FIELDS for word in ("offset", "mask"))
"""Of each field of packet_path.fields: the cell's offset (-1: the program lacks it), and the mask of its width."""
WORDS = (
    "frame", "phv_end", "metadata", "metadata_end", "metadata_headers", "n_metadata_headers", "saved", "no_error",
    *BLOCK_WORDS, "vm", "header_bytes", "digests", "n_digests", "field_lists", "n_field_lists", "drop_port",
    "n_priorities", "groups", "n_groups", "sessions", "n_sessions", "returned", "returned_first", "returned_n",
    "queued", "queued_first", "queued_n", "is_held", "is_paced", "n_released", "queue_length", "ring_size",
    "ring_stride", "pool", "pool_n", "n_headers", "in_address", "in_length", "in_port", "now", "source", "out",
    "out_end", "reserve", "records", "n_records", "max_records", "max_events", "status", "lost", "bad_priority",
)  # fmt: skip
"""The words behind those. frame: the packet that is worked on; phv_end, metadata, metadata_end: offsets in it;
metadata_headers: offsets of validity bytes; saved: the packet that is set aside; header_bytes: the most that a deparser
writes; groups: rows of copies' address and number; sessions: rows of whether there is one, port and group (-1: none);
returned, queued: rings of packets, each with the first one's place and their number; is_held: the frame holds the only
packet in a queue; is_paced: packets leave queues only if n_released allows it; queue_length: what the path sees of
queues; pool: 0 without stale fields; n_headers: 0 if copies have nothing to lose of invalid headers; in_…: the batch;
source: the number of the frame that came in; out, out_end, reserve: where the next packet is deparsed to, where the
room ends, and what has to be free for another frame; records: frames that leave; status: why the program aborted; lost,
bad_priority: packets dropped for the log."""
PLAN = offsets("Plan", WORDS, 8 * len(FIELD_WORDS))
PLAN_WORDS = (*FIELD_WORDS, *WORDS)
