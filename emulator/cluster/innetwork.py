"""Cost of collectives with in-network aggregation: workers stream chunks through slots of a switch that adds them up
(SwitchML, NSDI 2021; `switchml/protocol/pool.py` specifies a slot, and `emulator/networks/netsim` simulates the same
protocol packet by packet).

The closed form considers, in order: line rate, window, switch, conversion to fixed point; then multi-level aggregation,
loss, sparse blocks and compression. The reduction inside nodes is in `collectives.py`.
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
    """Packet loss rate of each link; losses are independent."""
    jobs: int = number(Range(1, 1_000_000), 1)
    """Jobs that share the slots evenly."""
    levels: int = number(Range(0, 16), 0)
    """Switches between a worker and the root, inclusive; 0: one per `nodes_per_leaf` nodes and one above them."""
    sparse: bool = False
    """Send only nonzero blocks (OmniReduce, SIGCOMM 2021): the share in the model's file, at most `density`."""
    density: float = number(SHARE, 1.0)
    """Largest share of nonzero blocks of a worker."""
    overlap: float = number(SHARE, 0.0)
    """Share of a worker's nonzero blocks that all other workers have, too; the rest is placed at random."""
    wire_bytes: float = number(Range(1, 4), 4.0)
    """Bytes on the wire of a 4-byte element: 2 or 1 for narrower integers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.density < 1.0 and not self.sparse:
            raise ConfigError(f"density is {self.density:g}, but zero blocks are only left out where sparse is set")
        if self.wire_bytes not in LANE_BYTES.values():
            raise ConfigError(f"wire_bytes is {self.wire_bytes}; expected 1, 2 or 4")


DENSE = Streaming()
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "barrier")
"""Collectives that an aggregator supports (docs/protocol.md, section 11)."""
MOVES = ("all_gather", "broadcast")
"""Collectives that carry bytes unchanged: no sparse blocks, narrower integers or conversion."""


def union_density(density: float, overlap: float, workers: int) -> float:
    """Share of blocks that are nonzero on any of `workers`, hence part of the result. Independent blocks give 1 -
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
    """Cost of one of OPERATIONS over `size_bytes` among the ranks of `where`. Each rank streams its whole buffer
    through the switches with its share of its node's ports. In a reduce-scatter or all-gather, a rank's own share is on
    the link's less busy direction. both_ways: one of these two concurrent with the other; each sends what the other
    does not, and packets without data in place of its own (Khalilov et al., SC 2024)."""
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
    # A leaf's switch adds up the inputs from below, so that one sum leaves it, as one node's part of a ring does.
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
    """Bytes that `workers`, streaming `size_bytes` each, put on their links in the busier direction, all links
    together. data_share: share of packets that carry data."""
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
    """Seconds for `workers` on `nodes` nodes (0: one each) to stream `size_bytes` each through slots, over links of
    `link_bytes_per_s` in each direction. packet: payloads and packet framings per chunk in the busier direction of a
    link. converts: whether data is converted to fixed point and back."""
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
    # A chunk stalls its slot for a timeout if one of its packets upward or its own result is lost on any link. The
    # stalls of one slot add up; those of different slots overlap. The slowest slot determines the duration: its stalls
    # and its chunks without queueing, plus a stall near the end that no other slot hides.
    lost = 1.0 - (1.0 - how.loss) ** (2 * workers * levels)
    per_slot, stalls = carried / slots, carried * lost
    unlucky = _largest_of(slots, per_slot * lost) * switch.timeout_s + per_slot * round_trip
    tail = switch.timeout_s * stalls / (stalls + 1.0)
    # Each loss makes all workers retransmit their packet.
    return max(base + tail, unlucky) + stalls * packet_s


LARGE_MEAN = 500.0
"""Up to this mean, exp(-mean) is a normal floating-point number."""


def _largest_of(count: float, mean: float) -> float:
    """Expected maximum of `count` Poisson variables of this mean: the sum over k of the probability that one reaches k.
    For a large mean, that of normal variables, integrated in steps of 0.01 standard deviations."""
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
