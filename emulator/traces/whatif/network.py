"""The network model fitted to a trace's all-reduces. What a transfer took beyond the model it keeps."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from emulator.traces import repeated_rounds
from emulator.traces.joined import Joined
from emulator.traces.network import Network, TransferCost
from emulator.traces.whatif import transfers
from switchml.errors import ConfigError

OF_BACKEND = {"switchml": "switchml"}
"""What a backend's all-reduce is; "ring" for the others."""
TOO_MUCH = 2.0
"""More than so many times a link's rate can't be noise. (Some is usual: early ranks begin before the last comes.)"""


def fit(joined: Joined | Sequence[Joined], link_bps: float | None = None, per_host: int = 0) -> Network:
    """To the trace's all-reduces; of several iterations the median. `link_bps`: of each host's link, if known; else the
    whole per-byte cost is the link's. `per_host`: ranks on a host; 0: as traced. Raises GraphError without an
    all-reduce, ConfigError for links slower than what was measured."""
    several = [joined] if isinstance(joined, Joined) else list(joined)
    joined = several[0]
    backend = next((trace.backend for trace in joined.traces if trace.backend), "gloo")
    algorithm = OF_BACKEND.get(backend, "ring")
    ranks = world_size(joined)
    if not per_host:
        hosts = {trace.host or f"rank {trace.rank}" for trace in joined.traces}
        per_host = max(1, len(joined.traces) // len(hosts)) if link_bps is None and len(hosts) > 1 else 1
    if per_host >= ranks:
        per_host = 1  # whatever joins the ranks of a single host is its network here
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
    """Of each number by itself: an iteration in which something else held up a transfer is no measure of it."""
    fixed_s = float(np.median([one.fixed_s for one in fits]))
    per_byte_s = float(np.median([1.0 / one.bytes_per_s for one in fits]))
    return TransferCost(fixed_s, 1.0 / per_byte_s, fits[0].assumed)


def world_size(joined: Joined) -> int:
    """Ranks of the job, traced or not."""
    return max(round(float(joined.graph.ranks.weight.sum())), 1)


def network_of(joined: Joined) -> Network:
    """What is assumed, else what fits the iteration."""
    return joined.network or fit(joined)


def with_network(joined: Joined, *, link_bps: float | None = None, per_host: int = 0) -> Joined:
    """The network fitted to the iteration, with what is known: each host's link rate, and ranks (0: as traced)."""
    return dataclasses.replace(joined, network=fit(joined, link_bps, per_host))
