"""psa_switch's packet path (targets/psa_switch/psa_switch.cpp), for programs of the Portable Switch Architecture: a
packet is also deparsed between ingress and egress, and its metadata determines its destination."""

from emulator.p4switch.packet_path import fields as f
from emulator.p4switch.packet_path import notes as n
from emulator.p4switch.packet_path.engine import (
    EGRESS,
    EGRESS_DEPARSER,
    EGRESS_PARSER,
    INGRESS,
    INGRESS_DEPARSER,
    INGRESS_PARSER,
    Operations,
    P,
)
from emulator.p4switch.packet_path.traffic_manager import enqueue, mirror, replicate

NORMAL, NORMAL_UNICAST, NORMAL_MULTICAST, CLONE_I2E, CLONE_E2E, RESUBMIT, RECIRCULATE = range(7)
"""PSA_PacketPath_t (psa.p4)."""
RECIRCULATE_PORT = 0xFFFFFFFA


def receive(engine: Operations[P], packet: P) -> None:
    """Receive a packet that is unparsed, with all metadata 0."""
    engine.set(packet, f.INGRESS_PARSER_PORT, engine.get(packet, f.RECEIVED_AT))
    engine.set(packet, f.INGRESS_PARSER_PATH, NORMAL)
    ingress(engine, packet)


# Ingress


def ingress(engine: Operations[P], packet: P) -> None:
    """Process a packet at ingress; afterwards it waits for egress, or has ended."""
    if not pass_ingress(engine, packet):
        engine.end(packet)


def pass_ingress(engine: Operations[P], packet: P) -> bool:
    """Parse, run the ingress pipeline, and apply its output metadata. Returns whether the packet itself is then in a
    queue."""
    engine.note(packet, n.RECEIVED, engine.get(packet, f.INGRESS_PARSER_PORT))
    engine.set(packet, f.START_LENGTH, engine.get(packet, f.LENGTH))
    engine.set(packet, f.INGRESS_INPUT_TIMESTAMP, engine.now())
    if not engine.parse(packet, INGRESS_PARSER):
        return False
    set_ingress_metadata(engine, packet)
    if not engine.run(packet, INGRESS):
        return False
    engine.set(packet, f.EXIT, 0)
    if engine.get(packet, f.INGRESS_OUTPUT_CLONE):
        clone(engine, packet, engine.get(packet, f.INGRESS_OUTPUT_SESSION), CLONE_I2E)
    if engine.get(packet, f.INGRESS_OUTPUT_DROP):
        engine.note(packet, n.DROPPED_AT_INGRESS, 0)
        return False
    if engine.get(packet, f.INGRESS_OUTPUT_RESUBMIT):
        engine.note(packet, n.RESUBMITTED, 0)
        return_to_ingress(engine, packet, 0, RESUBMIT)
        return False
    if not engine.deparse(packet, INGRESS_DEPARSER):
        return False
    engine.set(packet, f.EGRESS_INPUT_CLASS, engine.get(packet, f.INGRESS_OUTPUT_CLASS))
    group = engine.get(packet, f.INGRESS_OUTPUT_GROUP)
    if group:
        engine.note(packet, n.MULTICAST, group)
        engine.set(packet, f.EGRESS_PARSER_PATH, NORMAL_MULTICAST)
        replicate(engine, packet, group)
        return False
    engine.set(packet, f.EGRESS_INPUT_INSTANCE, 0)
    engine.set(packet, f.EGRESS_PARSER_PATH, NORMAL_UNICAST)
    port = engine.get(packet, f.INGRESS_OUTPUT_PORT)
    engine.note(packet, n.EGRESS_PORT, port)
    return enqueue(engine, packet, port)


def set_ingress_metadata(engine: Operations[P], packet: P) -> None:
    """Set the ingress pipeline's input metadata, and the defaults of its output metadata."""
    engine.set(packet, f.INGRESS_INPUT_PORT, engine.get(packet, f.INGRESS_PARSER_PORT))
    engine.set(packet, f.INGRESS_INPUT_PATH, engine.get(packet, f.INGRESS_PARSER_PATH))
    engine.set(packet, f.INGRESS_INPUT_ERROR, engine.get(packet, f.ERROR))
    engine.set(packet, f.INGRESS_OUTPUT_CLASS, 0)
    engine.set(packet, f.INGRESS_OUTPUT_CLONE, 0)
    engine.set(packet, f.INGRESS_OUTPUT_RESUBMIT, 0)
    engine.set(packet, f.INGRESS_OUTPUT_GROUP, 0)
    engine.set(packet, f.INGRESS_OUTPUT_DROP, 1)


