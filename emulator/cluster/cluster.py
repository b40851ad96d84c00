"""A cluster: nodes of accelerators, the interconnects inside and between nodes, storage, and the price per hour. Read
from `data/clusters/NAME.toml` or a user's file, which may inherit from another with `extends = "NAME"`.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from pathlib import Path

from emulator import datafile
from emulator.cluster.accelerator import DATA, Accelerator, Constants, accelerators, constants
from emulator.cluster.rings import ring_rates
from emulator.cluster.topology import Fabric, GroupLayout
from emulator.ranges import BYTES, RATE, SECONDS, Range, Ranged, number
from switchml.errors import ConfigError
from switchml.protocol import sizes

FOLDER = DATA / "clusters"


@dataclass(frozen=True)
class Inside(Ranged):
    """Interconnect of the accelerators of a node. An all-reduce of S bytes among n ranks takes `latency_s + n
    latency_per_rank_s + S (2(n-1)/n / bytes_per_s + 1 / local_bytes_per_s)`: a ring over links of `bytes_per_s` in each
    direction, and one pass over the buffer in memory."""

    title: str
    source: str
    bytes_per_s: float = number(RATE)
    local_bytes_per_s: float = number(RATE)
    latency_s: float = number(SECONDS)
    latency_per_rank_s: float = number(SECONDS)
    group_bytes_per_s: dict[int, float] = number(RATE, factory=dict)
    """Measured ring bandwidth by number of ranks; replaces `bytes_per_s` for groups of that size."""
    links: tuple[tuple[int, ...], ...] = number(Range(0, 1000), ())
    """Links of nodes without a full mesh, such as the cube mesh of a DGX-1: two accelerators and the number of links
    between them. Groups that were not measured use as many rings as these links form."""
    link_bytes_per_s: float = number(BYTES, 0.0)
    """Bandwidth of one of `links`, in each direction."""
    low_latency: float = number(Range(0, 1), 1.0)
    """Share of the latencies that remains in the library's low-latency protocol, which small messages use; 1: it has
    none."""
    multicast_bytes_per_s: float = number(BYTES, 0.0)
    """Bandwidth of an accelerator's links in each direction while the node's switch reduces and multicasts (NVLink
    SHARP); 0: not supported."""
    tables: str = ""
    """Folder of nccl-tests tables that replace the formula for the operations and rank counts they cover; relative to
    the cluster's file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for link in self.links:
            if len(link) != 3:
                raise ConfigError(f"links has {list(link)}; expected two accelerators and how many links join them")

    def ring_bytes_per_s(self, ranks: int) -> float:
        """Bandwidth in each direction of a ring among `ranks` accelerators of a node."""
        whole = 1 + max((last for _, last, _ in self.links), default=-1)
        if ranks not in self.group_bytes_per_s and 2 <= ranks < whole:
            return self.link_bytes_per_s * ring_rates(self.links, ranks)
        return self.group_bytes_per_s.get(ranks, self.bytes_per_s)


@dataclass(frozen=True)
class Storage(Ranged):
    """Storage of the training data: bandwidth available to one node, and to all nodes together."""

    title: str = "shared storage"
    node_bytes_per_s: float = number(RATE, 2e9)
    total_bytes_per_s: float = number(RATE, 100e9)
    latency_s: float = number(SECONDS, 1e-3)


@dataclass(frozen=True)
class Switch(Ranged):
    """The aggregating switch, for jobs that use in-network aggregation. Defaults: SwitchML on Tofino (NSDI 2021,
    section 4; its public code): 512 slots for each version, 1024-byte payloads."""

    slots: int = number(Range(1, 2**40), 512)
    payload_bytes: int = number(Range(1, 65_536), sizes.PAYLOAD_BYTES)
    framing_bytes: int = number(Range(0, 65_536), sizes.LINE_OVERHEAD_BYTES)
    """Overhead per payload: Ethernet with preamble and gap, IPv4, UDP and the SwitchML header."""
    packets_per_s: float = number(RATE, 1e9)
    """Packet rate limit of one port."""
    latency_s: float = number(SECONDS, 1e-6)
    link_s: float = number(SECONDS, 1e-6)
    """Latency of one link, without serialization."""
    host_latency_s: float = number(SECONDS, 5e-6)
    """Host delay between receiving a result and sending the next packet of its slot."""
    timeout_s: float = number(SECONDS, 1e-3)
    convert_bytes_per_s: float = number(RATE, 200e9)
    """Rate of conversion to fixed point and back on the sender, as one stream over the buffer."""
    efficiency: float = number(Range(0, 10), 0.0)
    """Share of the port rate that the packets sustain, framing included; 0: the same as the fabric's collectives."""


