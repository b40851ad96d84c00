"""Where a rank of the rank program runs, and how its process gets there. The conversation with its parent is
host_agent/ranks.py's; what a rank does is up to its class: `reducing.ReducingRank` or `training.TrainingRank`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from emulator.networks.testbed.namespaces import enter
from host_agent.ranks import Rank, Report

GROUP_TIMEOUT = timedelta(seconds=300)
"""Of torch's process groups."""


@dataclass(frozen=True)
class RankPlace:
    """Which rank a process is, and where it runs. `namespace`: its host's, "" for the parent's own network.
    `interface`: the one that Gloo uses."""

    rank: int
    world_size: int
    namespace: str = ""
    interface: str = "lo"


class CallableRank:
    """A rank whose requests are functions of it, such as `operator.methodcaller("fill")`."""

    def answer(self, request: Callable[[Any], Any]) -> Any:
        """What the function returns."""
        return request(self)

    def leave(self) -> None:
        """Nothing to leave."""


def start_at(place: RankPlace, kind: Callable[[RankPlace], Rank], _report: Report) -> Rank:
    """In the process of a rank: enter its host's network namespace, and make what answers requests."""
    if place.namespace:
        enter(place.namespace)
    os.environ["GLOO_SOCKET_IFNAME"] = place.interface
    return kind(place)
