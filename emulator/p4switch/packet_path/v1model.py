"""simple_switch's packet path, for programs of the v1model architecture: from received frames to outgoing frames.

The order of events at the ends of ingress and egress (clone, digest, resubmit, multicast, drop …) is that of
simple_switch.cpp's ingress_thread and egress_thread. After ingress, a packet waits in the traffic manager, from where
`traffic_manager.serve` passes it to egress."""

from emulator.p4switch.packet_path import fields as f
from emulator.p4switch.packet_path import notes as n
from emulator.p4switch.packet_path.engine import EGRESS, EGRESS_DEPARSER, INGRESS, INGRESS_PARSER, Operations, P
from emulator.p4switch.packet_path.traffic_manager import enqueue, mirror, replicate

NORMAL, INGRESS_CLONE, EGRESS_CLONE, COALESCED, RECIRCULATED, REPLICATED, RESUBMITTED = range(7)
"""Values of standard_metadata.instance_type."""


def receive(engine: Operations[P], packet: P) -> None:
    """Receive a packet that is unparsed, with all metadata 0."""
    engine.set(packet, f.INGRESS_PORT, engine.get(packet, f.RECEIVED_AT))
    engine.set(packet, f.PACKET_LENGTH, engine.get(packet, f.LENGTH))
    engine.set(packet, f.INSTANCE_TYPE, NORMAL)
    engine.set(packet, f.INGRESS_TIMESTAMP, engine.now())
    ingress(engine, packet)


# Ingress


def ingress(engine: Operations[P], packet: P) -> None:
    """Process a packet at ingress; afterwards it waits for egress, or has ended."""
    if not pass_ingress(engine, packet):
        engine.end(packet)


def pass_ingress(engine: Operations[P], packet: P) -> bool:
    """Parse, run the ingress pipeline, and execute its requests. Returns whether the packet itself is
    then in a queue."""
    engine.note(packet, n.RECEIVED, engine.get(packet, f.RECEIVED_AT))
    engine.set(packet, f.START_LENGTH, engine.get(packet, f.LENGTH))
    if not engine.parse(packet, INGRESS_PARSER):
        return False
    engine.set(packet, f.PARSER_ERROR, engine.get(packet, f.ERROR))
    engine.set(packet, f.CHECKSUM_ERROR, engine.get(packet, f.CHECKSUM))
    if not engine.run(packet, INGRESS):
        return False
    engine.set(packet, f.EXIT, 0)
    if engine.get(packet, f.CLONE):
        clone_at_ingress(engine, packet)
    if engine.get(packet, f.DIGEST):
        engine.learn(packet)
    if engine.get(packet, f.RESUBMIT):
        resubmit(engine, packet)
        return False
    group = engine.get(packet, f.MCAST_GRP)
    if group:
        engine.note(packet, n.MULTICAST, group)
        engine.set(packet, f.INSTANCE_TYPE, REPLICATED)
        replicate(engine, packet, group)
        return False
    port = engine.get(packet, f.EGRESS_SPEC)
    engine.note(packet, n.EGRESS_PORT, port)
    if port == engine.drop_port():
        engine.note(packet, n.DROPPED_AT_INGRESS, 0)
        return False
    engine.set(packet, f.INSTANCE_TYPE, NORMAL)
    return enqueue(engine, packet, port)


def clone_at_ingress(engine: Operations[P], packet: P) -> None:
    """Clone the packet as received, parsed again (without metadata except the ingress port)."""
    session = engine.get(packet, f.CLONE) - 1
    engine.note(packet, n.CLONED_AT_INGRESS, session)
    engine.set(packet, f.CLONE, 0)
    if not engine.has_session(session):
        return
    original = engine.save(packet)
    clone = engine.unparsed(original)
    engine.set(clone, f.LENGTH, engine.get(original, f.START_LENGTH))
    engine.set(clone, f.INGRESS_PORT, engine.get(original, f.RECEIVED_AT))
    if engine.parse(clone, INGRESS_PARSER):
        reset_metadata_except(engine, clone, original, engine.get(original, f.CLONE_LIST), INGRESS_CLONE)
        mirror(engine, clone, session)
    engine.resume(original)


