"""The traffic manager, between ingress and egress: egress queues, multicast, clones, and the way back to ingress.

There is one thread: what returns to ingress is served before the next packet is taken in, and egress follows at once,
in the order in which packets were queued, unless a queue has a rate. A queue is chosen by port and priority; which
packet leaves next is up to the engine (traffic.EgressQueues)."""

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
"""Times that one frame and its copies may pass ingress or egress; the rest is dropped then."""


def serve(engine: Operations[P]) -> None:
    """Take all packets on whose turn it is: first those that return to ingress, then those in egress queues."""
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
    """Put a packet into the queue of a port; False if it is dropped."""
    return choose_queue(engine, packet, port) and engine.push(packet)


def choose_queue(engine: Operations[P], packet: P, port: int) -> bool:
    """Note the packet's queue, and when it came there; False if there is none of its priority."""
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
