"""Placement and start of a benchmark's rank processes. The request protocol with the parent is host_agent/ranks.py's; a
rank's behavior depends on its class: `reducing.ReducingRank` or `training.TrainingRank`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from emulator.networks.testbed.namespaces import enter
from host_agent.ranks import Rank, Report

GROUP_TIMEOUT = timedelta(seconds=300)
"""Timeout of torch's process groups."""


@dataclass(frozen=True)
class RankPlace:
    """A process's rank and network. `namespace`: its host's network namespace, "" for the parent's network.
    `interface`: the network interface that Gloo uses."""

    rank: int
    world_size: int
    namespace: str = ""
    interface: str = "lo"


class CallableRank:
    """A rank whose requests are functions called with the rank itself, such as `operator.methodcaller("fill")`."""

    def answer(self, request: Callable[[Any], Any]) -> Any:
        """Call the request with this rank and return its result."""
        return request(self)

    def leave(self) -> None:
        """Nothing to clean up."""


def start_at(place: RankPlace, kind: Callable[[RankPlace], Rank], _report: Report) -> Rank:
    """Runs in the process of a rank: enter its host's network namespace, and create the object
    that answers requests."""
    if place.namespace:
        enter(place.namespace)
    os.environ["GLOO_SOCKET_IFNAME"] = place.interface
    return kind(place)
