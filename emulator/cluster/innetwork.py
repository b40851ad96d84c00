"""What a collective takes with in-network aggregation: workers stream chunks through slots of a switch that adds them
up (SwitchML, NSDI 2021; what a slot does is `switchml/protocol/pool.py`, and `emulator/networks/netsim` plays the same
packet by packet).

A closed form, in the order of its terms: line rate, window, switch, conversion to fixed point; then the racks' tree,
loss, sparse blocks and compression. What several accelerators of a node do first is in `collectives.py`.
"""

import math
from dataclasses import dataclass, replace

from emulator.cluster.cluster import Interconnect
from emulator.cluster.cost import FREE, Cost
from emulator.cluster.topology import GroupLayout
from emulator.ranges import SHARE, Range, Ranged, number
from switchml.errors import ConfigError
from switchml.protocol.sizes import LANE_BYTES


@dataclass(frozen=True)
class Streaming(Ranged):
    """How a job uses the aggregating switches."""

    loss: float = number(Range(0, 0.5), 0.0)
    """Share of packets lost on each link, independently."""
    jobs: int = number(Range(1, 1_000_000), 1)
    """Jobs that share the slots evenly."""
    levels: int = number(Range(0, 16), 0)
    """Switches a packet passes up to the root; 0: one per `nodes_per_leaf` nodes and one above them."""
    sparse: bool = False
    """Send only blocks that are not zero (OmniReduce, SIGCOMM 2021): as many as the model's file says, or
    `density`."""
    density: float = number(SHARE, 1.0)
    """At most this share of each worker's blocks is not zero."""
    overlap: float = number(SHARE, 0.0)
    """Of a worker's non-zero blocks, the share that all others have too; the rest falls where it may."""
    wire_bytes: float = number(Range(1, 4), 4.0)
    """Of a 4-byte element on the wire: 2 or 1 for narrower integers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.density < 1.0 and not self.sparse:
            raise ConfigError(f"density is {self.density:g}, but zero blocks are only left out where sparse is set")
        if self.wire_bytes not in LANE_BYTES.values():
            raise ConfigError(f"wire_bytes is {self.wire_bytes}; expected 1, 2 or 4")


DENSE = Streaming()
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "barrier")
"""What an aggregator takes (docs/protocol.md, section 11)."""
MOVES = ("all_gather", "broadcast")
"""Of these, those that carry bytes as they are: none is left out, narrowed or converted."""


def union_density(density: float, overlap: float, workers: int) -> float:
    """Share of blocks that are non-zero on any of `workers`: what comes back down. Independent blocks give 1 -
    (1-d)^n."""
    common = density * overlap
    rest = density - common
    return common + (1.0 - common) * (1.0 - (1.0 - min(1.0, rest / max(1e-12, 1.0 - common))) ** workers)


def aggregate(
    links: Interconnect,
    size_bytes: float,
    where: GroupLayout,
    how: Streaming = DENSE,
    operation: str = "all_reduce",
    both_ways: bool = False,
) -> Cost:
    """One of OPERATIONS over `size_bytes` among the ranks of `where`, each of which streams its whole buffer through
    the switches with its share of its node's ports; of a reduce-scatter and an all-gather, a rank's own share is on the
    link's less busy direction. both_ways: one of these two beside the other. Each sends what the other does not, and
    packets without data in the place of its own (Khalilov et al., SC 2024)."""
    n = where.ranks
    if operation != "all_reduce":
        how = replace(how, sparse=False, density=1.0, wire_bytes=4.0 if operation in MOVES else how.wire_bytes)
    if operation == "barrier":
        how, size_bytes = replace(how, wire_bytes=4.0), 1.0
    carried = {"reduce_scatter": (n - 1) / n, "all_gather": (n - 1) / n, "barrier": 0.0}.get(operation, 1.0)
    frames = 1.0
    if both_ways and operation in ("reduce_scatter", "all_gather"):
        carried, frames = 1.0, 2.0
    each = GroupLayout(where.ranks, where.nodes, 1, where.span)
    efficiency = (links.switch.efficiency or links.between.efficiency) / links.between.efficiency
    # A leaf's switch adds up what comes from below, so that one sum leaves it, as one node's part of a ring does.
    rate = links.node_rate(each, "ring") * efficiency
    converts = operation not in MOVES
    streamed_s = stream_s(links, size_bytes, n, rate, how, where.nodes, (carried, frames), converts)
    if not streamed_s:
        return FREE
    leaving = wire_bytes(links, size_bytes, n, how, carried)
    return Cost(0.0, size_bytes, size_bytes / streamed_s).leaves(leaving, once_a_leaf=True)


def wire_bytes(
    links: Interconnect, size_bytes: float, workers: int, how: Streaming = DENSE, data_share: float = 1.0
) -> float:
    """What `workers` that stream `size_bytes` each put on their links, in the busier direction, all of them
    together. data_share: of packets, that have data."""
    switch = links.switch
    up = how.density if how.sparse else 1.0
    carried = max(up, union_density(up, how.overlap, workers))
    framed = data_share + switch.framing_bytes / switch.payload_bytes
    return size_bytes * how.wire_bytes / 4.0 * carried * framed * workers


def stream_s(
    links: Interconnect,
    size_bytes: float,
    workers: int,
    link_bytes_per_s: float,
    how: Streaming = DENSE,
    nodes: int = 0,
    packet: tuple[float, float] = (1.0, 1.0),
    converts: bool = True,
) -> float:
    """Seconds for `workers`, on so many `nodes` (0: one each), to stream `size_bytes` each through slots over links of
    this rate each way. packet: of each chunk, how many payloads and how many packets' framing the busier direction of a
    link carries. converts: to fixed point and back."""
    switch = links.switch
    elements = size_bytes / 4.0
    per_packet = switch.payload_bytes / how.wire_bytes
    chunks = math.ceil(elements / per_packet)
    if not chunks:
        return 0.0
    up = how.density if how.sparse else 1.0
    down = union_density(up, how.overlap, workers)
    line = packet[0] * switch.payload_bytes + packet[1] * switch.framing_bytes
    packet_s = max(line / link_bytes_per_s, 1.0 / switch.packets_per_s)
    levels = how.levels or (1 if (nodes or workers) <= links.between.nodes_per_leaf else 2)
    round_trip = 2 * packet_s + levels * (2 * switch.link_s + switch.latency_s) + switch.host_latency_s
    slots = max(1, switch.slots // how.jobs)
    # Up and down use different directions of the link; each direction carries its own share of the blocks.
    carried = max(up, down) * chunks
    streaming = carried * max(packet_s, round_trip / slots)
    convert = size_bytes / switch.convert_bytes_per_s if converts else 0.0
    base = round_trip + max(streaming, convert)
    if not how.loss:
        return base
    # A chunk stalls its slot for a timeout when one of its packets up or its own result is lost on any link. The
    # stalls of one slot add up; those of different slots overlap. What counts is the unluckiest slot: its stalls and
    # its chunks without queueing; and a stall near the end that nobody else hides.
    lost = 1.0 - (1.0 - how.loss) ** (2 * workers * levels)
    per_slot, stalls = carried / slots, carried * lost
    unlucky = _largest_of(slots, per_slot * lost) * switch.timeout_s + per_slot * round_trip
    tail = switch.timeout_s * stalls / (stalls + 1.0)
    # Each loss makes all workers repeat their packet.
    return max(base + tail, unlucky) + stalls * packet_s


LARGE_MEAN = 500.0
"""exp(-mean) is still a normal number here."""


def _largest_of(count: float, mean: float) -> float:
    """Expected largest of `count` Poisson numbers of this mean: the sum of the chances that one reaches 1, 2, 3, …; of
    a large mean, that of normal numbers, by the same sum in steps of a hundredth of their deviation."""
    if mean > LARGE_MEAN:
        tails = [0.5 * math.erfc(z / 100 / math.sqrt(2.0)) for z in range(4000)]
        deviations = sum((1.0 - (1.0 - tail) ** count) - tail**count for tail in tails) / 100
        return mean + math.sqrt(mean) * deviations
    total, term, below = 0.0, math.exp(-mean), math.exp(-mean)
    for k in range(1, int(mean + 40 * math.sqrt(mean + 1) + 40)):
        reached = 1.0 - below**count
        total += reached
        if reached < 1e-6 and k > mean:
            break
        term *= mean / k
        below = min(1.0, below + term)
    return total
