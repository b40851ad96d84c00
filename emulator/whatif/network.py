"""What communication would cost on another network: a model of few numbers, fitted to a trace's own all-reduces, and
changed from there. A meeting keeps what it took beyond the model in the trace, so an unchanged network changes nothing.

What a collective costs on it, `emulator.cluster.collectives` says: of S bytes
`steps · latency_s + S · (volume / link_bytes_per_s + host_s_per_byte)`, with steps and volume by algorithm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from emulator.cluster.cluster import Cluster, Interconnect, measured
from emulator.cluster.collectives import check_all_reduce, cost
from emulator.cluster.topology import place
from emulator.traces.joined import Joined
from emulator.whatif import repeated_rounds as again
from emulator.whatif import transfers
from emulator.whatif.editing import reordered, with_meeting_seconds
from emulator.workload.graph import NO_MEETING, Collective
from switchml.errors import ConfigError, GraphError

OF_BACKEND = {"switchml": "switchml"}
"""What a backend's all-reduce is; "ring" for the others."""
TOO_MUCH = 2.0
"""More than so many times what links are said to carry can't be noise. (Some is usual: ranks that come early have begun
before the last one comes, from when an all-reduce counts.)"""
LEAST_LEFT = 0.05
"""Of what a meeting took, at least this is left when its transfer is made faster."""

LARGE_BYTES = float(1 << 30)
"""From this size on, costs grow in proportion to bytes."""


@dataclass(frozen=True)
class Network:
    """What joins the ranks."""

    algorithm: str
    """Of all-reduces, one of `emulator.cluster.algorithms.ALGORITHMS`."""
    link_bytes_per_s: float
    """Of each host's link, each way."""
    latency_s: float
    """Of one step of a collective: a message, and whoever must wake up for it."""
    host_s_per_byte: float = 0.0
    """What a byte of the buffer takes besides its way over links: copies, sums."""
    per_host: int = 1
    """Ranks that share a link."""
    hierarchy: str = "auto"
    """Who speaks to the network in all-reduces, one of `emulator.cluster.algorithms.HIERARCHIES`."""
    traced: str = ""
    """The algorithm that it was fitted to: what its rounds that went again took is in the other numbers."""
    again_times: float | None = None
    """How many times as many rounds as again.AGAIN go again; None: nobody knows, so as many."""
    assumptions: tuple[str, ...] = ()

    cluster: Cluster | None = None
    """The cluster whose network this is, at the rate and latency above; None: one that was fitted to measurements."""

    def __post_init__(self) -> None:
        check_all_reduce(self.algorithm, self.hierarchy)
        if not (self.link_bytes_per_s > 0 and self.latency_s >= 0 and self.per_host >= 1):
            raise ConfigError(
                f"links of {8 * self.link_bytes_per_s:g} bit/s with {self.latency_s:g} s of latency and "
                f"{self.per_host} ranks: expected positive numbers"
            )

    @classmethod
    def of_cluster(cls, cluster: Cluster, like: Network) -> Network:
        """The network of `cluster`, whose nodes the ranks fill one after the other; all-reduces go as in `like`."""
        between = cluster.between
        return dataclasses.replace(
            like,
            link_bytes_per_s=between.ports_per_node * between.port_bps / 8,
            latency_s=between.hop_s,
            host_s_per_byte=between.host_s_per_byte,
            per_host=cluster.accelerators_per_node,
            cluster=cluster,
            assumptions=(f"{cluster.title}; {between.title}: {between.source}",),
        )

    @cached_property
    def links(self) -> Interconnect:
        """As `emulator.cluster` has it."""
        if self.cluster is None:
            return measured(self.link_bytes_per_s, self.latency_s, self.host_s_per_byte, self.per_host)
        between = self.cluster.between
        port_bps = 8 * self.link_bytes_per_s / between.ports_per_node
        between = dataclasses.replace(
            between, port_bps=port_bps, hop_s=self.latency_s, host_s_per_byte=self.host_s_per_byte
        )
        return dataclasses.replace(self.cluster, between=between)

    def seconds(self, size_bytes: float, ranks: int, collective: int = Collective.ALL_REDUCE) -> float:
        """Of one collective with nothing else on the network."""
        where = place(ranks, 1, self.per_host)
        name = Collective(collective).name.lower()
        return cost(self.links, name, size_bytes, where, self.algorithm, self.hierarchy).seconds

    def line(self, ranks: int, collective: int = Collective.ALL_REDUCE) -> tuple[float, float]:
        """(seconds, seconds a byte) of large collectives."""
        large_s, double_s = (self.seconds(times * LARGE_BYTES, ranks, collective) for times in (1, 2))
        return max(0.0, 2 * large_s - double_s), (double_s - large_s) / LARGE_BYTES

    def transfer(self, ranks: int, lanes: str = "int32") -> transfers.Transfer:
        """Of all-reduces among so many. `lanes`: of our protocol's packets; "" for integers, which no exponent is
        guessed for."""
        fixed_s, per_byte_s = self.line(ranks)
        found = transfers.Transfer(fixed_s, 1.0 / max(per_byte_s, 1e-18))
        if self.algorithm != "switchml" or not lanes or (self.traced, lanes) == ("switchml", "int32"):
            return found
        share = again.AGAIN[lanes] * (1.0 if self.again_times is None else self.again_times)
        return dataclasses.replace(found, again=share, guessed_bytes=float(again.guessed_bytes(ranks)))


