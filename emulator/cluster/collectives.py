"""Cost models of collectives: closed forms for the algorithms of communication libraries, given a group's placement in
a cluster. Every prediction uses `cost()`: emulated jobs, emulated peers, replayed traces, the optimizer. In-network
aggregation is in `innetwork.py`, measured tables are in `tables.py`.

n ranks, S bytes: the whole buffer, as in `emulator.jobs.workload.graph.Collective`. Formulas: Thakur et al., IJHPCA
2005; Patarasuk and Yuan, JPDC 2009 (ring); Sanders et al., Parallel Computing 2009 (two trees).
"""

import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from emulator import datafile
from emulator.cluster import innetwork, tables
from emulator.cluster.algorithms import ALGORITHMS, HIERARCHIES, NODE_FIRST
from emulator.cluster.cluster import Interconnect
from emulator.cluster.cost import FREE, Cost, slowest
from emulator.cluster.innetwork import DENSE, Streaming
from emulator.cluster.topology import GroupLayout
from switchml.errors import ConfigError

ClosedForm = Callable[[Interconnect, float, GroupLayout], Cost]


def cost(
    links: Interconnect,
    operation: str,
    size_bytes: float,
    where: GroupLayout,
    algorithm: str = "auto",
    hierarchy: str = "auto",
    streaming: Streaming = DENSE,
    *,
    both_ways: bool = False,
) -> Cost:
    """Return the cost of `operation` over `size_bytes` among the ranks of `where`. Raises ConfigError for unknown
    names.

    algorithm, hierarchy: of all-reduces, one of ALGORITHMS and of HIERARCHIES; algorithm "auto" is the faster of ring
    and tree, as NCCL's tuner intends. "switchml" also applies to the other collectives that an aggregator supports.
    streaming: of "switchml". both_ways: an all-gather concurrent with a reduce-scatter, or vice versa.
    """
    datafile.check_name("collective", operation, OPERATIONS)
    check_all_reduce(algorithm, hierarchy)
    if where.ranks <= 1:
        return FREE
    if operation == "all_reduce" and algorithm != "switchml":
        costed = _all_reduce(links, size_bytes, where, algorithm, hierarchy)
    elif algorithm == "switchml" and operation in innetwork.OPERATIONS:
        aggregate = partial(innetwork.aggregate, how=streaming, operation=operation, both_ways=both_ways)
        costed = _between(links, size_bytes, where, algorithm, hierarchy, _CLOSED_FORMS[operation], aggregate)
    else:
        costed = _CLOSED_FORMS[operation](links, size_bytes, where)
    if where.nodes > 1 and links.between.host_s_per_byte:
        return costed.plus(Cost(size_bytes * links.between.host_s_per_byte))
    return costed


def check_all_reduce(algorithm: str, hierarchy: str = "auto") -> None:
    """Raise ConfigError for names that are not in ALGORITHMS and HIERARCHIES."""
    datafile.check_name("all-reduce", algorithm, ALGORITHMS)
    datafile.check_name("hierarchy", hierarchy, HIERARCHIES)


def _all_reduce(links: Interconnect, size_bytes: float, where: GroupLayout, algorithm: str, hierarchy: str) -> Cost:
    if algorithm == "auto":
        names = ["ring"]
        if not _measured(links, where):
            names += ["tree"] if where.nodes > 1 else []
            names += ["nvls"] if links.inside.multicast_bytes_per_s else []
        each = (_all_reduce(links, size_bytes, where, name, hierarchy) for name in names)
        return min(each, key=lambda one: one.seconds)
    return _between(links, size_bytes, where, algorithm, hierarchy, _ring, _ALL_REDUCES[algorithm])


