"""The plan of the compiled packet path (traffic.py): a block of words with what it needs of a program and a switch."""

import numpy as np

from emulator.p4switch.engine.layout import offsets

FIELDS = (
    "standard_metadata.ingress_port", "standard_metadata.packet_length", "standard_metadata.instance_type",
    "intrinsic_metadata.ingress_global_timestamp", "standard_metadata.parser_error", "standard_metadata.checksum_error",
    "intrinsic_metadata.mcast_grp", "standard_metadata.egress_spec", "intrinsic_metadata.egress_rid",
    "intrinsic_metadata.priority", "queueing_metadata.enq_timestamp", "queueing_metadata.enq_qdepth",
    "intrinsic_metadata.egress_global_timestamp", "queueing_metadata.deq_timedelta", "queueing_metadata.deq_qdepth",
    "queueing_metadata.qid", "standard_metadata.egress_port",
)  # fmt: skip
"""What the path itself reads and writes. In the plan, each has two words: the cell's offset (-1: the program lacks
it) and the mask of its width."""
(
    INGRESS_PORT, PACKET_LENGTH, INSTANCE_TYPE, INGRESS_TIME, PARSER_ERROR, CHECKSUM_ERROR, MCAST_GRP, EGRESS_SPEC,
    EGRESS_RID, PRIORITY, ENQ_TIME, ENQ_DEPTH, EGRESS_TIME, DEQ_DELTA, DEQ_DEPTH, QID, EGRESS_PORT,
) = (np.int64(16 * i) for i in range(len(FIELDS)))  # fmt: skip

PLAN = (
    "frame", "phv", "phv_end", "metadata", "metadata_end", "metadata_headers", "n_metadata_headers", "saved",
    "no_error", "parser", "ingress", "egress", "deparser", "digests", "n_digests", "field_lists", "n_field_lists",
    "drop_port", "n_priorities", "groups", "n_groups", "sessions", "returned", "returned_first", "returned_n", "queued",
    "queued_first", "queued_n", "ring_size", "ring_stride", "out_end", "records", "n_records", "max_records", "status",
    "lost", "in_address", "in_length", "in_port", "now", "source", "max_events", "reserve", "bad_priority",
    "vm", "header_bytes", "pool", "pool_n", "n_headers",
)  # fmt: skip
"""Words of the plan after the fields: the path's inputs and its counters. `pool`: 0 without stale fields;
`n_headers`: 0 if copies have nothing to lose of invalid headers."""
P = offsets(PLAN, 16 * len(FIELDS))
PLAN_WORDS = 2 * len(FIELDS) + len(PLAN)