def reset_metadata_except(engine: Operations[P], copy: P, packet: P, field_list: int, instance_type: int) -> None:
    """Reset a copy's metadata, except for the fields of a list."""
    engine.keep_fields(copy, packet, field_list)
    engine.set(copy, f.INSTANCE_TYPE, instance_type)


def resubmit(engine: Operations[P], packet: P) -> None:
    """Return the packet as received to ingress."""
    engine.note(packet, n.RESUBMITTED, 0)
    original = engine.save(packet)
    copy, length = engine.unparsed(original), engine.get(original, f.START_LENGTH)
    reset_metadata_except(engine, copy, original, engine.get(original, f.RESUBMIT), RESUBMITTED)
    engine.set(copy, f.LENGTH, length)
    engine.set(copy, f.PACKET_LENGTH, length)
    engine.push_returned(copy)
    engine.resume(original)


# Egress


def egress(engine: Operations[P], packet: P) -> None:
    """Process a packet at egress; afterwards it has left, or was dropped."""
    pass_egress(engine, packet)
    engine.end(packet)


def pass_egress(engine: Operations[P], packet: P) -> None:
    """Run the egress pipeline, execute its requests, deparse, and send."""
    port, priority, now = engine.get(packet, f.QUEUE_PORT), engine.get(packet, f.QUEUE_PRIORITY), engine.now()
    engine.set(packet, f.EGRESS_TIMESTAMP, now)
    engine.set(packet, f.DEQ_TIMEDELTA, now - engine.get(packet, f.ENQ_TIMESTAMP))
    engine.set(packet, f.DEQ_QDEPTH, engine.queue_length(port, priority))
    engine.set(packet, f.QID, priority)
    engine.set(packet, f.EGRESS_PORT, port)
    engine.set(packet, f.EGRESS_SPEC, engine.drop_port() + 1)
    engine.set(packet, f.PACKET_LENGTH, engine.get(packet, f.LENGTH))
    if not engine.run(packet, EGRESS):
        return
    if engine.get(packet, f.CLONE):
        clone_at_egress(engine, packet)
    if engine.get(packet, f.EGRESS_SPEC) == engine.drop_port():
        engine.note(packet, n.DROPPED_AT_EGRESS, 0)
        return
    if not engine.deparse(packet, EGRESS_DEPARSER):
        return
    if engine.get(packet, f.RECIRCULATE):
        recirculate(engine, packet)
    else:
        engine.send(packet, port)


def clone_at_egress(engine: Operations[P], packet: P) -> None:
    """Clone the packet with its current headers."""
    session = engine.get(packet, f.CLONE) - 1
    engine.note(packet, n.CLONED_AT_EGRESS, session)
    engine.set(packet, f.CLONE, 0)
    if not engine.has_session(session):
        return
    original = engine.save(packet)
    clone = engine.duplicate(original)
    reset_metadata_except(engine, clone, original, engine.get(original, f.CLONE_LIST), EGRESS_CLONE)
    mirror(engine, clone, session)
    engine.resume(original)


def recirculate(engine: Operations[P], packet: P) -> None:
    """Return the deparsed packet to ingress."""
    engine.note(packet, n.RECIRCULATED, 0)
    original = engine.save(packet)
    copy = engine.unparsed(original)
    length = engine.get(copy, f.LENGTH)
    engine.set(copy, f.COUNTED_LENGTH, length)
    reset_metadata_except(engine, copy, original, engine.get(original, f.RECIRCULATE), RECIRCULATED)
    engine.set(copy, f.PACKET_LENGTH, length)
    engine.push_returned(copy)
    engine.resume(original)
