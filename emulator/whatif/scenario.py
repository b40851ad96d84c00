"""An iteration and what is assumed about it besides the trace: the network under it, and what computing loses to
communication. Changes of either pass it on.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from emulator.traces.joined import Joined
from emulator.whatif.contention import Contention
from emulator.whatif.network import Network, fit


@dataclass(frozen=True)
class Scenario(Joined):
    """A joined iteration with assumptions."""

    network: Network | None = None
    """None: as fitted to the iteration's own all-reduces."""
    contention: Contention | None = None
    """None: operators take what they took, whatever communication runs beside them."""


def assume(joined: Joined, **assumptions: object) -> Scenario:
    """The same iteration with these fields of `Scenario`."""
    if isinstance(joined, Scenario):
        return dataclasses.replace(joined, **assumptions)
    return Scenario(**{field.name: getattr(joined, field.name) for field in dataclasses.fields(joined)}, **assumptions)


def network_of(joined: Joined) -> Network:
    """What is assumed, else what fits the iteration."""
    return getattr(joined, "network", None) or fit(joined)


def contention_of(joined: Joined) -> Contention | None:
    """What is assumed."""
    return getattr(joined, "contention", None)


def with_network(joined: Joined, *, link_bps: float | None = None, per_host: int = 0) -> Scenario:
    """The network as fitted to the iteration, with what is known of it: the rate of each host's link, ranks on each
    host (0: as traced)."""
    return assume(joined, network=fit(joined, link_bps, per_host))
