"""The packet replication engine: the copies of a multicast group (BMv2's simple_pre_lag), and mirroring sessions.

A group lists nodes in the order in which they were associated; a node has a replication id and the ports and LAGs that
it copies to. Copies are ordered by node, with ascending ports first, then one port of each LAG.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from emulator.p4switch.state.handles import HandleTable, locked
from switchml.errors import ControlError

MAX_PORTS = 512
"""Upper bound of ports, and of the LAGs of a node."""
MAX_LAG = 256
"""The highest LAG that can have members."""
LAG_HASH = 0xFF
"""BMv2's constant that replaces a hash for selecting a LAG's member."""
MAX_SESSION = 32767
"""The highest mirroring session id."""


def _error(code: str, message: str) -> ControlError:
    return ControlError("Mc", code, message)


@dataclass
class Node:
    """A multicast node. `ports` and `lags` are ascending; `group`: the group it is associated with."""

    rid: int
    ports: tuple[int, ...]
    lags: tuple[int, ...]
    l2_handle: int = -1
    group: int | None = None


@dataclass
class Replication:
    """Multicast groups, nodes and LAGs. `groups`: mgid → handles of nodes; `nodes` by handle; `lags`: index → ports.
    `observers`, engines that store the groups in another format, are called with each changed group, under the lock."""

    lock: RLock
    max_groups: int = 4096
    max_nodes: int = 4096
    groups: dict[int, list[int]] = field(default_factory=dict)
    nodes: HandleTable[Node] = field(default_factory=HandleTable)
    lags: dict[int, tuple[int, ...]] = field(default_factory=dict)
    observers: list[Callable[[int], None]] = field(default_factory=list)
    _by_l2: HandleTable[Node] = field(default_factory=HandleTable)

    def copies(self, mgid: int) -> list[tuple[int, int]] | None:
        """(port, rid) of each copy, in order; None if there is no such group."""
        if mgid not in self.groups:
            return None
        copies = []
        for handle in self.groups[mgid]:
            node = self.nodes[handle]
            copies += [(port, node.rid) for port in node.ports]
            for lag in node.lags:
                members = self.lags.get(lag, ())
                if members:
                    copies.append((members[LAG_HASH % len(members)], node.rid))
        return copies

    def _changed(self, *mgids: int | None) -> None:
        for mgid in mgids:
            if mgid is not None:
                for observer in self.observers:
                    observer(mgid)

    def _node(self, handle: int) -> Node:
        if handle not in self.nodes:
            raise _error("INVALID_L1_HANDLE", f"there is no multicast node {handle}")
        return self.nodes[handle]

    def _node_and_group(self, handle: int, mgid: int) -> tuple[Node, list[int]]:
        node = self._node(handle)
        if mgid not in self.groups:
            raise _error("INVALID_MGRP_HANDLE", f"there is no multicast group {mgid}")
        return node, self.groups[mgid]

    @staticmethod
    def _members(numbers: Iterable[int], limit: int, what: str) -> tuple[int, ...]:
        members = tuple(sorted(set(numbers)))
        if members and not 0 <= members[0] <= members[-1] < limit:
            raise _error("ERROR", f"a {what} must be below {limit}, not {members[-1]}")
        return members

    @locked
    def create_group(self, mgid: int) -> int:
        """Create an empty group (an existing one is unchanged); its handle is its id. BMv2 stores groups under the
        unsigned number but looks them up by the signed one: it accepts a negative id, but doesn't find the group again.
        """
        mgid &= 0xFFFFFFFF
        if mgid not in self.groups and len(self.groups) >= self.max_groups:
            raise _error("TABLE_FULL", f"there can't be more than {self.max_groups} multicast groups")
        self.groups.setdefault(mgid, [])
        self._changed(mgid)
        return mgid

    @locked
    def destroy_group(self, mgid: int) -> None:
        """Delete a group. As in BMv2, its nodes remain, and remain associated with it: they can be dissociated only
        once a group of that number exists again. A missing group is not an error."""
        self.groups.pop(mgid, None)
        self._changed(mgid)

    @locked
    def create_node(self, rid: int, ports: Iterable[int], lags: Iterable[int] = ()) -> int:
        """Create a node without a group; returns its handle."""
        if len(self.nodes) >= self.max_nodes:
            raise _error("TABLE_FULL", f"there can't be more than {self.max_nodes} multicast nodes")
        node = Node(rid & 0xFFFFFFFF, self._members(ports, MAX_PORTS, "port"), self._members(lags, MAX_PORTS, "LAG"))
        node.l2_handle = self._by_l2.add(node)
        return self.nodes.add(node)

    @locked
    def update_node(self, handle: int, ports: Iterable[int], lags: Iterable[int] = ()) -> None:
        node = self._node(handle)
        node.ports, node.lags = self._members(ports, MAX_PORTS, "port"), self._members(lags, MAX_PORTS, "LAG")
        self._changed(node.group)

    @locked
    def associate_node(self, mgid: int, handle: int) -> None:
        """Append a node to a group."""
        node, group = self._node_and_group(handle, mgid)
        if node.group is not None:
            raise _error("ERROR", f"multicast node {handle} is already in group {node.group}")
        group.append(handle)
        node.group = mgid
        self._changed(mgid)

    @locked
    def dissociate_node(self, mgid: int, handle: int) -> None:
        node, group = self._node_and_group(handle, mgid)
        if node.group != mgid:
            raise _error("ERROR", f"multicast node {handle} is not in group {mgid}")
        if handle in group:
            group.remove(handle)
        node.group = None
        self._changed(mgid)

    @locked
    def destroy_node(self, handle: int) -> None:
        """Delete a node and remove it from its group."""
        node = self._node(handle)
        if node.group is not None and handle in self.groups.get(node.group, ()):
            self.groups[node.group].remove(handle)
        self.nodes.release(handle)
        self._by_l2.release(node.l2_handle)
        self._changed(node.group)

    @locked
    def set_lag(self, lag: int, ports: Iterable[int]) -> None:
        if not 0 <= lag <= MAX_LAG:
            raise _error("ERROR", f"a LAG is at most {MAX_LAG}, not {lag}")
        self.lags[lag] = self._members(ports, MAX_PORTS, "port")
        self._changed(*{node.group for node in self.nodes.values() if lag in node.lags})

    @locked
    def describe(self) -> dict[str, list[dict[str, Any]]]:
        """The whole state, in the format of BMv2's bm_mc_get_entries."""
        return {
            "mgrps": [{"id": mgid, "l1_handles": list(nodes)} for mgid, nodes in sorted(self.groups.items())],
            "l1_handles": [
                {"handle": handle, "rid": node.rid, "l2_handle": node.l2_handle}
                for handle, node in sorted(self.nodes.items())
            ],
            "l2_handles": [
                {"handle": handle, "ports": list(node.ports), "lags": list(node.lags)}
                for handle, node in sorted(self._by_l2.items())
            ],
            "lags": [{"id": lag, "ports": list(ports)} for lag, ports in sorted(self.lags.items())],
        }

    @locked
    def restore(self, saved: dict[str, list[dict[str, Any]]]) -> None:
        """Replace the whole state by a result of `describe`."""
        members = {item["handle"]: (tuple(item["ports"]), tuple(item["lags"])) for item in saved["l2_handles"]}
        nodes = {
            item["handle"]: Node(item["rid"], *members[item["l2_handle"]], item["l2_handle"])
            for item in saved["l1_handles"]
        }
        before = set(self.groups)
        self.groups = {item["id"]: list(item["l1_handles"]) for item in saved["mgrps"]}
        for mgid, handles in self.groups.items():
            for handle in handles:
                nodes[handle].group = mgid
        self.lags = {item["id"]: tuple(item["ports"]) for item in saved["lags"]}
        self.nodes.restore(nodes)
        self._by_l2.restore({node.l2_handle: node for node in nodes.values()})
        self._changed(*before | set(self.groups))

    @locked
    def reset(self) -> None:
        before = set(self.groups)
        for part in (self.groups, self.nodes, self.lags, self._by_l2):
            part.clear()
        self._changed(*before)


