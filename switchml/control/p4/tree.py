"""The P4 data plane of several switches: a tree of them in which each sums its inputs from below (docs/protocol.md,
section 9).

A file lists the switches, their connections and the ports of the ranks' hosts, see `read_tree`. A job has a place on
every switch with ranks of it below. Ranks are reached through interfaces of their own; they send to the switch that
they are attached to. If a switch does not answer or was restarted, the jobs on the tree fail: their sums exist nowhere
else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from switchml import logs
from switchml.control.dataplane import Address, JobCounters, JobSpec, Link
from switchml.control.mac import mac_text, parse_mac
from switchml.control.p4 import base as p4_base
from switchml.control.p4 import tables
from switchml.control.p4.allocator import PlaceAllocator
from switchml.control.p4.driver import Driver, Unreachable
from switchml.control.p4.tables import Changes, Host, Neighbour, RegisterPlace
from switchml.control.p4.thrift import ThriftSwitch, parse_thrift
from switchml.errors import ConfigError, ControlError
from switchml.files import read_json
from switchml.protocol.packet import UDP_PORT

log = logs.of("switchml.control")


@dataclass
class TreeSwitch:
    """A switch of a tree. `ports`: port of each neighboring switch by name; `stations`: port of each host by MAC
    address."""

    name: str
    driver: Driver
    address: str
    mac: int
    above: str | None
    ports: dict[str, int]
    stations: dict[int, int]
    allocator: PlaceAllocator = field(init=False)
    base: Changes = field(default_factory=Changes)

    def __post_init__(self) -> None:
        self.allocator = PlaceAllocator(self.driver.rows)


@dataclass(kw_only=True)
class _Job(p4_base.Job):
    at: dict[int, str]
    """Switch of each rank."""
    placed: list[tuple[TreeSwitch, RegisterPlace, Changes]] = field(default_factory=list)


def read_tree(path: Path) -> list[TreeSwitch]:
    """Connect to the switches listed in a JSON file; returns them with the root first.

        {"switches": [{"name": "s1", "switch": "thrift://127.0.0.1:9090", "address": "10.0.255.1",
                       "mac": "02:00:00:00:ff:01", "ports": {"r1": 1, "r2": 2}},
                      {"name": "r1", …, "above": "s1", "ports": {"s1": 3, "02:00:00:00:00:01": 1, …}}, …]}

    `ports` has the port that leads to each neighboring switch, by name, and to each host, by MAC address. Raises
    ConfigError for a file of another form, Unreachable if a switch does not answer.
    """
    document = read_json(path)
    try:
        listed = document["switches"]
        known = {switch["name"]: switch for switch in listed}
        order = [name for name, switch in known.items() if not switch.get("above")]
        for name in order:
            order += [other for other, switch in known.items() if switch.get("above") == name]
        for switch in listed:
            above = switch.get("above")
            if above and not (above in switch["ports"] and switch["name"] in known[above]["ports"]):
                raise ConfigError(f"{path}: no port leads from {switch['name']} to {above} and back")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: expected switches with name, switch, address, mac and ports: {error!r}") from None
    if len(order) != len(listed) or sum(not switch.get("above") for switch in listed) != 1:
        raise ConfigError(f"{path}: expected one switch with none above it, and all others below it")
    return [_connect(known[name], known) for name in order]


def _connect(listed: dict[str, Any], known: dict[str, Any]) -> TreeSwitch:
    ports = {name: int(port) for name, port in listed["ports"].items() if name in known}
    stations = {parse_mac(mac): int(port) for mac, port in listed["ports"].items() if mac not in known and ":" in mac}
    driver = ThriftSwitch(*parse_thrift(listed["switch"]))
    mac = parse_mac(listed["mac"])
    return TreeSwitch(listed["name"], driver, listed["address"], mac, listed.get("above"), ports, stations)


class P4TreeDataplane(p4_base.P4Base[_Job]):
    """Implements `Dataplane` on the switches of `read_tree`. `window_bytes`: bytes of one rank's packets that the path
    to a switch can buffer. Methods may be called from any thread."""

    transports = ("udp", "raw")
    padded = True
    dense_only = False

    def __init__(self, switches: Sequence[TreeSwitch], window_bytes: int = 0):
        root = switches[0]
        super().__init__([switch.driver for switch in switches], root.address, root.mac, window_bytes)
        self.collectives = all(switch.driver.collectives for switch in switches)
        self.only_sums = any(switch.driver.only_sums for switch in switches)
        self._switches = list(switches)
        self._named = {switch.name: switch for switch in switches}
        for switch in switches:
            switch.driver.reset()
            ports = [port.number for port in switch.driver.ports() or ()]
            switch.base = tables.switch_changes(switch.address, switch.mac, ports)
            switch.driver.apply(switch.base)

    # Dataplane: jobs

    def start_job(self, spec: JobSpec) -> None:
        """Start a job. Raises ConfigError if a rank is at no switch, there is no room, or a switch does not answer."""
        with self._lock:
            if any(job.spec.job_tag == spec.job_tag for job in self._jobs.values()):
                raise ConfigError(f"job {spec.job_id} has the tag of another job on this tree; start it again")
            job = _Job(spec, at={rank: self._switch_of(spec, rank) for rank in range(spec.workers)})
            with self._adding(job):
                for switch in self._switches:
                    self._place(job, switch)

    def set_address(self, job_id: int, rank: int, address: Address, mac: int = 0) -> None:
        """Raises ConfigError: `start_job` refuses ranks of protocol 1, for which this is meant."""
        raise ConfigError("a tree of switches supports only protocol 2")

    # Dataplane: paths to it

    def address_for(self, sender: Address) -> Address:
        with self._lock:
            for job in self._jobs.values():
                if sender in job.spec.addresses:
                    return self._named[job.at[job.spec.addresses.index(sender)]].address, UDP_PORT
        return self.address

    def link(self, job_id: int, rank: int) -> Link | None:
        with self._lock:
            job = self._jobs[job_id]
            return Link("", job.spec.macs[rank], self._named[job.at[rank]].mac)

    # Dataplane: counters

    def counters(self, job_id: int) -> JobCounters:
        """Counters of a job. Raises KeyError for an unknown job. A rank's counters are those of its own switch: it
        completes rounds of that switch's sum."""
        with self._lock:
            job = self._jobs[job_id]
            cells: list[tuple[int, int]] = []
            for rank in range(job.spec.workers):
                switch, place, _ = next(placed for placed in job.placed if placed[0].name == job.at[rank])
                first = tables.OUTCOMES * (place.worker + rank)
                try:
                    cells += switch.driver.read_counter("outcomes", first, first + tables.OUTCOMES)
                except (Unreachable, ControlError) as error:
                    log.debug("counters of job %d: %s", job_id, error)
                    cells += [(0, 0)] * tables.OUTCOMES
            return JobCounters(tables.job_counters(job.spec, cells), 0)

    # Internal

    def _switch_of(self, spec: JobSpec, rank: int) -> str:
        mac = spec.macs[rank] if spec.macs else 0
        for switch in self._switches:
            if mac in switch.stations:
                return switch.name
        raise ConfigError(f"rank {rank} ({mac_text(mac)}) is at no port that the tree's file names")

    def _ranks_below(self, job: _Job, name: str) -> list[int]:
        """Ranks at a switch and at those below it."""
        here = [rank for rank, switch in job.at.items() if switch == name]
        return here + [
            rank for switch in self._switches if switch.above == name for rank in self._ranks_below(job, switch.name)
        ]

    def _place(self, job: _Job, switch: TreeSwitch) -> None:
        if not self._ranks_below(job, switch.name):
            return
        spec = job.spec
        hosts = {
            rank: Host(switch.stations[spec.macs[rank]], spec.macs[rank])
            for rank, name in job.at.items()
            if name == switch.name
        }
        below = [
            (self._seen_from(switch, other), ranks)
            for other in self._switches
            if other.above == switch.name and (ranks := self._ranks_below(job, other.name))
        ]
        above = self._seen_from(switch, self._named[switch.above]) if switch.above else None
        place = switch.allocator.take(replace(spec, workers=spec.workers + len(below) + 1))
        place = replace(place, group=2 * place.group)  # groups are allocated in pairs: this one and the next
        job.placed.append((switch, place, Changes()))  # listed first so that it is always released
        changes = tables.tree_changes(spec, place, hosts, below, above)
        job.placed[-1] = switch, place, changes
        try:
            switch.driver.apply(changes)
        except ControlError as error:
            raise ConfigError(f"switch {switch.name}: {error}") from error

    def _seen_from(self, switch: TreeSwitch, other: TreeSwitch) -> Neighbour:
        return Neighbour(other.address, Host(switch.ports[other.name], other.mac))

    def _remove(self, job: _Job) -> None:
        for switch, _, changes in job.placed:
            try:
                switch.driver.undo(changes)
            except (Unreachable, ControlError) as error:
                log.debug("job %d at %s: %s", job.spec.job_id, switch.name, error)
            switch.allocator.release(job.spec.job_id)

    def _clear(self) -> None:
        for switch in self._switches:
            self._undo_base(switch.driver, switch.base)

    def _check_switches(self) -> None:
        for switch in self._switches:
            if lost := self._fault_of(switch):
                self._fail_all(lost)

    def _fault_of(self, switch: TreeSwitch) -> str:
        try:
            if switch.driver.has_state():
                return ""
            switch.driver.reset()
            switch.driver.apply(switch.base)
            return f"switch {switch.name} was restarted and has lost the job's slots"
        except (Unreachable, ControlError) as error:
            try:
                switch.driver.reconnect()
            except (Unreachable, ControlError, ConfigError):
                return f"switch {switch.name}: {error}"
            return ""