@dataclass(frozen=True, kw_only=True)
class Interconnect(Ranged):
    """Interconnect parameters that determine the cost of a collective."""

    accelerators_per_node: int = number(Range(1, 1_000_000))
    inside: Inside
    between: Fabric
    switch: Switch = field(default_factory=Switch)
    folder: str = ""
    """Folder of the cluster's file; `Inside.tables` is relative to it."""

    def node_rate(self, where: GroupLayout, pattern: str) -> float:
        """Bytes per second in each direction available to a group's ranks on one node, while the node's other groups
        use the rest of its ports. `pattern`: see `Fabric.share`."""
        per_node = self.accelerators_per_node
        share = self.between.share(where, per_node, pattern)
        return self.between.node_bytes_per_s * (where.per_node / per_node) * share

    def start_s(self, where: GroupLayout, steps: float = 0.0) -> float:
        """Part of the cost that is independent of size: the library's launch inside the node, and `steps` messages
        between nodes."""
        inside = self.inside.latency_s + self.inside.latency_per_rank_s * min(where.ranks, self.accelerators_per_node)
        return inside + steps * self.between.hops(where.span or where.nodes) * self.between.hop_s


def measured(
    link_bytes_per_s: float, latency_s: float, host_s_per_byte: float = 0.0, per_host: int = 1
) -> Interconnect:
    """Return an interconnect from a few measured numbers: every host's link carries `link_bytes_per_s` in each
    direction, a message has a latency of `latency_s`, and hosts spend `host_s_per_byte` on copies and sums. Transfers
    between the `per_host` ranks of one host are free, and switches have unlimited slots."""
    packet_s = (sizes.PAYLOAD_BYTES + sizes.FRAME_OVERHEAD_BYTES) / link_bytes_per_s
    inside = Inside("one host", "measured", RATE.most, RATE.most, 0.0, 0.0)
    fabric = Fabric(
        kind="single-switch",
        title="links of one rate",
        source="measured",
        ports_per_node=1,
        port_bps=8 * link_bytes_per_s,
        efficiency=sizes.TCP_SHARE,
        hop_s=latency_s,
        nodes_per_leaf=1 << 30,
        host_s_per_byte=host_s_per_byte,
    )
    switch = Switch(
        slots=1 << 40,
        framing_bytes=sizes.FRAME_OVERHEAD_BYTES,
        latency_s=0.0,
        link_s=max(0.0, latency_s - packet_s),
        host_latency_s=0.0,
        convert_bytes_per_s=RATE.most,
        packets_per_s=RATE.most,
        efficiency=1.0,
    )
    return Interconnect(accelerators_per_node=per_host, inside=inside, between=fabric, switch=switch)


