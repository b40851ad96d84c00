"""Events on a packet's path, by number, for the packet log: each note has a name, for machine-readable output, and the
text that simple_switch and psa_switch print, with the note's value."""

from typing import NamedTuple


class Note(NamedTuple):
    name: str
    v1model: str
    psa: str


NOTES: list[Note] = []
"""A note's number is its index."""


def _note(name: str, v1model: str, psa: str = "") -> int:
    NOTES.append(Note(name, v1model, psa or v1model))
    return len(NOTES) - 1


RECEIVED = _note("received", "Processing packet received on port {}")
CLONED_AT_INGRESS = _note(
    "cloned_at_ingress", "Cloning packet at ingress", "Cloning packet at ingress to session id {}"
)
CLONED_AT_EGRESS = _note("cloned_at_egress", "Cloning packet at egress", "Cloning packet after egress to session id {}")
UNKNOWN_AT_INGRESS = _note(
    "unknown_session_at_ingress",
    "Cloning packet at ingress to unconfigured session id {} causes no clone packets to be created",
)
UNKNOWN_AT_EGRESS = _note(
    "unknown_session_at_egress",
    "Cloning packet after egress to unconfigured session id {} causes no clone packets to be created",
)
TO_GROUP = _note("cloned_to_group", "Cloning packet to MGID {}", "Cloning packet to multicast group {}")
TO_PORT = _note("cloned_to_port", "Cloning packet to egress port {}")
RESUBMITTED = _note("resubmitted", "Resubmitting packet")
RECIRCULATED = _note("recirculated", "Recirculating packet")
MULTICAST = _note(
    "multicast", "Multicast requested for packet", "Multicast requested for packet with multicast group {}"
)
REPLICATED = _note("replicated", "Replicating packet on port {}")
EGRESS_PORT = _note("egress_port", "Egress port is {}")
DROPPED_AT_INGRESS = _note("dropped_at_ingress", "Dropping packet at the end of ingress")
DROPPED_AT_EGRESS = _note("dropped_at_egress", "Dropping packet at the end of egress")
