"""Reads Chakra execution traces. One written by switchml is read back as the original RankTrace; one with start times
becomes a RankTrace with the available information; one without is a workload (`emulator/traces/workload.py`).
"""

import ast
import json
import re
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from emulator.jobs.workload.graph import Collective
from emulator.traces.communication import collective_of, message_bytes
from emulator.traces.events import NONE, Group, Lane, LaneKind, RankTrace, What
from emulator.traces.readers import native
from emulator.traces.readers.chakra import chakra_pb2 as pb
from emulator.traces.readers.chakra.file import COLLECTIVE_TYPES, FLOATS, GROUPS, INTEGERS, attributes, read_messages
from emulator.traces.readers.chrome import ChromeFile, open_plain
from emulator.traces.readers.tables import Numbers, in_order, occurrences, table
from emulator.traces.workload import untimed
from switchml.errors import TraceError

COLLECTIVES: dict[int, Collective] = {
    **{number: collective for collective, number in COLLECTIVE_TYPES.items()},
    pb.GATHER: Collective.ALL_GATHER,
    pb.SCATTER: Collective.BROADCAST,
    pb.REDUCE_SCATTER_BLOCK: Collective.REDUCE_SCATTER,
}
JSON_KEY = b'"workload_graph"'
COMMUNICATION = (pb.COMM_COLL_NODE, pb.COMM_SEND_NODE, pb.COMM_RECV_NODE)


@dataclass(slots=True)
class Node:
    """A node, independent of the file's version."""

    id: int
    name: str
    type: int
    deps: tuple[int, ...]
    data_deps: tuple[int, ...]
    start_s: float
    duration_s: float
    attr: dict[str, Any]


@dataclass
class ChakraTrace:
    """Content of a file."""

    source: Path
    rank: int
    version: str
    about: dict[str, Any]
    nodes: list[Node] = field(default_factory=list)
    groups: dict[str, list[int]] = field(default_factory=dict)
    """Ranks of communicators by name; no ranks: all."""

    @property
    def is_ours(self) -> bool:
        """Whether switchml wrote the file, in which control dependencies are the order on a lane."""
        return "switchml.trace" in self.about


def load(path: Path, rank: int | None = None) -> ChakraTrace:
    """Load the file's nodes. The rank is taken from its name (`….7.et`, `rank-7…`), unless `rank` is given."""
    with open_plain(path) as file:
        is_json = JSON_KEY in file.read(4096)
    rank = _rank(path) if rank is None else rank
    trace = _load_json(path, rank) if is_json else _load_messages(path, rank)
    if not trace.nodes:
        raise TraceError(f"{path} has no nodes")
    return trace


def _load_messages(path: Path, rank: int) -> ChakraTrace:
    messages = read_messages(path)
    head = next(messages, None)
    if head is None:
        raise TraceError(f"{path} is empty")
    trace = ChakraTrace(path, rank, head.version, attributes(head))
    numbers = set()
    for message in messages:
        if message.id in numbers:
            raise TraceError(f"{path}: two nodes have the same number, {message.id}")
        numbers.add(message.id)
        node = Node(
            id=message.id,
            name=message.name,
            type=message.type,
            deps=(*message.ctrl_deps, *message.data_deps),
            data_deps=tuple(message.data_deps),
            start_s=message.start_time_micros * 1e-6,
            duration_s=message.duration_micros * 1e-6,
            attr=attributes(message),
        )
        if message.name == GROUPS:
            trace.groups |= _groups(message.inputs.values)
        trace.nodes.append(node)
    return trace


def _load_json(path: Path, rank: int) -> ChakraTrace:
    """Load Chakra's JSON, {"workload_graph": [...]}, with the names of its src/feeder/json_node.cpp."""
    trace = ChakraTrace(path, rank, "JSON", {})
    for row in chain.from_iterable(ChromeFile(path, array="workload_graph").batches()):
        try:
            control, data = (tuple(int(dep) for dep in row.get(key, ())) for key in ("ctrl_deps", "data_deps"))
            runtime_s = float(row.get("runtime", 0)) * 1e-6
            what = (int(row["Id"]), str(row["Name"]), int(row["NodeType"]))
            node = Node(*what, (*control, *data), data, 0.0, runtime_s, row)
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{path}: node {len(trace.nodes) + 1} is not as expected: {error!r}") from None
        trace.nodes.append(node)
    return trace


def _rank(path: Path) -> int:
    named = re.search(r"\.(\d+)\.(et|json)", path.name) or re.search(r"rank[-_]?(\d+)", path.name)
    if not named:
        raise TraceError(f"{path} does not say which rank it is; name it NAME.N.et, or give --rank N")
    return int(named[1])


def _groups(values: str) -> dict[str, list[int]]:
    """Parse the inputs of torch's process-group node: a list's text that contains a JSON text."""
    try:
        listed = ast.literal_eval(values)
        while isinstance(listed, list) and listed and isinstance(listed[0], str):
            listed = json.loads(listed[0])
        return {str(one["pg_name"]): [int(rank) for rank in one.get("ranks") or []] for one in listed}
    except (ValueError, SyntaxError, TypeError, KeyError):
        return {}


