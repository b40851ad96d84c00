"""What a collective among some ranks of the world costs, by `emulator.cluster`. Rank r is accelerator r of the cluster,
nodes filled one after the other."""

from __future__ import annotations

from collections import Counter

from emulator.cluster.collectives import cost
from emulator.cluster.innetwork import Streaming
from emulator.cluster.topology import Place
from emulator.peers.settings import Settings


class Costs:
    """Of one world; each cost is worked out once."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._cluster = settings.machine()
        self._known: dict[tuple[str, float, tuple[int, ...]], float] = {}

    def seconds(self, operation: str, size_bytes: float, ranks: tuple[int, ...]) -> float:
        """`operation` is one of `emulator.cluster.collectives.OPERATIONS`, its size counted as there."""
        key = (operation, size_bytes, ranks)
        if key not in self._known:
            self._known[key] = self._cost_s(operation, size_bytes, self.place(ranks))
        return self._known[key]

    def place(self, ranks: tuple[int, ...]) -> Place:
        """Where a group's members sit."""
        nodes = Counter(rank // self._cluster.accelerators_per_node for rank in ranks)
        return Place(len(ranks), len(nodes), max(nodes.values()), max(nodes) - min(nodes) + 1)

    def _cost_s(self, operation: str, size_bytes: float, where: Place) -> float:
        settings = self._settings
        streaming = Streaming(loss=settings.loss, jobs=settings.jobs)
        return cost(
            self._cluster, operation, size_bytes, where, settings.network, settings.hierarchy, streaming
        ).seconds
