"""What the script did in one iteration, as a graph for the replay: for timelines, and as `timing.py`'s reference."""

from typing import Any

import numpy as np

from emulator.jobs.workload.builder import GraphBuilder
from emulator.jobs.workload.costs import Costs
from emulator.jobs.workload.graph import NO_TRANSFER, Collective, Graph, Kind

MOST_STEPS = 200_000
"""Recorded of one iteration at most; a script without an optimizer has but one."""
NOT_RECORDED = -1


class Program:
    """The script's steps: computing, starting a collective, waiting for some; MOST_STEPS at most."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []

    def compute(self, seconds: float) -> None:
        """The script computed."""
        if self.steps and self.steps[-1][0] == "compute":
            seconds += self.steps.pop()[1]
        if len(self.steps) < MOST_STEPS:
            self.steps.append(("compute", seconds))

    def call(self, line: int, ranks: tuple[int, ...], operation: str, size_bytes: float, seconds: float) -> int:
        """It started a collective on communicator `line`; returns the step's number. Numbers stay: only computing that
        follows computing is merged, and a call is in between."""
        if len(self.steps) >= MOST_STEPS:
            return NOT_RECORDED
        self.steps.append(("call", line, ranks, operation, size_bytes, seconds))
        return len(self.steps) - 1

    def wait(self, calls: list[int]) -> None:
        """It waited for the collectives of these steps."""
        if len(self.steps) < MOST_STEPS:
            self.steps.append(("wait", tuple(calls)))

    def graph(self, ranks: list[int], pace: np.ndarray) -> tuple[Graph, Costs]:
        """All `ranks` running it, each at its pace (over that which was measured). A collective's members are those of
        its group that are among them; its cost is that of the whole group. Others do the same in a group of their own,
        which is not here: they wait for nobody."""
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
