"""The experiments of `switchml mininet`: the networks they need and the measurements in each.

An experiment is a list of cases, each a row of the table and a point of the plot. Cases with the same layout share a
network, one after the other; everything runs in one world (emulator/networks/testbed/world.py), which removes
everything when it ends."""

import contextlib
import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from emulator.lab.bench.mininet import machine
from emulator.lab.bench.mininet.machine import FLAT, RING, TREE
from emulator.lab.bench.network import measure as network
from emulator.lab.bench.ranks.reducing import GLOO, SWITCHML
from emulator.lab.bench.ranks.team import measured_aggregator, reducing_context
from emulator.lab.bench.sizes import ITEM_BYTES
from emulator.lab.bench.tally import Tally
from emulator.networks.testbed.fabric import Fabric, P4Node, check_programs
from emulator.networks.testbed.layout import BMV2, BRIDGE, P4, Layout
from emulator.networks.testbed.star import LinkOptions
from emulator.networks.testbed.world import PRIVATE_DIR
from host_agent.pytorch.aggregator import ChildAggregator
from switchml.control.mac import mac_text
from switchml.errors import ConfigError
from switchml.protocol import sizes

BMV2_SLOTS = 32
"""Default slots with simple_switch: the capacity of its ports' queues in packets."""
QUEUED_S = 0.005
"""Seconds of a job's traffic that may wait in queues unless its number of slots is given; more would delay packets
beyond the agents' retransmission timeout."""
MAX_SLOTS = 1024
BURST_S = 0.001
"""Burst of the links' rate limiters, in seconds at the link rate. The links are slow, and a long burst would make the
agents measure round-trip times that the link does not have."""
SLOTS = (2, 4, 8, 16, 32, 64, 128)
LOSSES = (0.0, 0.001, 0.01, 0.02)


@dataclass(frozen=True)
class MininetPlan:
    """Options of `switchml mininet`. `captures`: (link, file). `loss`: loss rate of every link in each direction; None
    where the experiment varies it. `racks` 0: 2 with two-racks, 1 otherwise. `parallel`: as in
    `TrainingSettings.parallel`."""

    experiment: str = "allreduce"
    hosts: int = 4
    aggregator: str = "p4"
    rate_bps: float = 1e8
    delay_s: float = 0.0
    loss: float | None = None
    size_bytes: int = 4 << 20
    payload_bytes: int = 1024
    wire: str = "int32"
    slots: int = 0
    repeats: int = 3
    warmup: int = 1
    racks: int = 0
    steps: int = 100
    parallel: str = "ddp"
    seed: int = 1
    captures: tuple[tuple[str, Path], ...] = ()

    def __post_init__(self) -> None:
        if not self.racks:
            object.__setattr__(self, "racks", 2 if self.experiment == "two-racks" else 1)
        if self.size_bytes < ITEM_BYTES or self.size_bytes % ITEM_BYTES:
            raise ConfigError(f"size of {self.size_bytes} bytes: expected a multiple of {ITEM_BYTES} (float32)")
        if self.experiment in ("slots", "two-racks", "train") and self.aggregator == "none":
            raise ConfigError(f"--experiment {self.experiment} compares an aggregator with Gloo: it needs one")
        if self.racks > 1 and self.aggregator == "software":
            raise ConfigError("racks need switches that aggregate: expected --aggregator p4 or bmv2")
        least, most = {"two-racks": (2, self.hosts), "train": (1, self.hosts)}.get(self.experiment, (1, 1))
        if not least <= self.racks <= most:
            raise ConfigError(
                f"{self.racks} racks for {self.hosts} hosts with --experiment {self.experiment}: "
                f"expected {least} to {most}"
            )
        if self.experiment == "scaling" and self.hosts < 2:
            raise ConfigError("--experiment scaling: expected at least 2 hosts")
        self.layouts()

    @property
    def link(self) -> LinkOptions:
        return LinkOptions(self.rate_bps, self.delay_s, self.loss or 0.0, seed=self.seed, burst_s=BURST_S)

    @property
    def slots_for_the_link(self) -> int:
        """Packets that the links hold in a round trip plus QUEUED_S, rounded up to a power of two."""
        frame_bits = 8 * (self.payload_bytes + sizes.FRAME_OVERHEAD_BYTES - sizes.ETHERNET_BYTES)
        packets = self.rate_bps * (4 * self.delay_s + QUEUED_S) / frame_bits
        return 1 << max(1, math.ceil(math.log2(packets)))

    def layouts(self) -> list[Layout]:
        """All networks that the experiment builds, in order. Raises ConfigError for invalid combinations."""
        return list(dict.fromkeys(case.layout for case in cases(self)))


@dataclass(frozen=True)
class Case:
    """One row: `series` (an aggregator, RING, TREE or FLAT) at `x`, the experiment's variable."""

    series: str
    x: float
    layout: Layout = field(repr=False)
    workers: int
    slots: int = 0

    @property
    def backend(self) -> str:
        return GLOO if self.series == RING else SWITCHML


