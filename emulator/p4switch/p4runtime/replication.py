"""Multicast groups and clone sessions (section "PacketReplicationEngineEntry").

A group has a node for each replica id, as with BMv2's own server. A clone session is a mirroring session to its own
multicast group, with an id of 2^15 or above.
"""

from collections.abc import Iterator, Sequence, Set
from copy import deepcopy
from typing import Any

from emulator.p4switch.p4runtime.errors import DELETE, check_presence, rpc_error
from emulator.p4switch.p4runtime.fields import decode
from emulator.p4switch.p4runtime.pipeline import Pipeline
from emulator.p4switch.state.replication import MAX_PORTS, MAX_SESSION
from switchml.control.p4runtime_protos import v1

FIRST_RESERVED = 1 << 15
"""Multicast groups with this id or above belong to clone sessions."""
MAX_INSTANCE = (1 << 16) - 1
"""v1model's egress_rid has 16 bits."""

GROUP, SESSION = "multicast_group_entry", "clone_session_entry"


class ReplicationEngine:
    """Handles requests for multicast groups and clone sessions. `entries`: the controller's messages by sort and
    number; `_nodes`: the switch's handles by group."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.replication = pipeline.state.replication
        self.mirroring = pipeline.state.mirroring
        self.entries: dict[str, dict[int, Any]] = {GROUP: {}, SESSION: {}}
        self._nodes: dict[int, list[int]] = {}
        self._placed: dict[int, dict[int, list[int]]] = {}

    def follow_ports(self) -> None:
        """Reselect among replicas and their backups by the current state of ports."""
        entries = [(number, entry) for number, entry in self.entries[GROUP].items()]
        entries += [(FIRST_RESERVED + number, entry) for number, entry in self.entries[SESSION].items()]
        for group, entry in entries:
            if any(replica.backup_replicas for replica in entry.replicas):
                ports = self._ports(entry.replicas)
                if ports != self._placed.get(group):
                    self._place(group, ports)

    def _ports(self, replicas: Sequence[v1.Replica]) -> dict[int, list[int]]:
        has_backups = any(replica.backup_replicas for replica in replicas)
        return _ports_by_instance(replicas, self.pipeline.ports_up() if has_backups else set())

    def _identify(self, entry: v1.PacketReplicationEngineEntry) -> tuple[str, Any, int]:
        """(GROUP or SESSION, the message of a group or session, its number) of an entry."""
        sort = entry.WhichOneof("type")
        if sort not in self.entries:
            raise rpc_error("INVALID_ARGUMENT", "neither a multicast group nor a clone session")
        message = getattr(entry, sort)
        return sort, message, message.multicast_group_id if sort == GROUP else message.session_id

    def read(self, pattern: v1.PacketReplicationEngineEntry) -> Iterator[v1.Entity]:
        sort, _, number = self._identify(pattern)
        for key, message in sorted(self.entries[sort].items(), key=lambda item: item[0]):
            if number in (0, key):
                yield v1.Entity(packet_replication_engine_entry={sort: message})

    def write(self, kind: int, entry: v1.PacketReplicationEngineEntry) -> None:
        sort, message, number = self._identify(entry)
        name, highest = ("multicast group", FIRST_RESERVED - 1) if sort == GROUP else ("clone session", MAX_SESSION)
        if not 0 < number <= highest:
            raise rpc_error("INVALID_ARGUMENT", f"a {name}'s id is 1 to {highest}, not {number}")
        check_presence(kind, number in self.entries[sort], f"{name} {number}")
        group = number if sort == GROUP else FIRST_RESERVED + number
        if kind == DELETE:
            if sort == SESSION and number in self.mirroring.sessions:  # otherwise it was removed through Thrift
                self.mirroring.delete(number)
            self._remove(group)
            del self.entries[sort][number]
            return
        if sort == SESSION and message.class_of_service:
            raise rpc_error("UNIMPLEMENTED", "clones have no class of service")
        if sort == SESSION and message.packet_length_bytes:
            raise rpc_error("UNIMPLEMENTED", "a session does not truncate its clones; the program can")
        self._place(group, self._ports(message.replicas))
        if sort == SESSION:
            self.mirroring.add(number, mgid=group)
        self.entries[sort][number] = deepcopy(message)

    def _place(self, group: int, ports: dict[int, list[int]]) -> None:
        """Set a group's ports by instance."""
        engine = self.replication
        before = [handle for handle in self._nodes.get(group, ()) if handle in engine.nodes]
        if len(engine.nodes) - len(before) + len(ports) > engine.max_nodes:
            raise rpc_error("RESOURCE_EXHAUSTED", f"there can't be more than {engine.max_nodes} multicast nodes")
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
    or the replica itself if none is up. Raises INVALID_ARGUMENT."""
    primaries: set[tuple[int, int]] = set()
    ports_of: dict[int, list[int]] = {}
    for replica in replicas:
        port = replica.egress_port
        if replica.WhichOneof("port_kind") == "port":
            port = decode(replica.port, 32, "a replica's port")
        choices = [(port, replica.instance)]
        choices += [(decode(other.port, 32, "a backup's port"), other.instance) for other in replica.backup_replicas]
        if max(choices)[0] >= MAX_PORTS:
            raise rpc_error("INVALID_ARGUMENT", f"a replica's port is below {MAX_PORTS}, not {max(choices)[0]}")
        most = max(instance for _, instance in choices)
        if most > MAX_INSTANCE:
            raise rpc_error("INVALID_ARGUMENT", f"a replica's instance is at most {MAX_INSTANCE}, not {most}")
        if choices[0] in primaries:
            raise rpc_error("INVALID_ARGUMENT", f"port {port} with instance {replica.instance} is there twice")
        primaries.add(choices[0])
        port, instance = next((choice for choice in choices if choice[0] in up), choices[0])
        ports = ports_of.setdefault(instance, [])
        if port not in ports:
            ports.append(port)
    return ports_of