def _between(
    links: Interconnect,
    size_bytes: float,
    where: GroupLayout,
    algorithm: str,
    hierarchy: str,
    inside: ClosedForm,
    flat: ClosedForm,
) -> Cost:
    """Cost of a collective that uses `inside` among the ranks of a node and `flat` across nodes or, without a
    hierarchy, among all ranks."""
    if hierarchy == "auto":
        hierarchy = "node" if algorithm in NODE_FIRST else "none"
    if hierarchy == "node" and where.nodes == 1:
        return inside(links, size_bytes, where)
    if hierarchy == "none" or where.per_node == 1:
        costed = flat(links, size_bytes, where)
        return Cost(links.inside.latency_s).plus(costed) if algorithm == "switchml" else costed
    # Hierarchical: reduce-scatter inside nodes, an all-reduce of each shard along its own rail, all-gather inside
    # nodes, in sequence. All rails of a node together move S at the rate of its ports. Other collectives are analogous.
    rail = GroupLayout(where.nodes, where.nodes, 1, where.span)
    between = flat(links, size_bytes / where.per_node, rail)
    between = between.leaves(between.leaving_bytes * where.per_node, between.once_a_leaf)
    return inside(links, size_bytes, GroupLayout(where.per_node, 1, where.per_node, 1)).plus(between)


def _wire(links: Interconnect, moved: float, size_bytes: float, ranks: int = 0) -> float:
    """Seconds of a ring among `ranks` accelerators of a node (0: all) in which each rank sends `moved` bytes and reads
    `size_bytes` of its buffer."""
    return moved / links.inside.ring_bytes_per_s(ranks) + size_bytes / links.inside.local_bytes_per_s


def _pipelined(
    links: Interconnect,
    size_bytes: float,
    where: GroupLayout,
    inside_s: float,
    crossing: float,
    pattern: str,
    steps: float,
    *,
    hosts_s: float = 0.0,
    once_a_leaf: bool = False,
) -> Cost:
    """Cost of an operation that takes `inside_s` within nodes, overlapped with `crossing` bytes that leave each node in
    `steps` sequential messages after `hosts_s` on the hosts."""
    start_s = links.start_s(where, steps)
    if where.nodes == 1:
        return _by_protocol(links, size_bytes, start_s, 0.0, inside_s)
    rate = links.node_rate(where, pattern)
    filling_s = links.between.filling_bytes(crossing, where.per_node / links.accelerators_per_node) / rate
    costed = _by_protocol(links, size_bytes, start_s, filling_s, inside_s, crossing / rate + hosts_s)
    return costed.leaves(crossing * where.nodes, once_a_leaf)


LOW_LATENCY_TIMES = 4.0
"""Bytes that NCCL's low-latency protocol (LL) sends for each byte of a message: it sustains 25 to 50 % of the bandwidth
(Hu et al. 2025, Demystifying NCCL, section III)."""


def _by_protocol(links: Interconnect, size_bytes: float, start_s: float, filling_s: float, *transfers_s: float) -> Cost:
    """Cost of pipelined transfers with the faster of the library's protocols: full chunks, whose pipeline takes
    `filling_s` to fill, or low latency."""
    full = slowest(size_bytes, start_s + filling_s, *transfers_s)
    slower_s = [LOW_LATENCY_TIMES * each for each in transfers_s]
    low = slowest(size_bytes, start_s * links.inside.low_latency, *slower_s)
    return min(full, low, key=lambda one: one.seconds)


def _ring(links: Interconnect, size_bytes: float, where: GroupLayout, passes: float = 2.0) -> Cost:
    """A ring: 2(n-1)/n S pass every rank, and leave every node. `passes` of 1: reduce-scatter or all-gather, half of
    that."""
    n = where.ranks
    moved, read = passes * (n - 1) / n * size_bytes, size_bytes * passes / 2
    if curve := _measured(links, where):
        latency, rate = map(float, curve.at(size_bytes))
        costed = Cost(latency, size_bytes, rate * 2.0 / passes)
        return costed if where.nodes == 1 else costed.leaves(moved * where.nodes, True)
    inside_s, hosts_s = _wire(links, moved, read, where.per_node), _wire(links, 0.0, read)
    steps = passes * (where.nodes - 1)
    return _pipelined(links, size_bytes, where, inside_s, moved, "ring", steps, hosts_s=hosts_s, once_a_leaf=True)