@dataclass(frozen=True)
class Row:
    """A case and its measurements."""

    case: Case
    tally: Tally
    size_bytes: int

    @property
    def goodput_bps(self) -> float:
        """Bits of the tensor per second, from the median time."""
        return 8 * self.size_bytes / self.tally.median_s

    def bound_s(self, plan: MininetPlan) -> float:
        """Lower bound of the time in seconds that the links set."""
        case = self.case
        return machine.bound_s(plan, case.series, case.workers, case.slots, case.layout.link.loss, case.layout.racks)


def cases(plan: MininetPlan) -> list[Case]:
    """The cases of the experiment, in the table's order."""
    ours = [] if plan.aggregator == "none" else [plan.aggregator]
    if plan.experiment == "scaling":
        counts = sorted({*range(2, plan.hosts, 1 if plan.hosts <= 8 else 4), plan.hosts})
        return [_case(plan, series, n, workers=n) for series in (*ours, RING) for n in counts]
    if plan.experiment == "loss":
        losses = sorted({*LOSSES, plan.loss or 0.0})
        return [_case(plan, name, loss, loss=loss) for name in (*ours, RING) for loss in losses]
    if plan.experiment == "slots":
        return [_case(plan, plan.aggregator, slots, slots=slots) for slots in SLOTS]
    if plan.experiment == "two-racks":
        return [_case(plan, series, plan.racks, racks=plan.racks) for series in (TREE, FLAT, RING)]
    if plan.experiment == "train":
        return [_case(plan, TREE if plan.racks > 1 else plan.aggregator, plan.hosts, racks=plan.racks)]
    return [_case(plan, series, plan.hosts) for series in (*ours, RING)]


def _case(
    plan: MininetPlan,
    series: str,
    x: float,
    workers: int = 0,
    slots: int = 0,
    racks: int = 1,
    loss: float | None = None,
) -> Case:
    kind = BRIDGE if series in (RING, "software") else BMV2 if plan.aggregator == "bmv2" else P4
    program = None if kind == BRIDGE else _program()
    slots = slots or plan.slots or min(plan.slots_for_the_link, BMV2_SLOTS if kind == BMV2 else MAX_SLOTS)
    link = plan.link if loss is None else replace(plan.link, loss=loss)
    return Case(series, x, Layout(plan.hosts, link, kind, racks, program), workers or plan.hosts, slots)


def _program() -> Path:
    from switchml.control.p4.processes import compiled

    return compiled("switchml")


def check(plan: MininetPlan) -> None:
    """Raises ConfigError for captured links that the plan doesn't have, and for required programs that are not
    installed."""
    known = {f"{lower}-{upper}" for layout in plan.layouts() for lower, upper in layout.cables}
    for link, file in plan.captures:
        if link not in known:
            raise ConfigError(f"--pcap {link}: there is no such link; expected one of {', '.join(sorted(known))}")
        if not file.parent.is_dir():
            raise ConfigError(f"--pcap {file}: there is no folder {file.parent}")
    for layout in plan.layouts():
        check_programs(layout.switch, bool(plan.captures))


def run(
    plan: MininetPlan, progress: Callable[[str], None], on_row: Callable[[Row], None] = lambda row: None
) -> list[Row]:
    """Measure all rows; each is also passed to `on_row`. To be called inside a world; `progress` is called with status
    lines."""
    reducing_context((GLOO,))  # imports in the background while networks are built
    rows: list[Row] = []
    captures = list(plan.captures)
    for layout, group in itertools.groupby(cases(plan), key=lambda case: case.layout):
        with built(layout, captures, progress) as fabric:
            for case in group:
                progress(f"{case.series}: {_words(plan, case)}")
                rows.append(Row(case, _measure(plan, case, fabric, progress), plan.size_bytes))
                on_row(rows[-1])
    return rows


def with_sustainable_rate(plan: MininetPlan, progress: Callable[[str], None]) -> MininetPlan:
    """Return the plan with a link rate that this machine's processors can sustain, estimated from a small all-reduce
    with the largest number of hosts. To be called inside a world."""
    reducing_context((GLOO,))
    slowest = max(cases(plan), key=lambda case: (case.series != RING, case.workers))

    link = replace(slowest.layout.link, rate_bps=machine.PROBE_BPS, loss=0.0)
    probe = replace(slowest, layout=replace(slowest.layout, link=link), slots=min(slowest.slots, BMV2_SLOTS))
    small = replace(plan, size_bytes=machine.PROBE_BYTES, repeats=1, warmup=1)
    with built(probe.layout, [], progress) as fabric:
        row = Row(probe, _measure(small, probe, fabric, progress), small.size_bytes)
    return replace(plan, rate_bps=machine.rate_for(row.goodput_bps))


