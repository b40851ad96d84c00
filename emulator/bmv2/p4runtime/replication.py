"""Multicast groups and clone sessions (section 9.6). A clone session is a mirroring session to a multicast group of its
own, whose number is out of the way of the controller's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from emulator.bmv2.p4runtime.protos import messages
from emulator.bmv2.p4runtime.values import Code, Refused, invalid, not_found
from emulator.bmv2.state import State

INSERT, MODIFY, DELETE = 1, 2, 3
FIRST_SESSION_GROUP = 1 << 15
"""Multicast groups below this are the controller's."""


class Groups:
    """`nodes`: mgid → handles of the nodes that were made for it; what was asked for is kept to be read again."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._nodes: dict[int, list[int]] = {}
        self._groups: dict[int, Any] = {}
        self._sessions: dict[int, Any] = {}

    def write(self, kind: int, entity: Any) -> None:
        """INSERT, MODIFY or DELETE a PacketReplicationEngineEntry."""
        sort = entity.WhichOneof("type")
        if sort == "multicast_group_entry":
            self._write_group(kind, entity.multicast_group_entry)
        elif sort == "clone_session_entry":
            self._write_session(kind, entity.clone_session_entry)
        else:
            raise invalid("neither a multicast group nor a clone session")

    @staticmethod
    def _check(kind: int, number: int, limit: int, known: dict, sort: str) -> None:
        if not 0 < number < limit:
            raise invalid(f"{sort} {number}: expected 1 to {limit - 1}")
        if kind == INSERT and number in known:
            raise Refused(Code.ALREADY_EXISTS, f"there is {sort} {number} already")
        if kind != INSERT and number not in known:
            raise not_found(f"there is no {sort} {number}")

    def _write_group(self, kind: int, entry: Any) -> None:
        number = entry.multicast_group_id
        self._check(kind, number, FIRST_SESSION_GROUP, self._groups, "multicast group")
        replicas = [] if kind == DELETE else _replicas(entry.replicas)
        self._set_group(number, None if kind == DELETE else replicas)
        self._keep(self._groups, number, kind, entry)

    def _write_session(self, kind: int, entry: Any) -> None:
        number = entry.session_id
        self._check(kind, number, FIRST_SESSION_GROUP, self._sessions, "clone session")
        if entry.packet_length_bytes:
            raise Refused(Code.UNIMPLEMENTED, "clones are not truncated")
        replicas = [] if kind == DELETE else _replicas(entry.replicas)
        group = FIRST_SESSION_GROUP + number
        if kind == DELETE:
            self.state.mirroring.delete(number)
            self._set_group(group, None)
        else:
            self._set_group(group, replicas)
            self.state.mirroring.add(number, mgid=group)
        self._keep(self._sessions, number, kind, entry)

    @staticmethod
    def _keep(known: dict, number: int, kind: int, entry: Any) -> None:
        if kind == DELETE:
            del known[number]
        else:
            known[number] = entry

    def _set_group(self, mgid: int, replicas: list[tuple[int, int]] | None) -> None:
        """Make a group copy to (port, instance) pairs; None: remove it."""
        replication = self.state.replication
        with replication.lock:
            for node in self._nodes.pop(mgid, ()):
                replication.destroy_node(node)
            if replicas is None:
                replication.destroy_group(mgid)
                return
            replication.create_group(mgid)
            ports: dict[int, list[int]] = {}
            for port, instance in replicas:
                ports.setdefault(instance, []).append(port)
            self._nodes[mgid] = [replication.create_node(rid, members) for rid, members in ports.items()]
            for node in self._nodes[mgid]:
                replication.associate_node(mgid, node)

    def read(self, wanted: Any) -> Iterator[Any]:
        """The groups or sessions that match (0: all; nothing said: all of both)."""
        sort = wanted.WhichOneof("type")
        for field, number_of, known in (
            ("multicast_group_entry", "multicast_group_id", self._groups),
            ("clone_session_entry", "session_id", self._sessions),
        ):
            if sort in (None, field):
                number = getattr(getattr(wanted, field), number_of)
                if number and number not in known:
                    raise not_found(f"there is no {field.replace('_', ' ')} {number}")
                for key in [number] if number else sorted(known):
                    yield messages().PacketReplicationEngineEntry(**{field: known[key]})


def _replicas(replicas: Any) -> list[tuple[int, int]]:
    """(port, instance) of each replica."""
    found = []
    for replica in replicas:
        port = int.from_bytes(replica.port, "big") if replica.WhichOneof("port_kind") == "port" else replica.egress_port
        if not 0 <= port < 512:
            raise invalid(f"a replica on port {port}: expected 0 to 511")
        found.append((port, replica.instance))
    if len(set(found)) < len(found):
        raise invalid("two replicas have the same port and instance")
    return found


