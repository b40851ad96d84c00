"""Numbers of the fields and registers that the packet path accesses: fields of the program's metadata, and the
registers that the switch stores with each packet. Both engines build their tables from the two lists here.

A field that is not in the program reads as 0, and writes to it are ignored.
"""

FIELDS: list[str] = []
"""Names of metadata fields; a field's number is its index."""
REGISTERS: list[str] = []
"""Names of a packet's registers; a register's number is its index + FIRST_REGISTER."""
FIRST_REGISTER = 1 << 8


def _field(name: str) -> int:
    FIELDS.append(name)
    return len(FIELDS) - 1


def _register(name: str) -> int:
    REGISTERS.append(name)
    return FIRST_REGISTER + len(REGISTERS) - 1


# Registers

RECEIVED_AT = _register("received_at")
"""The ingress port."""
LENGTH = _register("packet_length")
"""The length in bytes, updated when headers are added and removed."""
START_LENGTH = _register("start_length")
"""The length at the start of ingress."""
COUNTED_LENGTH = _register("ingress_length")
"""The length in bytes that counters and meters use."""
ERROR = _register("parser_error")
CHECKSUM = _register("checksum_error")
EXIT = _register("exit")
CLONE = _register("clone")
"""The number of a mirroring session + 1; 0: no clone is requested."""
CLONE_LIST = _register("clone_list")
"""The field list whose fields a clone keeps."""
DIGEST = _register("digest")
RESUBMIT = _register("resubmit")
RECIRCULATE = _register("recirculate")
"""The list of the digest, or of the fields to be kept; 0: not requested."""
QUEUE_PORT = _register("queue_port")
QUEUE_PRIORITY = _register("queue_priority")
"""The egress queue that the packet is in, or left."""

# v1model

INGRESS_PORT = _field("standard_metadata.ingress_port")
PACKET_LENGTH = _field("standard_metadata.packet_length")
INSTANCE_TYPE = _field("standard_metadata.instance_type")
INGRESS_TIMESTAMP = _field("intrinsic_metadata.ingress_global_timestamp")
PARSER_ERROR = _field("standard_metadata.parser_error")
CHECKSUM_ERROR = _field("standard_metadata.checksum_error")
MCAST_GRP = _field("intrinsic_metadata.mcast_grp")
EGRESS_SPEC = _field("standard_metadata.egress_spec")
EGRESS_RID = _field("intrinsic_metadata.egress_rid")
PRIORITY = _field("intrinsic_metadata.priority")
ENQ_TIMESTAMP = _field("queueing_metadata.enq_timestamp")
ENQ_QDEPTH = _field("queueing_metadata.enq_qdepth")
EGRESS_TIMESTAMP = _field("intrinsic_metadata.egress_global_timestamp")
DEQ_TIMEDELTA = _field("queueing_metadata.deq_timedelta")
DEQ_QDEPTH = _field("queueing_metadata.deq_qdepth")
QID = _field("queueing_metadata.qid")
EGRESS_PORT = _field("standard_metadata.egress_port")

# PSA (psa.p4), by the block parameter that the field belongs to

INGRESS_PARSER_PORT = _field("psa_ingress_parser_input_metadata.ingress_port")
INGRESS_PARSER_PATH = _field("psa_ingress_parser_input_metadata.packet_path")
INGRESS_INPUT_PORT = _field("psa_ingress_input_metadata.ingress_port")
INGRESS_INPUT_PATH = _field("psa_ingress_input_metadata.packet_path")
INGRESS_INPUT_TIMESTAMP = _field("psa_ingress_input_metadata.ingress_timestamp")
INGRESS_INPUT_ERROR = _field("psa_ingress_input_metadata.parser_error")
INGRESS_OUTPUT_CLASS = _field("psa_ingress_output_metadata.class_of_service")
INGRESS_OUTPUT_CLONE = _field("psa_ingress_output_metadata.clone")
INGRESS_OUTPUT_SESSION = _field("psa_ingress_output_metadata.clone_session_id")
INGRESS_OUTPUT_DROP = _field("psa_ingress_output_metadata.drop")
INGRESS_OUTPUT_RESUBMIT = _field("psa_ingress_output_metadata.resubmit")
INGRESS_OUTPUT_GROUP = _field("psa_ingress_output_metadata.multicast_group")
INGRESS_OUTPUT_PORT = _field("psa_ingress_output_metadata.egress_port")
EGRESS_PARSER_PORT = _field("psa_egress_parser_input_metadata.egress_port")
EGRESS_PARSER_PATH = _field("psa_egress_parser_input_metadata.packet_path")
EGRESS_INPUT_CLASS = _field("psa_egress_input_metadata.class_of_service")
EGRESS_INPUT_PORT = _field("psa_egress_input_metadata.egress_port")
EGRESS_INPUT_PATH = _field("psa_egress_input_metadata.packet_path")
EGRESS_INPUT_INSTANCE = _field("psa_egress_input_metadata.instance")
EGRESS_INPUT_TIMESTAMP = _field("psa_egress_input_metadata.egress_timestamp")
EGRESS_INPUT_ERROR = _field("psa_egress_input_metadata.parser_error")
EGRESS_OUTPUT_CLONE = _field("psa_egress_output_metadata.clone")
EGRESS_OUTPUT_SESSION = _field("psa_egress_output_metadata.clone_session_id")
EGRESS_OUTPUT_DROP = _field("psa_egress_output_metadata.drop")
EGRESS_DEPARSER_PORT = _field("psa_egress_deparser_input_metadata.egress_port")