@dataclass(frozen=True, kw_only=True)
class Cluster(Interconnect):
    """Accelerators with their interconnect, storage and price."""

    name: str
    title: str
    accelerator: str
    own_accelerator: Accelerator | None = None
    """Accelerator described in the cluster's file under `[accelerator]`; None: a built-in one."""
    storage: Storage = field(default_factory=Storage)
    constants: dict[str, float] = number(Range(0, 1e12), factory=dict)
    host_watts: float = number(Range(0, 1e9), 0.0)
    """Power of a node without its accelerators."""
    host_memory_bytes: float = number(BYTES, 1e12)
    host_link_bytes_per_s: float = number(RATE, 25e9)
    """Bandwidth between host memory and one accelerator, in each direction."""
    price_per_hour: float | None = number(Range(0, 1e9), None)
    """Dollars for one accelerator with its share of the node; None: the price in its accelerator's file."""
    max_nodes: int = number(Range(0, 10**9), 0)
    """0: unlimited."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.own_accelerator is None:
            datafile.check_name("accelerator", self.accelerator, accelerators())
        known = [item.name for item in dataclasses.fields(Constants)]
        for name in self.constants.keys() - known:
            raise ConfigError(datafile.unknown("constant", name, known))

    @property
    def device(self) -> Accelerator:
        return self.own_accelerator or accelerators()[self.accelerator]

    @functools.cached_property  # asked for each bucket of each candidate
    def software(self) -> Constants:
        """The constants, with this cluster's overrides."""
        return self.software_with({})

    def software_with(self, changes: dict[str, float]) -> Constants:
        """Return the constants with `changes`; this cluster's own overrides take precedence."""
        return dataclasses.replace(constants(), **changes | self.constants)

    @property
    def price_source(self) -> str:
        """Source of `hourly_price`; empty: no price is known."""
        if self.price_per_hour is not None:
            return f"{self.name}.toml"
        return self.device.price_source

    @property
    def hourly_price(self) -> float:
        """Dollars an hour for one accelerator."""
        return self.device.price_per_hour if self.price_per_hour is None else self.price_per_hour

    def nodes(self, gpus: int) -> int:
        """Return the number of nodes that `gpus` accelerators fill. Raises ConfigError where the cluster is too
        small."""
        nodes = -(-gpus // self.accelerators_per_node)
        if self.max_nodes and nodes > self.max_nodes:
            raise ConfigError(f"{gpus} accelerators fill {nodes} nodes, but {self.name} has {self.max_nodes}")
        return nodes


@datafile.Cached
def load(name: str) -> Cluster:
    """Load a built-in cluster by name, or a user's by path. Raises ConfigError."""
    path = datafile.find("cluster", name, FOLDER)
    table = _table(path, ())
    if isinstance(described := table.get("accelerator"), dict):
        table["own_accelerator"] = completed(described, path.name)
        table["accelerator"] = path.stem
    return datafile.build(Cluster, {"name": path.stem, "folder": str(path.parent), **table}, str(path.name))


def equipped(cluster: str, name: str) -> Cluster:
    """Load a cluster and replace its accelerators, unless `name` is empty: by a built-in one, or by what a .toml file
    describes under `[accelerator]`, as a cluster's does (`switchml bench kernels` writes such files). Their price
    replaces the cluster's. Raises ConfigError."""
    machine = load(cluster)
    if not name:
        return machine
    if not name.endswith(".toml"):
        datafile.check_name("accelerator", name, accelerators())
        return dataclasses.replace(machine, accelerator=name, own_accelerator=None, price_per_hour=None)
    path = datafile.find("accelerator", name, DATA)
    table = datafile.load(path)
    if table.keys() != {"accelerator"} or not isinstance(table["accelerator"], dict):
        raise ConfigError(f"{path.name}: expected one table, [accelerator], as a cluster's file has it")
    own = datafile.build(Accelerator, completed(table["accelerator"], path.name), f"{path.name}, accelerator")
    return dataclasses.replace(machine, accelerator=path.stem, own_accelerator=own, price_per_hour=None)


def completed(table: dict, where: str) -> dict:
    """Return an accelerator's table, completed from the built-in accelerator that it extends, if any."""
    base = table.pop("extends", None)
    if base is None:
        return table
    datafile.check_name("accelerator", base, accelerators())
    omitted = dataclasses.asdict(accelerators()[base]) | {"source": f"{where}; what it omits: {base}"}
    if "price_per_hour" in table:
        omitted["price_source"] = where
    return datafile.merge(omitted, table)


def _table(path: Path, seen: tuple[Path, ...]) -> dict:
    if path in seen:
        raise ConfigError(f"{path} extends itself, by way of {', '.join(p.name for p in seen[1:]) or 'nothing else'}")
    table = datafile.load(path)
    if "extends" not in table:
        return table
    base = table.pop("extends")
    sibling = path.parent / f"{base}.toml"
    base_path = sibling if sibling.is_file() else datafile.find("cluster", base, FOLDER)
    inherited = _table(base_path, (*seen, path))
    for section in ("inside", "between"):
        if isinstance(table.get(section), dict) and section in inherited:
            table[section].setdefault("source", f"{path.name}; what it omits: {inherited[section]['source']}")
            if (kind := table[section].get("kind", "")) not in ("", inherited[section].get("kind")):
                table[section].setdefault("title", kind)  # the inherited title describes another kind of fabric
    named, described = inherited.get("accelerator"), table.get("accelerator")
    if isinstance(named, str) and isinstance(described, dict):
        described.setdefault("extends", named)
    return datafile.merge(inherited, table)


def clusters() -> list[str]:
    """Return the names of the built-in clusters."""
    return datafile.names(FOLDER)
