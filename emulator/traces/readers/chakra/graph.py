"""Chakra execution traces as a workload. Each host thread (`tid`) and stream of a rank runs one node at a time as nodes
become ready; compute, collectives, sends and receives have separate streams. A compute node has its duration, or is
costed by `num_ops` and `tensor_size`; communication is always costed by its bytes, as traced durations include waiting.
Sends do not block: successors of a send wait for its predecessors. Only data dependencies order nodes, as in ASTRA-sim
(extern/graph_frontend/chakra, et_feeder): control dependencies record the caller, and may form cycles. In files by
switchml they are the order on a lane.
"""

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

from emulator.jobs.workload.builder import GraphBuilder
from emulator.jobs.workload.graph import Collective, Kind, Order
from emulator.traces.events import one_a_rank
from emulator.traces.limits import check_ranks
from emulator.traces.readers.chakra import chakra_pb2 as pb
from emulator.traces.readers.chakra.chakra import COMMUNICATION, ChakraTrace, Node, communication, load
from emulator.traces.readers.chakra.file import INTEGERS
from emulator.traces.workload import Workload
from switchml.errors import TraceError

SHOWN, LONGEST_NAME = 4, 40
"""Maximum number of nodes listed in a sentence, and of characters of each."""
_STREAM_OF: dict[int, str] = {
    pb.COMM_COLL_NODE: "collectives",
    pb.COMM_SEND_NODE: "sends",
    pb.COMM_RECV_NODE: "receives",
}
_KINDS: dict[int, Kind] = {
    pb.COMM_COLL_NODE: Kind.COLLECTIVE,
    pb.COMM_SEND_NODE: Kind.SEND,
    pb.COMM_RECV_NODE: Kind.RECV,
}


def read_chakra(paths: list[Path]) -> Workload:
    """Read the workload from one file per rank. Ranks of a group without a file are assumed to do the same as the
    others."""
    return _Building(one_a_rank(map(load, paths))).workload()


