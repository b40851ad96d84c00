"""Chakra execution traces as a workload: a rank does one node at a time on each of its host threads (`tid`) and streams
(`stream`), where computing, collectives, sends and receives are apart, in the order in which nodes become ready. A
compute node has its duration, or costs what `num_ops` and `tensor_size` do; communication always costs what its bytes
do, because its traced duration includes waiting. A send does not block: what the trace puts after it comes after what
the send itself waits for.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from emulator.traces.readers.chakra import chakra_pb2 as pb
from emulator.traces.readers.chakra.chakra import COMMUNICATION, ChakraTrace, Node, communication, load
from emulator.traces.readers.chakra.file import INTEGERS
from emulator.traces.workload import Workload
from emulator.workload.builder import GraphBuilder
from emulator.workload.graph import Collective, Kind, Order
from switchml.errors import TraceError

_STREAM_OF = {pb.COMM_COLL_NODE: "collectives", pb.COMM_SEND_NODE: "sends", pb.COMM_RECV_NODE: "receives"}
_KINDS = {pb.COMM_COLL_NODE: Kind.COLLECTIVE, pb.COMM_SEND_NODE: Kind.SEND, pb.COMM_RECV_NODE: Kind.RECV}


def read_chakra(paths: list[Path]) -> Workload:
    """The workload of one file a rank. Ranks of a group that have no file are taken to do what the others do."""
    traces = sorted((load(path) for path in paths), key=lambda trace: trace.rank)
    for one, other in zip(traces, traces[1:], strict=False):
        if one.rank == other.rank:
            raise TraceError(f"{one.path} and {other.path} are both of rank {one.rank}; one trace a rank is expected")
    return _Building(traces).workload()


class _Building:
    def __init__(self, traces: list[ChakraTrace]) -> None:
        self._traces = traces
        sizes = [int(node.attr["world_size"]) for trace in traces for node in trace.nodes if "world_size" in node.attr]
        named = [rank for trace in traces for ranks in trace.groups.values() for rank in ranks]
        self._world = max([*sizes, *(rank + 1 for rank in named), *(trace.rank + 1 for trace in traces)])
        self._builder = GraphBuilder("chakra")
        self._place = {trace.rank: self._builder.add_rank(device=trace.rank) for trace in traces}
        self._groups: dict[tuple[int, ...], int] = {}
        self._members: dict[int, tuple[int, ...]] = {}
        self._transfers: dict[tuple, int] = {}
        self._sources = 0
        self._streams: dict[tuple[str, object], int] = {}
        self._lost = 0
        self._sizeless = 0

    def workload(self) -> Workload:
        op_of: dict[tuple[int, int], int] = {}
        counts: Counter[tuple] = Counter()
        for trace in self._traces:
            self._streams = {}
            nodes = [node for node in trace.nodes if node.type != pb.INVALID_NODE]
            by_id = {node.id: node for node in nodes}
            number = {node.id: len(op_of) + at for at, node in enumerate(nodes)}
            for node in nodes:
                after = [number[dep] for dep in sorted(_through_sends(node, by_id)) if dep in number]
                self._lost += sum(dep not in number for dep in node.deps)
                if node.type in COMMUNICATION and "comm_size" in node.attr:
                    work, transfer = self._exchange(trace, node, counts, source=not after)
                    stream = self._stream(trace, _STREAM_OF[node.type], node.attr.get("stream"))
                    op = self._builder.add_op(stream, work, after=after, transfer=transfer)
                else:
                    self._sizeless += node.type in COMMUNICATION
                    on_host = bool(node.attr.get("is_cpu_op", node.type == pb.METADATA_NODE))
                    lane = node.attr.get("tid" if on_host else "stream")
                    stream = self._stream(trace, "host" if on_host else "compute", lane)
                    op = self._builder.add_op(stream, self._compute(node), after=after)
                op_of[trace.rank, node.id] = op
        return Workload(self._builder.build(), self._strides(), self._world, self._assumptions())

    def _stream(self, trace: ChakraTrace, what: str, lane: object) -> int:
        """The stream of the rank at hand for what is done there."""
        if (what, lane) not in self._streams:
            name = what if lane is None else f"{what} {lane}"
            self._streams[what, lane] = self._builder.add_stream(self._place[trace.rank], name, Order.READY)
        return self._streams[what, lane]

    def _compute(self, node: Node) -> int:
        if node.type in (pb.MEM_LOAD_NODE, pb.MEM_STORE_NODE):
            return self._builder.add_work(node.name, Kind.COPY, bytes=float(node.attr.get("tensor_size", 0)))
        flops, size = float(node.attr.get("num_ops", 0)), float(node.attr.get("tensor_size", 0))
        known = node.duration_s > 0 or not (flops or size)
        seconds = node.duration_s if known else math.nan
        return self._builder.add_work(node.name, flops=flops, bytes=size, seconds=seconds)

    def _exchange(self, trace: ChakraTrace, node: Node, counts: Counter, source: bool) -> tuple[int, int]:
        """The work and the transfer of a communication node."""
        self._sources += source
        if node.type == pb.COMM_COLL_NODE:
            members = trace.groups.get(str(node.attr.get("pg_name", "")))
            ranks = tuple(members or range(self._world))
            key: tuple = (ranks, _sequence(node, counts[trace.rank, ranks]))
            counts[trace.rank, ranks] += 1
        else:
            ends = [int(node.attr.get("comm_src", trace.rank)), int(node.attr.get("comm_dst", trace.rank))]
            # What a receive does not say about its own end, its file does.
            ends[node.type == pb.COMM_RECV_NODE] = trace.rank
            ranks, tag = tuple(sorted(set(ends))), int(node.attr.get("comm_tag", 0))
            side = (trace.rank, *ends, tag)
            key = (*ends, tag, _sequence(node, counts[side]))
            counts[side] += 1
            if missing := [rank for rank in ranks if rank not in self._place]:
                raise TraceError(
                    f"{trace.path}: node {node.id} ({node.name}) exchanges with rank {missing[0]}: no trace"
                )
        kind, size = communication(node, len(ranks))
        work = self._builder.add_work(
            node.name, _KINDS[node.type], collective=kind, bytes=0.0 if kind == Collective.BARRIER else size,
            is_source=source,
        )  # fmt: skip
        if key not in self._transfers:
            self._transfers[key] = self._builder.add_transfers(work, self._group(ranks), 1)
        return work, self._transfers[key]

    def _group(self, ranks: tuple[int, ...]) -> int:
        if ranks not in self._groups:
            present = [self._place[rank] for rank in ranks if rank in self._place]
            number = self._builder.add_group(present, size=len(ranks))
            self._groups[ranks], self._members[number] = number, ranks
        return self._groups[ranks]

    def _strides(self) -> dict[int, int]:
        """Between neighbours, where they are not all the same the widest."""
        return {
            group: max((b - a for a, b in zip(sorted(ranks), sorted(ranks)[1:], strict=False)), default=1)
            for group, ranks in self._members.items()
        }

    def _assumptions(self) -> list[str]:
        assumptions = []
        if (absent := self._world - len(self._traces)) > 0:
            assumptions.append(f"{absent} of {self._world} ranks have no file: they do what the others do")
        if self._sizeless:
            assumptions.append(
                f"{self._sizeless} communication nodes have no size: they count as compute of their rank"
            )
        if self._lost:
            assumptions.append(f"{self._lost} dependencies on nodes that are in no file are left out")
        if self._sources:
            assumptions.append(f"{self._sources} communication nodes wait for nothing, so they begin at once")
        return assumptions


def _sequence(node: Node, counted: int) -> int:
    """A node's number among the communications of its group: in our files an attribute, in others the order."""
    ours = node.attr.get("switchml.event")
    return int(ours[INTEGERS.index("sequence")]) if ours else counted


def _through_sends(node: Node, by_id: dict[int, Node]) -> set[int]:
    """What a node waits for; in place of sends, what these wait for."""
    waits_for, seen, open_deps = set(), set(), list(node.deps)
    while open_deps:
        dep = open_deps.pop()
        sender = by_id.get(dep)
        if sender is None or sender.type != pb.COMM_SEND_NODE:
            waits_for.add(dep)
        elif dep not in seen:
            seen.add(dep)
            open_deps.extend(sender.deps)
    return waits_for
