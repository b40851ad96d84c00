"""Fits the network model to a trace's all-reduces. The excess of a transfer's time over the model is kept."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from emulator.traces import repeated_rounds
from emulator.traces.joined import Joined
from emulator.traces.network import Network, TransferCost
from emulator.traces.whatif import transfers
from switchml.errors import ConfigError

OF_BACKEND = {"switchml": "switchml"}
"""Backend → all-reduce algorithm; "ring" for others."""
TOO_MUCH = 2.0
"""A rate above this multiple of a link's can't be noise. (Some excess is usual: early ranks begin before the last
arrives.)"""


def fit(joined: Joined | Sequence[Joined], link_bps: float | None = None, per_host: int = 0) -> Network:
    """Fit the network to the trace's all-reduces; for several iterations, the median. `link_bps`: bandwidth of each
    host's link, if known; else the whole per-byte cost is attributed to the link. `per_host`: ranks per host; 0: as
    traced. Raises GraphError without an all-reduce, ConfigError for links slower than measured."""
    several = [joined] if isinstance(joined, Joined) else list(joined)
    joined = several[0]
    backend = next((trace.backend for trace in joined.traces if trace.backend), "gloo")
    algorithm = OF_BACKEND.get(backend, "ring")
    ranks = world_size(joined)
    if not per_host:
        hosts = {trace.host or f"rank {trace.rank}" for trace in joined.traces}
        per_host = max(1, len(joined.traces) // len(hosts)) if link_bps is None and len(hosts) > 1 else 1
    if per_host >= ranks:
        per_host = 1  # the interconnect of a single host's ranks is the network here
    model = Network(
        algorithm,
        link_bytes_per_s=1.0,
        latency_s=0.0,
        per_host=per_host,
        hierarchy=joined.traces[0].about.get("hierarchy", "none") if algorithm == "switchml" else "auto",
        traced=algorithm,
        repeat_factor=repeated_rounds.times_usual(joined.traces),
    )
    volume = model.volume(ranks)
    steps, _ = dataclasses.replace(model, link_bytes_per_s=1e30, latency_s=1.0).line(ranks)
    most_bytes_per_s = link_bps / 8 / volume if link_bps and volume else np.inf
    fitted = _median([transfers.fit(one, most_bytes_per_s=most_bytes_per_s) for one in several])
    latency_s = fitted.fixed_s / max(1.0, steps)
    assumptions: tuple[str, ...] = (fitted.assumed,) if fitted.assumed else ()
    if link_bps is None:
        assumptions += ("the whole per-byte cost is attributed to the link; say what links carry",)
        return dataclasses.replace(
            model, link_bytes_per_s=volume * fitted.bytes_per_s, latency_s=latency_s, assumptions=assumptions
        )
    used_bps = 8 * volume * float(np.median([transfers.used_bytes_per_s(one) for one in several]))
    if used_bps > link_bps * TOO_MUCH:
        raise ConfigError(
            f"the trace's all-reduces moved {used_bps / 1e6:.0f} Mbit/s over each link, which should carry "
            f"{link_bps / 1e6:g} Mbit/s: was it traced on that network?"
        )
    return dataclasses.replace(
        model,
        link_bytes_per_s=link_bps / 8,
        latency_s=latency_s,
        host_s_per_byte=max(0.0, 1.0 / fitted.bytes_per_s - volume / (link_bps / 8)),
        assumptions=assumptions,
    )


def _median(fits: list[TransferCost]) -> TransferCost:
    """Return the median of each parameter, which is robust to iterations with disturbed transfers."""
    fixed_s = float(np.median([one.fixed_s for one in fits]))
    per_byte_s = float(np.median([1.0 / one.bytes_per_s for one in fits]))
    return TransferCost(fixed_s, 1.0 / per_byte_s, fits[0].assumed)


def world_size(joined: Joined) -> int:
    """Return the number of ranks of the job, traced or not."""
    return max(round(float(joined.graph.ranks.weight.sum())), 1)


def network_of(joined: Joined) -> Network:
    """Return the assumed network, else one fitted to the iteration."""
    return joined.network or fit(joined)


def with_network(joined: Joined, *, link_bps: float | None = None, per_host: int = 0) -> Joined:
    """Fit the network to the iteration with known parameters: each host's link rate, and ranks per host (0: as
    traced)."""
    return dataclasses.replace(joined, network=fit(joined, link_bps, per_host))