def communication(node: Node, ranks: int) -> tuple[Collective, float]:
    """Return the collective of a communication node, and its bytes as defined by `Collective`."""
    size = float(node.attr.get("comm_size", 0))
    if node.type != pb.COMM_COLL_NODE:
        return Collective.P2P, size
    kind = COLLECTIVES.get(int(node.attr.get("comm_type", -1))) or collective_of(
        re.sub(r".*[:(]|_?\(.*", "", node.name)
    )
    if not kind:
        raise TraceError(f"node {node.id} ({node.name}) is a collective of unknown type {node.attr.get('comm_type')}")
    return kind, message_bytes(kind, size, 0.0, ranks)


def read(path: Path, *, rank: int | None = None, salvage: bool = False) -> RankTrace:
    """Read the trace in `path`. Raises TraceError if it has no times."""
    trace = load(path, rank)
    if trace.is_ours:
        return _ours(trace)
    if not any(node.start_s > 0 for node in trace.nodes):
        raise untimed(path)
    return _timed(trace)


def _ours(trace: ChakraTrace) -> RankTrace:
    nodes = sorted((node for node in trace.nodes if "switchml.event" in node.attr), key=lambda node: node.id)
    head = native.read_head(str(trace.about["switchml.trace"]), trace.source)
    names = Numbers()
    columns = {"name": np.array([names[node.name] for node in nodes])}
    for attribute, of_nodes in (("switchml.event", INTEGERS), ("switchml.times", FLOATS)):
        rows = np.array([node.attr[attribute] for node in nodes]).reshape(-1, len(of_nodes))
        columns |= dict(zip(of_nodes, np.ascontiguousarray(rows.T), strict=True))
    event_of = {node.id: node.id - 1 for node in nodes}
    event_of |= {node.id: node.attr["switchml.of"] for node in trace.nodes if "switchml.of" in node.attr}
    causes = {(event_of[cause], node.id - 1) for node in nodes for cause in node.data_deps}
    pairs = np.array(sorted(causes), np.int32).reshape(-1, 2)
    head.names, steps = list(names), np.array(head.steps).reshape(-1, 2)
    return native.whole(head, trace.source, events=table(**columns), causes=pairs, steps=steps)


def _timed(trace: ChakraTrace) -> RankTrace:
    """Convert a trace by another writer: lanes are threads and streams."""
    nodes = [node for node in trace.nodes if node.type not in (pb.METADATA_NODE, pb.INVALID_NODE)]
    lanes, names = Numbers(), Numbers()
    lane_of = [lanes[_place(node)] for node in nodes]
    start_s, duration_s = np.array([(node.start_s, node.duration_s) for node in nodes]).T
    order = in_order(np.array(lane_of), start_s, duration_s)
    nodes, lane = [nodes[at] for at in order], np.array(lane_of)[order]
    world = tuple(sorted({rank for ranks in trace.groups.values() for rank in ranks} | {trace.rank}))
    groups = {name: Group(name, tuple(ranks) or world) for name, ranks in trace.groups.items()}
    rows = []
    for node in nodes:
        if node.type not in COMMUNICATION:
            rows.append((What.COMPUTE, Collective.NONE, 0.0, NONE, NONE))
            continue
        name = str(node.attr.get("pg_name", ""))
        members = groups.setdefault(name, Group(name, world))
        what, end = _SIDES[node.type]
        peer = int(node.attr.get(end, NONE)) if end else NONE
        rows.append((what, *communication(node, len(members.ranks)), list(groups).index(name), peer))
    whats, kinds, sizes, numbers, peers = zip(*rows, strict=True)
    sequence = np.where(np.array(numbers) == NONE, NONE, occurrences(zip(numbers, whats, peers, strict=True)))
    events = table(
        name=[names[node.name] for node in nodes],
        what=whats,
        lane=lane,
        start_s=start_s[order],
        duration_s=duration_s[order],
        collective=kinds,
        group=numbers,
        sequence=sequence,
        peer=peers,
        bytes=sizes,
    )
    place = {node.id: event for event, node in enumerate(nodes)}
    causes = {(place[dep], place[node.id]) for node in nodes for dep in node.deps if dep in place}
    between = [(a, b) for a, b in causes if lane[a] != lane[b]]
    return RankTrace(
        rank=trace.rank,
        world_size=len(world),
        host="",
        source=trace.source,
        format="chakra",
        epoch_s=0.0,
        names=list(names),
        lanes=[
            Lane(f"{'stream' if device else 'thread'} {at}", LaneKind.DEVICE if device else LaneKind.HOST)
            for device, at in lanes
        ],
        groups=list(groups.values()),
        events=events,
        causes=np.array(sorted(between), np.int32).reshape(-1, 2),
        steps=np.array([[0.0, float(events.end_s.max())]]),
        about={"chakra": trace.version},
    )


_SIDES: dict[int, tuple[What, str]] = {
    pb.COMM_COLL_NODE: (What.COLLECTIVE, ""),
    pb.COMM_SEND_NODE: (What.SEND, "comm_dst"),
    pb.COMM_RECV_NODE: (What.RECV, "comm_src"),
}
"""Kind of a communication node, and the attribute with its peer."""


def _place(node: Node) -> tuple[bool, Any]:
    """Return whether a node runs on a device, and the number of its thread or stream."""
    on_host = bool(node.attr.get("is_cpu_op", node.type not in COMMUNICATION))
    return not on_host, node.attr.get("tid" if on_host else "stream", 0)