class _Building:
    def __init__(self, traces: list[ChakraTrace]) -> None:
        self._traces = traces
        sizes = [int(node.attr["world_size"]) for trace in traces for node in trace.nodes if "world_size" in node.attr]
        named = [rank for trace in traces for ranks in trace.groups.values() for rank in ranks]
        world = max([*sizes, *(rank + 1 for rank in named), *(trace.rank + 1 for trace in traces)])
        self._world = check_ranks(traces[0].source.parent, world)
        self._all = tuple(range(self._world))
        self._builder = GraphBuilder("chakra")
        self._place = {trace.rank: self._builder.add_rank(device=trace.rank) for trace in traces}
        self._groups: dict[tuple[int, ...], int] = {}
        self._transfers: dict[tuple, int] = {}
        self._streams: dict[tuple[int, str], int] = {}
        self._counts: Counter[tuple] = Counter()
        self._sources = self._lost = self._controls = 0
        self._sizeless: list[str] = []
        self._timeless: list[str] = []

    def workload(self) -> Workload:
        first = 0
        for trace in self._traces:
            nodes = [node for node in trace.nodes if node.type != pb.INVALID_NODE]
            by_id = {node.id: node for node in nodes}
            number = {node.id: first + at for at, node in enumerate(nodes)}
            first += len(nodes)
            for node in nodes:
                if not trace.is_ours:
                    self._controls += len(set(node.deps) - set(node.data_deps))
                    node.deps = node.data_deps
            for node in nodes:
                after = [number[dep] for dep in sorted(_through_sends(node, by_id)) if dep in number]
                self._lost += sum(dep not in number for dep in node.deps)
                if node.type in COMMUNICATION and "comm_size" in node.attr:
                    op_type, transfer = self._exchange(trace, node, source=not after)
                    stream = self._stream(trace, _STREAM_OF[node.type], node.attr.get("stream"))
                    self._builder.add_op(stream, op_type, after=after, transfer=transfer)
                    continue
                if node.type in COMMUNICATION:
                    self._sizeless.append(_name(trace, node))
                elif _is_timeless(node) and not trace.is_ours:
                    self._timeless.append(_name(trace, node))
                on_host = bool(node.attr.get("is_cpu_op", node.type == pb.METADATA_NODE))
                lane = node.attr.get("tid" if on_host else "stream")
                stream = self._stream(trace, "host" if on_host else "compute", lane)
                self._builder.add_op(stream, self._compute(node), after=after)
        strides = {number: _stride(ranks) for ranks, number in self._groups.items()}
        return Workload(self._builder.build(), strides, self._world, self._assumptions())

    def _stream(self, trace: ChakraTrace, what: str, lane: object) -> int:
        """Return the stream of a rank for an activity."""
        key = (trace.rank, what if lane is None else f"{what} {lane}")
        if key not in self._streams:
            self._streams[key] = self._builder.add_stream(self._place[trace.rank], key[1], Order.READY)
        return self._streams[key]

    def _compute(self, node: Node) -> int:
        flops, size = float(node.attr.get("num_ops", 0)), float(node.attr.get("tensor_size", 0))
        if node.type in (pb.MEM_LOAD_NODE, pb.MEM_STORE_NODE):
            return self._builder.add_op_type(node.name, Kind.COPY, bytes=size)
        known = node.duration_s > 0 or not (flops or size)
        seconds = node.duration_s if known else math.nan
        return self._builder.add_op_type(node.name, flops=flops, bytes=size, seconds=seconds)

    def _exchange(self, trace: ChakraTrace, node: Node, source: bool) -> tuple[int, int]:
        """Return the op type and the transfer of a communication node."""
        self._sources += source
        if node.type == pb.COMM_COLL_NODE:
            ranks = tuple(trace.groups.get(str(node.attr.get("pg_name", "")), ())) or self._all
            about: tuple = (ranks,)
        else:
            ends = [int(node.attr.get("comm_src", trace.rank)), int(node.attr.get("comm_dst", trace.rank))]
            # A receive may omit its own end, which is the file's rank.
            ends[node.type == pb.COMM_RECV_NODE] = trace.rank
            ranks, about = tuple(sorted(set(ends))), (*ends, int(node.attr.get("comm_tag", 0)))
            if missing := [rank for rank in ranks if rank not in self._place]:
                raise TraceError(
                    f"{trace.source}: node {node.id} ({node.name}) exchanges with rank {missing[0]}: no trace"
                )
        key = (*about, _sequence(node, self._counts[trace.rank, about]))
        self._counts[trace.rank, about] += 1
        kind, size = communication(node, len(ranks))
        size = 0.0 if kind == Collective.BARRIER else size
        op_type = self._builder.add_op_type(node.name, _KINDS[node.type], collective=kind, bytes=size, is_source=source)
        if key not in self._transfers:
            self._transfers[key] = self._builder.add_transfers(op_type, self._group(ranks), 1)
        return op_type, self._transfers[key]

    def _group(self, ranks: tuple[int, ...]) -> int:
        if ranks not in self._groups:
            present = [self._place[rank] for rank in ranks if rank in self._place]
            self._groups[ranks] = self._builder.add_group(present, size=len(ranks))
        return self._groups[ranks]

    def _assumptions(self) -> list[str]:
        absent = max(0, self._world - len(self._traces))
        sentences = {
            f"{absent} of {self._world} ranks have no file: they do what the others do": absent,
            f"{_count(self._sizeless, 'communication node')} no comm_size, and counts as compute of its rank: "
            + _some(self._sizeless): len(self._sizeless),
            f"{_count(self._timeless, 'node')} neither a duration nor num_ops or tensor_size, and counts as empty: "
            + _some(self._timeless): len(self._timeless),
            f"{self._controls} control dependencies are left out: data dependencies order nodes, as in ASTRA-sim": (
                self._controls
            ),
            f"{self._lost} dependencies on nodes that are in no file are left out": self._lost,
            f"{self._sources} communication nodes wait for nothing, so they begin at once": self._sources,
        }
        return [sentence for sentence, count in sentences.items() if count]


def _is_timeless(node: Node) -> bool:
    """Return whether a compute or copy node has neither duration nor size."""
    if node.type in (pb.MEM_LOAD_NODE, pb.MEM_STORE_NODE):
        return not node.attr.get("tensor_size")
    sizes = node.attr.get("num_ops") or node.attr.get("tensor_size")
    return node.type == pb.COMP_NODE and not node.duration_s and not sizes


def _name(trace: ChakraTrace, node: Node) -> str:
    name = node.name if len(node.name) <= LONGEST_NAME else node.name[: LONGEST_NAME - 1] + "…"
    return f"{node.id} ({name}) of rank {trace.rank}"


def _count(nodes: list[str], what: str) -> str:
    return f"each of {len(nodes)} {what}s has" if len(nodes) > 1 else f"{len(nodes)} {what} has"


def _some(nodes: list[str]) -> str:
    return ", ".join(nodes[:SHOWN]) + (", …" if len(nodes) > SHOWN else "")


def _stride(ranks: tuple[int, ...]) -> int:
    """Return the distance between adjacent ranks; if they differ, the largest."""
    return max((after - before for before, after in pairwise(sorted(ranks))), default=1)


def _sequence(node: Node, counted: int) -> int:
    """Return a node's number among the communications of its group: an attribute in files by switchml, the order in
    others."""
    ours = node.attr.get("switchml.event")
    return int(ours[INTEGERS.index("sequence")]) if ours else counted


def _through_sends(node: Node, by_id: dict[int, Node]) -> set[int]:
    """Return the dependencies of a node; sends are replaced by their dependencies."""
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
