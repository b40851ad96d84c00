"""What a collective among some ranks of the world costs, by `emulator.cluster`. Rank r is accelerator r of the cluster,
nodes filled one after the other."""

from __future__ import annotations

from collections import Counter

from emulator.cluster.collectives import price
from emulator.cluster.innetwork import Streaming, aggregate
from emulator.cluster.topology import Place
from emulator.peers.settings import Settings


class Prices:
    """Of one world; each price is worked out once."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._cluster = settings.machine()
        self._known: dict[tuple[str, float, tuple[int, ...]], float] = {}

    def seconds(self, operation: str, size_bytes: float, ranks: tuple[int, ...]) -> float:
        """`operation` is one of `emulator.cluster.collectives.OPERATIONS`, its size counted as there."""
        key = (operation, size_bytes, ranks)
        if key not in self._known:
            self._known[key] = self._price(operation, size_bytes, self.place(ranks))
        return self._known[key]

    def place(self, ranks: tuple[int, ...]) -> Place:
        """Where a group's members sit."""
        nodes = Counter(rank // self._cluster.accelerators_per_node for rank in ranks)
        return Place(len(ranks), len(nodes), max(nodes.values()), max(nodes) - min(nodes) + 1)

    def _price(self, operation: str, size_bytes: float, where: Place) -> float:
        settings = self._settings
        if operation == "all_reduce" and settings.network == "switchml" and where.ranks > 1:
            how = Streaming(loss=settings.loss, jobs=settings.jobs)
            return aggregate(self._cluster, size_bytes, where, how).seconds
        return price(self._cluster, operation, size_bytes, where, settings.network).seconds