@dataclass(frozen=True)
class Session:
    """Destination of clones: a port, a multicast group, or both."""

    port: int | None = None
    mgid: int | None = None


@dataclass
class Mirroring:
    """Mirroring sessions. `sessions`: id → Session. `observers` are called with the id of each changed session, under
    the lock."""

    lock: RLock
    sessions: dict[int, Session] = field(default_factory=dict)
    observers: list[Callable[[int], None]] = field(default_factory=list)

    def _changed(self, *sessions: int) -> None:
        for session in sessions:
            for observer in self.observers:
                observer(session)

    @locked
    def add(self, session: int, port: int | None = None, mgid: int | None = None) -> None:
        """Create or replace a session."""
        if not 0 <= session <= MAX_SESSION:
            problem = f"a mirroring session is at most {MAX_SESSION}, not {session}"
            raise ControlError("Mirroring", "SESSION_NOT_FOUND", problem)
        self.sessions[session] = Session(port, mgid)
        self._changed(session)

    @locked
    def delete(self, session: int) -> None:
        self.get(session)
        del self.sessions[session]
        self._changed(session)

    @locked
    def get(self, session: int) -> Session:
        if session not in self.sessions:
            raise ControlError("Mirroring", "SESSION_NOT_FOUND", f"there is no mirroring session {session}")
        return self.sessions[session]

    @locked
    def reset(self) -> None:
        before = list(self.sessions)
        self.sessions.clear()
        self._changed(*before)