def fit(joined: Joined | Sequence[Joined], link_bps: float | None = None, per_host: int = 0) -> Network:
    """To the all-reduces of the trace; of several iterations the median fit counts.

    link_bps: what each host's link is known to carry; else all of the time that grows with size counts as the link's.
    per_host: ranks on a host; 0: as the traces say.
    Raises GraphError without an all-reduce, ConfigError for links slower than what was measured.
    """
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
        again_times=again.times_usual(joined.traces),
    )
    _, volume = model.line(ranks)
    steps, _ = dataclasses.replace(model, link_bytes_per_s=1e30, latency_s=1.0).line(ranks)
    most_bytes_per_s = link_bps / 8 / volume if link_bps and volume else np.inf
    told = _median([transfers.fit(one, most_bytes_per_s=most_bytes_per_s) for one in several])
    latency_s = told.fixed_s / max(1.0, steps)
    assumptions = (told.assumed,) if told.assumed else ()
    if link_bps is None:
        assumptions += ("all that an all-reduce takes for each byte is taken for its link's; say what links carry",)
        return dataclasses.replace(
            model, link_bytes_per_s=volume * told.bytes_per_s, latency_s=latency_s, assumptions=assumptions
        )
    used_bps = 8 * volume * float(np.median([transfers.used_bytes_per_s(one) for one in several]))
    if used_bps > link_bps * TOO_MUCH:
        raise ConfigError(
            f"the trace's all-reduces moved {used_bps / 1e6:.0f} Mbit/s over each link, which is said to carry "
            f"{link_bps / 1e6:g} Mbit/s: was it traced on that network?"
        )
    return dataclasses.replace(
        model,
        link_bytes_per_s=link_bps / 8,
        latency_s=latency_s,
        host_s_per_byte=max(0.0, 1.0 / told.bytes_per_s - volume / (link_bps / 8)),
        assumptions=assumptions,
    )


def _median(fits: list[transfers.Transfer]) -> transfers.Transfer:
    """Of each number by itself: an iteration in which something else held up a transfer is no measure of it."""
    fixed_s = float(np.median([one.fixed_s for one in fits]))
    per_byte_s = float(np.median([1.0 / one.bytes_per_s for one in fits]))
    return transfers.Transfer(fixed_s, 1.0 / per_byte_s, fits[0].assumed)


def world_size(joined: Joined) -> int:
    """Ranks of the job, traced or not."""
    return max(round(float(joined.graph.ranks.weight.sum())), 1)


def known(joined: Joined) -> Network:
    """The iteration's network: what a change has made it, or fitted now."""
    return joined.network if joined.network is not None else fit(joined)


