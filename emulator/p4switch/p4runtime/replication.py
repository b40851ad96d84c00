"""Multicast groups and clone sessions (section "PacketReplicationEngineEntry").

A group has a node for each replica id, as from BMv2's own server. A clone session is a mirroring session onto a
multicast group of its own, with an id from 2^15 on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from emulator.p4switch.p4runtime.bytestrings import decode
from emulator.p4switch.p4runtime.pipeline import Pipeline
from emulator.p4switch.p4runtime.refusals import DELETE, check_presence, refuse
from emulator.p4switch.state.replication import MAX_PORTS, MAX_SESSION
from switchml.control.p4runtime_protos import new_entity, v1

FIRST_RESERVED = 1 << 15
"""Multicast groups from here on belong to clone sessions."""
MAX_INSTANCE = (1 << 16) - 1
"""v1model's egress_rid has 16 bits."""

GROUP, SESSION = "multicast_group_entry", "clone_session_entry"


class ReplicationEngine:
    """Answers for groups and sessions. `groups` and `sessions` hold the controller's messages, `_nodes` the
    switch's handles by group."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.replication = pipeline.state.replication
        self.mirroring = pipeline.state.mirroring
        self.groups: dict[int, v1.MulticastGroupEntry] = {}
        self.sessions: dict[int, v1.CloneSessionEntry] = {}
        self._nodes: dict[int, list[int]] = {}
        self._placed: dict[int, dict[int, list[int]]] = {}

    def follow_ports(self) -> None:
        """Choose again among replicas and their backups by the state of ports."""
        entries = [(number, entry) for number, entry in self.groups.items()]
        entries += [(FIRST_RESERVED + number, entry) for number, entry in self.sessions.items()]
        entries = [item for item in entries if any(replica.backup_replicas for replica in item[1].replicas)]
        up = self.pipeline.ports_up() if entries else set()
        for group, entry in entries:
            ports = _ports_by_instance(entry.replicas, up)
            if ports != self._placed.get(group):
                self._place(group, ports)

    def _ports(self, replicas: Sequence[v1.Replica]) -> dict[int, list[int]]:
        has_backups = any(replica.backup_replicas for replica in replicas)
        return _ports_by_instance(replicas, self.pipeline.ports_up() if has_backups else set())

    def write(self, kind: int, entry: v1.PacketReplicationEngineEntry) -> None:
        """Do one update."""
        if entry.WhichOneof("type") == GROUP:
            self._write_group(kind, entry.multicast_group_entry)
        elif entry.WhichOneof("type") == SESSION:
            self._write_session(kind, entry.clone_session_entry)
        else:
            raise refuse("INVALID_ARGUMENT", "neither a multicast group nor a clone session")

    def read(self, pattern: v1.PacketReplicationEngineEntry) -> Iterator[v1.Entity]:
        """All groups or sessions that `pattern` selects."""
        kind = pattern.WhichOneof("type")
        if kind == GROUP:
            entries, number = self.groups, pattern.multicast_group_entry.multicast_group_id
        elif kind == SESSION:
            entries, number = self.sessions, pattern.clone_session_entry.session_id
        else:
            raise refuse("INVALID_ARGUMENT", "neither multicast groups nor clone sessions")
        for key in sorted(entries):
            if number in (0, key):
                message = v1.PacketReplicationEngineEntry(**{kind: entries[key]})
                yield new_entity("packet_replication_engine_entry", message)

    def _write_group(self, kind: int, entry: v1.MulticastGroupEntry) -> None:
        number = entry.multicast_group_id
        if not 0 < number < FIRST_RESERVED:
            raise refuse("INVALID_ARGUMENT", f"a multicast group's id is 1 to {FIRST_RESERVED - 1}, not {number}")
        check_presence(kind, number in self.groups, f"multicast group {number}")
        if kind == DELETE:
            self._remove(number)
            del self.groups[number]
            return
        self._place(number, self._ports(entry.replicas))
        self.groups[number] = v1.MulticastGroupEntry.FromString(entry.SerializeToString())

    def _write_session(self, kind: int, entry: v1.CloneSessionEntry) -> None:
        number = entry.session_id
        if not 0 < number <= MAX_SESSION:
            raise refuse("INVALID_ARGUMENT", f"a clone session's id is 1 to {MAX_SESSION}, not {number}")
        check_presence(kind, number in self.sessions, f"clone session {number}")
        group = FIRST_RESERVED + number
        if kind == DELETE:
            if number in self.mirroring.sessions:  # else it was removed through Thrift
                self.mirroring.delete(number)
            self._remove(group)
            del self.sessions[number]
            return
        if entry.class_of_service:
            raise refuse("UNIMPLEMENTED", "clones have no class of service")
        if entry.packet_length_bytes:
            raise refuse("UNIMPLEMENTED", "a session does not truncate its clones; the program can")
        self._place(group, self._ports(entry.replicas))
        self.mirroring.add(number, mgid=group)
        self.sessions[number] = v1.CloneSessionEntry.FromString(entry.SerializeToString())

    def _place(self, group: int, ports: dict[int, list[int]]) -> None:
        """Set a group's ports by instance."""
        engine = self.replication
        before = [handle for handle in self._nodes.get(group, ()) if handle in engine.nodes]
        if len(engine.nodes) - len(before) + len(ports) > engine.max_nodes:
            raise refuse("RESOURCE_EXHAUSTED", f"there can't be more than {engine.max_nodes} multicast nodes")
        engine.create_group(group)
        for handle in before:
            engine.destroy_node(handle)
        self._nodes[group], self._placed[group] = [], ports
        for instance, members in ports.items():
            handle = engine.create_node(instance, members)
            engine.associate_node(group, handle)
            self._nodes[group].append(handle)

    def _remove(self, group: int) -> None:
        engine = self.replication
        for handle in self._nodes.pop(group, ()):
            if handle in engine.nodes:
                engine.destroy_node(handle)
        engine.destroy_group(group)


def _ports_by_instance(replicas: Sequence[v1.Replica], up: Set[int]) -> dict[int, list[int]]:
    """Instance → ports, in the order of the replicas. Of a replica and its backups, the first whose port is up is used,
    and the replica itself if none is. Raises INVALID_ARGUMENT."""
    primaries, ports_of = set(), {}
    for replica in replicas:
        port = replica.egress_port
        if replica.WhichOneof("port_kind") == "port":
            port = decode(replica.port, 32, "a replica's port")
        choices = [(port, replica.instance)]
        choices += [(decode(other.port, 32, "a backup's port"), other.instance) for other in replica.backup_replicas]
        for choice in choices:
            _check_replica(*choice)
        if choices[0] in primaries:
            raise refuse("INVALID_ARGUMENT", f"port {port} with instance {replica.instance} is there twice")
        primaries.add(choices[0])
        port, instance = next((choice for choice in choices if choice[0] in up), choices[0])
        ports = ports_of.setdefault(instance, [])
        if port not in ports:
            ports.append(port)
    return ports_of


def _check_replica(port: int, instance: int) -> None:
    if port >= MAX_PORTS:
        raise refuse("INVALID_ARGUMENT", f"a replica's port is below {MAX_PORTS}, not {port}")
    if instance > MAX_INSTANCE:
        raise refuse("INVALID_ARGUMENT", f"a replica's instance is at most {MAX_INSTANCE}, not {instance}")