def _measured(links: Interconnect, where: GroupLayout) -> tables.Curve | None:
    """Return the curve measured for groups with this placement, if there is one."""
    if not links.inside.tables:
        return None
    return _curves(links.folder, links.inside.tables, links.accelerators_per_node).get((where.ranks, where.nodes))


@cache
def _curves(folder: str, name: str, per_node: int) -> dict[tuple[int, int], tables.Curve]:
    """Return curves fitted to a folder of nccl-tests tables, by number of ranks and of nodes."""
    path = Path(name) if Path(name).is_absolute() else Path(folder) / name
    curves: dict[tuple[int, int], tables.Curve] = {}
    for table in tables.read_all(path):
        key = table.ranks, table.layout(per_node).nodes
        if key in curves:
            raise ConfigError(
                f"{path} has two tables of {key[0]} ranks on {key[1]} nodes; put those of one machine into a folder"
            )
        curves[key] = tables.fit(table.size_bytes, table.seconds)
    return curves


def _tree(links: Interconnect, size_bytes: float, where: GroupLayout) -> Cost:
    """Two binary trees over nodes, a chain inside each."""
    near = where.per_node
    chain = (2.0 if near > 1 else 0.0) if where.nodes == 1 else 2 * (near - 1) / near
    inside_s, hosts_s = _wire(links, chain * size_bytes, size_bytes), _wire(links, 0.0, size_bytes)
    return _over_trees(links, size_bytes, where, inside_s, hosts_s)


def _over_trees(
    links: Interconnect, size_bytes: float, where: GroupLayout, inside_s: float, hosts_s: float = 0.0
) -> Cost:
    """Half of the buffer along each of two binary trees over nodes. Inner nodes forward to two children, so 2 S leave
    and enter them; with two nodes each has one neighbor, and S does."""
    volume = 1.0 if where.nodes == 2 else 2.0
    steps = 2 * math.ceil(math.log2(where.nodes))
    return _pipelined(links, size_bytes, where, inside_s, volume * size_bytes, "tree", steps, hosts_s=hosts_s)


NVLS_RANKS = 4
"""Ranks per node from which NVLink SHARP is faster than a ring (NVIDIA/nccl issue 1455)."""


def _nvls(links: Interconnect, size_bytes: float, where: GroupLayout) -> Cost:
    """NCCL's NVLS, and NVLSTree over several nodes: each rank reads the sum of an n-th of the buffer from the node's
    switch and multicasts it, so (n+1)/n S pass a rank's links in each direction. Smaller groups use a ring or tree."""
    if not links.inside.multicast_bytes_per_s:
        raise ConfigError(
            f"all-reduce nvls: nodes ({links.inside.title}) have no NVLink SHARP; expected a cluster whose file sets "
            "inside.multicast_bytes_per_s, such as h100-dgx"
        )
    near = where.per_node
    if near < NVLS_RANKS:
        return (_ring if where.nodes == 1 else _tree)(links, size_bytes, where)
    inside_s = size_bytes * (near + 1) / near / links.inside.multicast_bytes_per_s
    if where.nodes == 1:
        return slowest(size_bytes, links.inside.latency_s, inside_s)
    return _over_trees(links, size_bytes, where, inside_s)


def _halving_doubling(links: Interconnect, size_bytes: float, where: GroupLayout) -> Cost:
    """Recursive halving, then doubling: log2 n steps each. Ranks beyond a power of two first send their buffer to a
    partner and receive the sum back (Thakur et al., section 4.4)."""
    n, nodes = (2 ** int(math.log2(count)) for count in (where.ranks, where.nodes))
    handed = 2.0 * size_bytes if where.ranks > n else 0.0
    inside_s = _wire(links, 2.0 * (n - 1) / n * size_bytes + handed, size_bytes)
    crossing = 2.0 * (nodes - 1) / nodes * size_bytes + handed
    steps = 2 * math.ceil(math.log2(where.nodes))
    return _pipelined(links, size_bytes, where, inside_s, crossing, "pairs", steps, hosts_s=inside_s)


