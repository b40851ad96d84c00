"""The packet replication engine: the copies of a multicast group (BMv2's simple_pre_lag), and mirroring sessions.

A group lists nodes in the order in which they were associated; a node has a replication id and the ports and LAGs that
it copies to. Copies come node by node, ports ascending, then one port of each LAG.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import RLock

from emulator.p4switch.state.handles import Handles, locked
from switchml.errors import ControlError

MAX_PORTS = 512
"""Ports and LAG members are below this."""
MAX_LAGS = 256
LAG_HASH = 0xFF
"""BMv2's constant in place of a hash that chooses a LAG's member."""
MAX_SESSION = 32767
"""The highest mirroring session."""


def _error(code: str, message: str) -> ControlError:
    return ControlError("Mc", code, message)


@dataclass
class Node:
    """`ports` and `lags` ascend; `group`: what it is associated with."""

    rid: int
    ports: tuple[int, ...]
    lags: tuple[int, ...]
    l2_handle: int
    group: int | None = None


@dataclass
class Replication:
    """`groups`: mgid → handles of nodes; `nodes`: handle → Node; `lags`: index → ports; `version` grows with
    each change."""

    lock: RLock
    max_groups: int = 4096
    max_nodes: int = 4096
    groups: dict[int, list[int]] = field(default_factory=dict)
    nodes: dict[int, Node] = field(default_factory=dict)
    lags: dict[int, tuple[int, ...]] = field(default_factory=dict)
    version: int = 0
    _handles: Handles = field(default_factory=Handles)
    _l2_handles: Handles = field(default_factory=Handles)

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

    def _group(self, mgid: int) -> list[int]:
        if mgid not in self.groups:
            raise _error("INVALID_MGRP_HANDLE", f"there is no multicast group {mgid}")
        return self.groups[mgid]

    def _node(self, handle: int) -> Node:
        if handle not in self.nodes:
            raise _error("INVALID_L1_HANDLE", f"there is no multicast node {handle}")
        return self.nodes[handle]

    @staticmethod
    def _members(numbers: Iterable[int], limit: int, what: str) -> tuple[int, ...]:
        members = tuple(sorted(set(numbers)))
        if members and not 0 <= members[0] <= members[-1] < limit:
            raise _error("ERROR", f"a {what} must be below {limit}, not {members[-1]}")
        return members

    @locked
    def create_group(self, mgid: int) -> int:
        """A new, empty group (one that exists stays as it is); its handle is its id."""
        if mgid not in self.groups and len(self.groups) >= self.max_groups:
            raise _error("TABLE_FULL", f"there can't be more than {self.max_groups} multicast groups")
        self.groups.setdefault(mgid, [])
        self.version += 1
        return mgid

    @locked
    def destroy_group(self, mgid: int) -> None:
        """Nodes stay, and stay associated with it, as in BMv2: they can be dissociated only once a group of that number
        exists anew. A group that does not exist is no error."""
        self.groups.pop(mgid, None)
        self.version += 1

    @locked
    def create_node(self, rid: int, ports: Iterable[int], lags: Iterable[int] = ()) -> int:
        """A new node, associated with nothing; returns its handle."""
        if len(self.nodes) >= self.max_nodes:
            raise _error("TABLE_FULL", f"there can't be more than {self.max_nodes} multicast nodes")
        members = self._members(ports, MAX_PORTS, "port"), self._members(lags, MAX_LAGS, "LAG")
        handle = self._handles.take()
        self.nodes[handle] = Node(rid, *members, self._l2_handles.take())
        self.version += 1
        return handle

    @locked
    def update_node(self, handle: int, ports: Iterable[int], lags: Iterable[int] = ()) -> None:
        """Replace a node's ports and LAGs."""
        node = self._node(handle)
        node.ports, node.lags = self._members(ports, MAX_PORTS, "port"), self._members(lags, MAX_LAGS, "LAG")
        self.version += 1

    @locked
    def associate_node(self, mgid: int, handle: int) -> None:
        """Append a node to a group."""
        node = self._node(handle)
        group = self._group(mgid)
        if node.group is not None:
            raise _error("ERROR", f"multicast node {handle} is already in group {node.group}")
        group.append(handle)
        node.group = mgid
        self.version += 1

    @locked
    def dissociate_node(self, mgid: int, handle: int) -> None:
        """Remove a node from a group."""
        node = self._node(handle)
        group = self._group(mgid)
        if node.group != mgid:
            raise _error("ERROR", f"multicast node {handle} is not in group {mgid}")
        if handle in group:
            group.remove(handle)
        node.group = None
        self.version += 1

    @locked
    def destroy_node(self, handle: int) -> None:
        """Remove a node, also from its group."""
        node = self._node(handle)
        group = self.groups.get(node.group, [])
        if handle in group:
            group.remove(handle)
        del self.nodes[handle]
        self._handles.release(handle)
        self._l2_handles.release(node.l2_handle)
        self.version += 1

    @locked
    def set_lag(self, lag: int, ports: Iterable[int]) -> None:
        """Set the ports of a LAG."""
        if not 0 <= lag < MAX_LAGS:
            raise _error("ERROR", f"a LAG must be below {MAX_LAGS}, not {lag}")
        self.lags[lag] = self._members(ports, MAX_PORTS, "port")
        self.version += 1

    @locked
    def describe(self) -> dict:
        """The whole state, in the form of BMv2's bm_mc_get_entries."""
        nodes = sorted(self.nodes.items())
        return {
            "mgrps": [{"id": mgid, "l1_handles": list(nodes)} for mgid, nodes in sorted(self.groups.items())],
            "l1_handles": [{"handle": h, "rid": node.rid, "l2_handle": node.l2_handle} for h, node in nodes],
            "l2_handles": [
                {"handle": node.l2_handle, "ports": list(node.ports), "lags": list(node.lags)}
                for _, node in sorted(nodes, key=lambda item: item[1].l2_handle)
            ],
            "lags": [{"id": lag, "ports": list(ports)} for lag, ports in sorted(self.lags.items())],
        }

    @locked
    def restore(self, saved: dict) -> None:
        """Replace all by the result of `describe`."""
        self.reset()
        members = {item["handle"]: (tuple(item["ports"]), tuple(item["lags"])) for item in saved["l2_handles"]}
        for item in saved["l1_handles"]:
            self.nodes[item["handle"]] = Node(item["rid"], *members[item["l2_handle"]], item["l2_handle"])
        for item in saved["mgrps"]:
            self.groups[item["id"]] = list(item["l1_handles"])
            for handle in item["l1_handles"]:
                self.nodes[handle].group = item["id"]
        self.lags = {item["id"]: tuple(item["ports"]) for item in saved["lags"]}
        self._handles.restore(self.nodes)
        self._l2_handles.restore(members)

    @locked
    def reset(self) -> None:
        """Remove all groups, nodes and LAGs."""
        self.groups.clear()
        self.nodes.clear()
        self.lags.clear()
        self._handles.clear()
        self._l2_handles.clear()
        self.version += 1