def on(joined: Joined, network: Network, sizes: np.ndarray | None = None) -> Joined:
    """The same iteration on another network. `sizes`: of groups, int (groups,), where these change too."""
    before = known(joined)
    joined = one_at_a_time(joined)
    graph, costs = joined.graph, joined.costs
    old_sizes = graph.groups.size
    new_sizes = old_sizes if sizes is None else np.asarray(sizes, np.int32)
    took_s = transfers.meeting_s(costs)
    found = np.flatnonzero(graph.works.collective[graph.meetings.work] != Collective.READ)
    seconds = np.empty(len(found))
    for i, meeting in enumerate(found.tolist()):
        work, group = int(graph.meetings.work[meeting]), int(graph.meetings.group[meeting])
        size, collective = float(graph.works.bytes[work]), int(graph.works.collective[work])
        was = before.seconds(size, int(old_sizes[group]), collective)
        now = network.seconds(size, int(new_sizes[group]), collective)
        seconds[i] = max(took_s[meeting] + now - was, LEAST_LEFT * min(now, took_s[meeting]))
    if network.algorithm != before.algorithm and len(reduces := transfers.all_reduces(joined)):
        first = reduces[np.argmin(transfers.arrivals_s(joined)[reduces])]  # the others are taken to wait in line
        size, ranks = float(transfers.meeting_bytes(joined)[first]), world_size(joined)
        seconds[found == first] += network.transfer(ranks).again_s(size) - before.transfer(ranks).again_s(size)
    changed = with_meeting_seconds(joined, found, seconds)
    graph = dataclasses.replace(graph, groups=dataclasses.replace(graph.groups, size=new_sizes))
    return dataclasses.replace(changed, graph=graph, network=network)


def one_at_a_time(joined: Joined) -> Joined:
    """All-reduces on one stream of each rank, in the order of their starts. What overlaps shares a link; one after the
    other they can be given other prices. Of a stretch of time in which any was under way each takes as long as its
    bytes do at one rate, that with which the stretch ends when it did."""
    graph, ops = joined.graph, joined.graph.ops
    meetings = transfers.all_reduces(joined)
    member = np.isin(ops.meeting, meetings)
    streams = [np.unique(ops.stream[member & (graph.op_rank() == rank)]) for rank in range(len(graph.ranks))]
    if all(len(own) <= 1 for own in streams):
        return joined
    began_s = transfers.arrivals_s(joined)
    took_s = transfers.meeting_s(joined.costs)
    if np.isnan(joined.start_s[member]).any():
        raise GraphError("all-reduces on several streams that were never traced: nothing says how they overlap")
    order = meetings[np.argsort(began_s[meetings], kind="stable")]
    seconds = np.empty(len(order))
    sizes = graph.works.bytes[graph.meetings.work[order]]
    for stretch in transfers.stretches(began_s[order], took_s[order]):
        weight = sizes[stretch] if sizes[stretch].sum() else took_s[order][stretch] + 1e-9
        end_s = float((began_s[order] + took_s[order])[stretch].max())
        seconds[stretch] = weight * _rate(began_s[order][stretch], weight, end_s)
    joined = with_meeting_seconds(joined, order, seconds)
    stream = ops.stream.copy()
    key = np.arange(len(ops), dtype=np.float64)
    place = np.zeros(len(graph.meetings), np.int64)
    place[order] = np.arange(len(order))
    gap_of = _gaps_before(joined, member)
    for rank, own in enumerate(streams):
        if len(own) <= 1:
            continue
        mine = np.flatnonzero(np.isin(ops.stream, own))
        last = int(mine.max())
        reduces = np.flatnonzero(member & (graph.op_rank() == rank))
        stream[reduces] = own[0]
        key[reduces] = last + (1 + place[ops.meeting[reduces]]) / (len(order) + 2)
        gaps = gap_of[reduces]
        has_gap = gaps >= 0
        stream[gaps[has_gap]] = own[1]  # a thread wakes up while another all-reduce is still under way
        key[gaps[has_gap]] = key[reduces[has_gap]] - 0.25 / (len(order) + 2)
    graph = dataclasses.replace(joined.graph, ops=dataclasses.replace(joined.graph.ops, stream=stream))
    return reordered(dataclasses.replace(joined, graph=graph), key)


def _rate(came_s: np.ndarray, weight: np.ndarray, end_s: float) -> float:
    """Seconds for each unit of weight with which all, served in turn from when they came, are done at `end_s`: some
    k-th is the last that did not have to wait, and from it on there was no pause."""
    left = np.cumsum(weight[::-1])[::-1]
    return float(np.min((end_s - came_s) / left))


def _gaps_before(joined: Joined, member: np.ndarray) -> np.ndarray:
    """int64 (ops,): of each member, the op right before it on its stream if it belongs to no meeting; else -1."""
    ops = joined.graph.ops
    before = np.full(len(ops), -1, np.int64)
    for op in np.flatnonzero(member).tolist():
        if op and ops.stream[op - 1] == ops.stream[op] and ops.meeting[op - 1] == NO_MEETING:
            before[op] = op - 1
    return before
