"""The script's activity in one iteration, as a graph for the replay: for timelines, and as the reference of
`timing.py`."""

from typing import Any

import numpy as np

from emulator.jobs.workload.builder import GraphBuilder
from emulator.jobs.workload.costs import Costs
from emulator.jobs.workload.graph import NO_TRANSFER, Collective, Graph, Kind

MAX_STEPS = 200_000
"""Maximum number of steps recorded per iteration; a script without an optimizer has a single iteration."""
NOT_RECORDED = -1


class Program:
    """The script's steps: compute, start of a collective, wait for collectives; at most MAX_STEPS."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []

    def compute(self, seconds: float) -> None:
        """Record compute time."""
        if self.steps and self.steps[-1][0] == "compute":
            seconds += self.steps.pop()[1]
        if len(self.steps) < MAX_STEPS:
            self.steps.append(("compute", seconds))

    def call(self, line: int, ranks: tuple[int, ...], operation: str, size_bytes: float, seconds: float) -> int:
        """Record the start of a collective on communicator `line`; return the step's number. Numbers are stable: only
        consecutive compute steps are merged."""
        if len(self.steps) >= MAX_STEPS:
            return NOT_RECORDED
        self.steps.append(("call", line, ranks, operation, size_bytes, seconds))
        return len(self.steps) - 1

    def wait(self, calls: list[int]) -> None:
        """Record a wait for the collectives of these steps."""
        if len(self.steps) < MAX_STEPS:
            self.steps.append(("wait", tuple(calls)))

    def graph(self, ranks: list[int], pace: np.ndarray) -> tuple[Graph, Costs]:
        """Return the graph of `ranks`, each running the steps at its pace relative to the measured one. A collective's
        members are those of its group among `ranks`; its cost is that of the whole group. The other ranks' equivalent
        groups are not part of the graph and not waited for."""
        builder = GraphBuilder("emulated world")
        for rank in ranks:
            builder.add_rank(device=rank)
        place = {rank: number for number, rank in enumerate(ranks)}
        streams: dict[tuple[int, int], int] = {}
        compute = [builder.add_stream(number, "compute") for number in range(len(ranks))]
        groups: dict[tuple[int, ...], int] = {}
        transfers: dict[int, int] = {}
        op_types: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            if step[0] == "call":
                _, line, members, operation, size_bytes, seconds = step
                inside = [place[rank] for rank in members if rank in place]
                if members not in groups:
                    groups[members] = builder.add_group(inside, name=_name(members), size=len(members))
                op_types[number] = builder.add_op_type(
                    operation.replace("_", "-"),
                    Kind.COLLECTIVE,
                    collective=Collective[operation.upper()],
                    bytes=size_bytes,
                    seconds=seconds,
                    is_source=True,
                )
                transfers[number] = builder.add_transfers(op_types[number], groups[members])
        for rank, number in place.items():
            done: dict[int, int] = {}
            before: list[int] = []
            for index, step in enumerate(self.steps):
                if step[0] == "compute":
                    op_type = builder.add_op_type("script", seconds=step[1] * float(pace[number]))
                    before = [builder.add_op(compute[number], op_type, after=before)]
                elif step[0] == "wait":
                    before = [*before, *(done[call] for call in step[1] if call in done)]
                else:
                    key = (number, step[1])
                    if key not in streams:
                        streams[key] = builder.add_stream(number, f"communicator {step[1]}")
                    transfer = transfers[index] if rank in step[2] else NO_TRANSFER
                    done[index] = builder.add_op(streams[key], op_types[index], after=before, transfer=transfer)
        graph = builder.build()
        return graph, Costs.of(graph, graph.op_types.seconds)


def _name(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{len(ranks)} ranks, {ranks[0]} to {ranks[-1]}"