@dataclass(frozen=True)
class Session:
    """Where a clone goes: a port, a multicast group, or both."""

    port: int | None = None
    mgid: int | None = None


class Mirroring:
    """`sessions`: id → Session."""

    def __init__(self, lock: RLock) -> None:
        self.lock = lock
        self.sessions: dict[int, Session] = {}
        self.version = 0

    def _check(self, session: int) -> None:
        if session not in self.sessions:
            raise ControlError("Mirroring", "SESSION_NOT_FOUND", f"there is no mirroring session {session}")

    @locked
    def add(self, session: int, port: int | None = None, mgid: int | None = None) -> None:
        """Set or replace a session."""
        if not 0 <= session <= MAX_SESSION:
            raise ControlError(
                "Mirroring", "SESSION_NOT_FOUND", f"a mirroring session is at most {MAX_SESSION}, not {session}"
            )
        self.sessions[session] = Session(port, mgid)
        self.version += 1

    @locked
    def delete(self, session: int) -> None:
        """Remove a session."""
        self._check(session)
        del self.sessions[session]
        self.version += 1

    @locked
    def get(self, session: int) -> Session:
        """A session's target."""
        self._check(session)
        return self.sessions[session]

    @locked
    def reset(self) -> None:
        """Remove all sessions."""
        self.sessions.clear()
        self.version += 1