def _server(links: Interconnect, size_bytes: float, where: GroupLayout) -> Cost:
    """One parameter server, with the ports of a node. Every rank sends it its buffer and receives the sum."""
    crossing = where.ranks * size_bytes
    return slowest(size_bytes, links.start_s(where, 2), crossing / links.node_rate(where, "all")).leaves(crossing)


def _all_to_all(links: Interconnect, size_bytes: float, where: GroupLayout) -> Cost:
    """Each rank sends S/n to every other; transfers within and between nodes overlap."""
    n, near = where.ranks, where.per_node
    inside_s = _wire(links, size_bytes * (near - 1) / n, size_bytes / 2)
    return _pipelined(links, size_bytes, where, inside_s, near * size_bytes * (n - near) / n, "all", 1)


def dispatch(links: Interconnect, size_bytes: float, where: GroupLayout, copies: float, most_nodes: int = 0) -> Cost:
    """Expert dispatch or combine of tokens, as in DeepEP and HybridEP: the S bytes of a rank are `copies` of each
    token, one for each expert, spread evenly over all nodes or, if nonzero, over `most_nodes`. One copy is sent along
    rails to each node with such experts, then forwarded to the ranks inside (deepseek-ai/DeepEP, README, "normal
    kernels"), in sequence. On 16 H100, 4,096 tokens of 4,096 bytes for 8 experts take 0.83 ms by this formula, and were
    measured at 0.67 ms (NVIDIA-NeMo/Megatron-Bridge, skills/nemo-mbridge-perf-moe-comm-overlap/SKILL.md: 9.079 ms are
    0.11 % of 4 x 48 x 64 exchanges)."""
    near, nodes = where.per_node, where.nodes
    inside_s = _wire(links, size_bytes * (near - 1) / near, size_bytes / 2)
    if nodes == 1:
        return slowest(size_bytes, links.start_s(where), inside_s)
    among = min(nodes, most_nodes or nodes)
    reached = among * (1 - (1 - 1 / among) ** copies)
    crossing = near * size_bytes / copies * reached * (nodes - 1) / nodes
    between_s = crossing / links.node_rate(where, "all")
    return slowest(size_bytes, links.start_s(where, 1), inside_s + between_s).leaves(crossing * nodes)


def _broadcast(links: Interconnect, size_bytes: float, where: GroupLayout) -> Cost:
    """A pipelined chain: S bytes into and out of every rank."""
    inside_s, steps = _wire(links, size_bytes, 0.0), where.nodes - 1
    return _pipelined(links, size_bytes, where, inside_s, size_bytes, "ring", steps, once_a_leaf=True)


def _barrier(links: Interconnect, size_bytes: float, where: GroupLayout) -> Cost:
    return Cost(links.start_s(where, 2 * math.ceil(math.log2(max(2, where.nodes)))))


def _p2p(links: Interconnect, size_bytes: float, where: GroupLayout) -> Cost:
    """Point-to-point; between nodes, the sender has its accelerator's share of the ports."""
    if where.nodes == 1:
        return slowest(size_bytes, links.inside.latency_s, size_bytes / links.inside.bytes_per_s)
    fixed = links.inside.latency_s + links.between.hops(where.span or where.nodes) * links.between.hop_s
    # The bytes pass the sender's port and the receiver's.
    return slowest(size_bytes, fixed, size_bytes / links.node_rate(where, "pairs")).leaves(2 * size_bytes)


_ALL_REDUCES: dict[str, ClosedForm] = {
    "ring": _ring,
    "tree": _tree,
    "nvls": _nvls,
    "halving-doubling": _halving_doubling,
    "hierarchical": _ring,  # "node" hierarchy
    "ps": _server,
}
_CLOSED_FORMS: dict[str, ClosedForm] = {
    "all_reduce": _ring,
    "reduce_scatter": partial(_ring, passes=1.0),
    "all_gather": partial(_ring, passes=1.0),
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "reduce": _broadcast,
    "barrier": _barrier,
    "p2p": _p2p,
}
OPERATIONS = tuple(_CLOSED_FORMS)
