"""The traffic manager, between ingress and egress: egress queues, multicast, clones, and the return to ingress.

There is one thread: packets that return to ingress are processed before the next packet is received, and egress follows
immediately, in FIFO order, unless a queue has a rate limit. A queue is selected by port and priority; the engine
decides which packet leaves next (traffic.EgressQueues)."""

from emulator.p4switch.packet_path import notes as n
from emulator.p4switch.packet_path.engine import Operations, P
from emulator.p4switch.packet_path.fields import (
    EGRESS_INPUT_INSTANCE,
    EGRESS_RID,
    ENQ_QDEPTH,
    ENQ_TIMESTAMP,
    PRIORITY,
    QUEUE_PORT,
    QUEUE_PRIORITY,
)

MAX_PASSES = 1 << 16
"""Maximum passes of one frame and its copies through ingress or egress; the remaining packets are dropped."""


def serve(engine: Operations[P]) -> None:
    """Process all packets that are due: first those that return to ingress, then those in egress queues."""
    for _ in range(MAX_PASSES):
        returned = engine.next_returned()
        if returned:
            engine.ingress(returned)
            continue
        queued = engine.next_queued()
        if not queued:
            return
        engine.egress(queued)
    engine.drop_waiting()


def enqueue(engine: Operations[P], packet: P, port: int) -> bool:
    """Append a packet to a queue of a port. Returns False if it is dropped."""
    return choose_queue(engine, packet, port) and engine.push(packet)


def choose_queue(engine: Operations[P], packet: P, port: int) -> bool:
    """Set the packet's queue and enqueue time. Returns False if there is no queue of its priority."""
    priority = engine.get(packet, PRIORITY)
    if priority >= engine.n_priorities():
        engine.refuse_priority()
        return False
    engine.set(packet, QUEUE_PORT, port)
    engine.set(packet, QUEUE_PRIORITY, priority)
    engine.set(packet, ENQ_TIMESTAMP, engine.now())
    engine.set(packet, ENQ_QDEPTH, engine.queue_length(port, priority))
    return True


def replicate(engine: Operations[P], packet: P, group: int) -> None:
    """Queue a copy for each port of a multicast group."""
    for number in range(engine.n_copies(group)):
        instance = engine.copy_instance(group, number)
        engine.set(packet, EGRESS_RID, instance)
        engine.set(packet, EGRESS_INPUT_INSTANCE, instance)
        port = engine.copy_port(group, number)
        engine.note(packet, n.REPLICATED, port)
        if choose_queue(engine, packet, port):
            engine.push_copy(packet)


def mirror(engine: Operations[P], clone: P, session: int) -> None:
    """Send a clone to its session's targets: a multicast group, a port, or both."""
    group, port = engine.session_group(session), engine.session_port(session)
    if group >= 0:
        engine.note(clone, n.TO_GROUP, group)
        replicate(engine, clone, group)
    if port >= 0:
        engine.note(clone, n.TO_PORT, port)
    if port < 0 or not enqueue(engine, clone, port):
        engine.end(clone)