def clone(engine: Operations[P], packet: P, session: int, path: int) -> None:
    """Send the packet's bytes to a session's targets."""
    is_known = engine.has_session(session)
    if path == CLONE_I2E:
        engine.note(packet, n.CLONED_AT_INGRESS if is_known else n.UNKNOWN_AT_INGRESS, session)
    else:
        engine.note(packet, n.CLONED_AT_EGRESS if is_known else n.UNKNOWN_AT_EGRESS, session)
    if not is_known:
        return
    original = engine.save(packet)
    copy = engine.unparsed(original)
    engine.reset_metadata(copy)
    if path == CLONE_I2E:
        engine.set(copy, f.LENGTH, engine.get(original, f.START_LENGTH))
    engine.set(copy, f.EGRESS_PARSER_PATH, path)
    mirror(engine, copy, session)
    engine.resume(original)


def return_to_ingress(engine: Operations[P], packet: P, port: int, path: int) -> None:
    """Return the packet's bytes to ingress."""
    original = engine.save(packet)
    copy = engine.unparsed(original)
    engine.reset_metadata(copy)
    if path == RESUBMIT:
        engine.set(copy, f.LENGTH, engine.get(original, f.START_LENGTH))
    engine.set(copy, f.COUNTED_LENGTH, engine.get(copy, f.LENGTH))
    engine.set(copy, f.INGRESS_PARSER_PORT, port)
    engine.set(copy, f.INGRESS_PARSER_PATH, path)
    engine.push_returned(copy)
    engine.resume(original)


# Egress


def egress(engine: Operations[P], packet: P) -> None:
    """Process a packet at egress; afterwards it has left, or was dropped."""
    pass_egress(engine, packet)
    engine.end(packet)


def pass_egress(engine: Operations[P], packet: P) -> None:
    """Parse, run the egress pipeline, deparse, and apply the output metadata."""
    port = engine.get(packet, f.QUEUE_PORT)
    engine.strip(packet)
    engine.set(packet, f.EGRESS_PARSER_PORT, port)
    engine.set(packet, f.EGRESS_INPUT_TIMESTAMP, engine.now())
    if not engine.parse(packet, EGRESS_PARSER):
        return
    set_egress_metadata(engine, packet)
    if not engine.run(packet, EGRESS):
        return
    engine.set(packet, f.EXIT, 0)
    engine.set(packet, f.EGRESS_DEPARSER_PORT, port)
    if not engine.deparse(packet, EGRESS_DEPARSER):
        return
    if engine.get(packet, f.EGRESS_OUTPUT_CLONE):
        clone(engine, packet, engine.get(packet, f.EGRESS_OUTPUT_SESSION), CLONE_E2E)
    if engine.get(packet, f.EGRESS_OUTPUT_DROP):
        engine.note(packet, n.DROPPED_AT_EGRESS, 0)
        return
    if port == RECIRCULATE_PORT:
        engine.note(packet, n.RECIRCULATED, 0)
        return_to_ingress(engine, packet, RECIRCULATE_PORT, RECIRCULATE)
    else:
        engine.send(packet, port)


def set_egress_metadata(engine: Operations[P], packet: P) -> None:
    """Set the egress pipeline's input metadata, and the defaults of its output metadata."""
    engine.set(packet, f.EGRESS_INPUT_PORT, engine.get(packet, f.EGRESS_PARSER_PORT))
    engine.set(packet, f.EGRESS_INPUT_PATH, engine.get(packet, f.EGRESS_PARSER_PATH))
    engine.set(packet, f.EGRESS_INPUT_ERROR, engine.get(packet, f.ERROR))
    engine.set(packet, f.EGRESS_OUTPUT_CLONE, 0)
    engine.set(packet, f.EGRESS_OUTPUT_DROP, 0)