def warnings(plan: MininetPlan, rows: list[Row]) -> list[str]:
    """Warnings about rows that were limited by the processors, excluding rows with configured loss."""
    timed = [
        machine.Timed(
            f"{row.case.series}, {row.case.workers} hosts",
            row.tally.median_s,
            row.bound_s(plan),
            sum(row.tally.cpu_seconds.values()) / sum(row.tally.seconds),
        )
        for row in rows
        if not row.case.layout.link.loss
    ]
    return list(machine.warnings(timed, plan.rate_bps))


def _measure(plan: MininetPlan, case: Case, fabric: Fabric, progress: Callable[[str], None]) -> Tally:
    experiment = network.Experiment(
        workers=case.workers,
        link=case.layout.link,
        size_bytes=plan.size_bytes,
        wire=plan.wire,
        payload_bytes=plan.payload_bytes,
        slots=case.slots,
        backends=(case.backend,),
        repeats=plan.repeats,
        warmup=plan.warmup,
    )
    with aggregator(case.series, fabric) as (control, pids):
        address = control.address if control else None
        return network.repeat(experiment, fabric, address, pids, progress)[case.backend]


@contextlib.contextmanager
def built(layout: Layout, captures: list[tuple[str, Path]], progress: Callable[[str], None]) -> Iterator[Fabric]:
    """Build the network and its captures. Links in `captures` that exist in this network are removed from the list."""
    racks = f" in {layout.racks} racks" if layout.racks > 1 else ""
    progress(f"building {layout.hosts} hosts{racks}, switches: {layout.switch}")
    fabric = Fabric(layout)
    try:
        present = {f"{lower}-{upper}" for lower, upper in layout.cables}
        for capture in [each for each in captures if each[0] in present]:
            fabric.capture(*capture)
            captures.remove(capture)
        yield fabric
    finally:
        fabric.close()


@contextlib.contextmanager
def aggregator(series: str, fabric: Fabric) -> Iterator[tuple[ChildAggregator | None, dict[str, int | None]]]:
    """Start the aggregator of a case. Yields it (None for a ring) and the ids of the processes that do the work, by
    name."""
    nodes = fabric.p4_nodes if fabric.layout.switch != BRIDGE else []
    pids: dict[str, int | None] = {node.name: node.pid for node in nodes}
    pids["links"] = fabric.links_pid
    if series == RING:
        yield None, pids
        return
    if series == "software":
        control = measured_aggregator(fabric.switch_address)
        pids |= {"aggregator": control.pid}
    else:
        control = measured_aggregator(fabric.switch_address, _control(series, fabric))
    try:
        control.address  # noqa: B018 - wait until it is up, or fail here
        yield control, pids
    finally:
        control.stop()


def _control(series: str, fabric: Fabric) -> list[str]:
    """Arguments of `switchml control` for the P4 switches of a fabric."""
    layout, (top, *racks) = fabric.layout, fabric.p4_nodes
    macs = {f"h{host + 1}": mac_text(layout.mac(host)) for host in range(layout.hosts)}
    if series == TREE:
        return ["control", "--tree", str(_tree_file(fabric, macs))]
    for rack in racks:
        _only_forward(rack)
    switch = ["--switch", f"thrift://127.0.0.1:{top.thrift_port}"]
    itself = ["--switch-address", top.address, "--switch-mac", mac_text(top.mac)]
    towards = {name: name if name in top.ports else layout.switch_of(host) for host, name in enumerate(macs)}
    stations = [word for name, mac in macs.items() for word in ("--station", f"{mac}={top.ports[towards[name]]}")]
    return ["control", *switch, *itself, *stations]


def _only_forward(node: P4Node) -> None:
    """Configure a P4 switch as a plain Ethernet switch."""
    from switchml.control.p4.tables import switch_changes
    from switchml.control.p4.thrift import ThriftSwitch

    driver = ThriftSwitch("127.0.0.1", node.thrift_port)
    driver.reset()
    driver.apply(switch_changes(node.address, node.mac, [port.number for port in driver.ports()]))
    driver.close()


def _tree_file(fabric: Fabric, macs: dict[str, str]) -> Path:
    """Write the switches to a file for `switchml control --tree`."""
    switches = [
        {
            "name": node.name,
            "switch": f"thrift://127.0.0.1:{node.thrift_port}",
            "address": node.address,
            "mac": mac_text(node.mac),
            "above": None if node.name == "s1" else "s1",
            "ports": {macs.get(name, name): port for name, port in node.ports.items()},
        }
        for node in fabric.p4_nodes
    ]
    path = PRIVATE_DIR / "tree.json"
    path.write_text(json.dumps({"switches": switches}))
    return path


def _words(plan: MininetPlan, case: Case) -> str:
    return {"loss": f"{case.x:.2%} loss", "slots": f"{case.x} slots"}.get(plan.experiment, f"{case.workers} hosts")
