"""The P4 data plane: jobs on a switch that runs p4/switchml.p4, through a driver (p4/driver.py).

While a job runs, it has entries in the switch, a multicast group, and a UDP port for each rank that reaches the switch
that way. A thread monitors the switch. A restart loses the slots of all jobs, whose sums exist nowhere else: those jobs
fail, with a reason, and the switch is reprogrammed for later ones.
"""

import ipaddress
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from switchml import logs
from switchml.control.allocation import DATAGRAM_MEMORY_BYTES
from switchml.control.dataplane import Address, JobCounters, JobSpec, Link
from switchml.control.mac import mac_text
from switchml.control.p4 import base as p4_base
from switchml.control.p4 import tables
from switchml.control.p4.allocator import PlaceAllocator
from switchml.control.p4.driver import UDP_PREFIX, AttachedPort, Driver, Gone, Unreachable
from switchml.control.p4.tables import Changes, Host, RegisterPlace
from switchml.errors import ConfigError, ControlError
from switchml.net import sockets

log = logs.of("switchml.control")

SWITCH_ADDRESS, SWITCH_MAC = "10.0.0.254", 0x02_00_00_00_00_FE
"""The switch's default addresses as a host."""
RANK_MACS = 0x02_5A_00_00_00_00
"""MAC addresses of ranks without an interface: these bits, and the worker's number on the switch."""
SILENCE_LIMIT_S = 3.0
"""Seconds that a switch may be silent before its jobs fail."""
STALL_S = 1.0
MAX_PORT = 510
STATIONS = 4096
SOCKET_BYTES = 16 << 20
"""Receive buffer that switchml's switch requests for each UDP port."""
BMV2_WINDOW_BYTES = 32 * DATAGRAM_MEMORY_BYTES
"""simple_switch reads its ports through libpcap, whose small ring loses packets that arrive in bursts of more than
about 32."""
_LOCATE_TRIES, _LOCATE_PAUSE_S = 10, 0.05


@dataclass(kw_only=True)
class _Job(p4_base.Job):
    """A job on the switch. `links[rank]` is None for ranks on ports that existed before."""

    place: RegisterPlace
    hosts: list[Host | None]
    changes: list[Changes] = field(default_factory=list)
    links: list[Link | None]
    own_ports: list[int] = field(default_factory=list)
    lent_ports: list[int] = field(default_factory=list)
    cells: list[tuple[int, int]] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    moved_at: float = 0.0
    stalled: tuple[int, tuple[int, ...]] | None = None
    """(slots with an open round, the ranks that they wait for), once there was no progress for STALL_S."""


class P4Dataplane(p4_base.P4Base[_Job]):
    """Implements `Dataplane` on the switch behind `driver`, which is connected.

    `address`, `mac`: the switch's own. `links`: port → `packet:INTERFACE` or `udp:ADDRESS:PORT`, ports that may be lent
    to ranks for their frames, in addition to the UDP ports that the switch lists. `ports`: its ports, if it does not
    list them. `stations`: MAC address → port of hosts; others are looked up in the addresses that the switch has
    learned. `udp_bind`: the address of the switch's machine at which it opens UDP ports for ranks; "" if it has no such
    ports. `loss_rate`: loss probability of the switch's drop simulator at each rank's port, in each direction.
    `window_bytes`: bytes of one rank's packets that the path to the switch can buffer. Methods may be called from any
    thread.
    """

    padded = True
    dense_only = False

    def __init__(
        self,
        driver: Driver,
        *,
        address: str = SWITCH_ADDRESS,
        mac: int = SWITCH_MAC,
        links: dict[int, str] | None = None,
        ports: Sequence[int] = (),
        stations: dict[int, int] | None = None,
        udp_bind: str = "127.0.0.1",
        loss_rate: float = 0.0,
        window_bytes: int = 0,
    ):
        super().__init__([driver], address, mac, window_bytes)
        self._driver = driver
        self.collectives, self.only_sums = driver.collectives, driver.only_sums
        self.ends_early = driver.ends_early
        self._links = dict(links or {})
        self._known_ports = tuple(ports)
        self._stations = dict(stations or {})
        self._udp_bind = udp_bind
        self._loss_rate = loss_rate
        self._allocator = PlaceAllocator(driver.rows)
        self._left_behind: list[_Job] = []
        self._silent_since: float | None = None
        self._prepare()
        self._links |= {port.number: port.interface for port in self._ports if port.is_udp}
        self._free_links = sorted(self._links)
        has_interfaces = any(not port.is_udp and port.number not in self._links for port in self._ports)
        makes_frames = bool(self._links or udp_bind)
        self.transports = (("udp", "raw") if has_interfaces else ()) + (("frames",) if makes_frames else ())

    # Dataplane: jobs

    def start_job(self, spec: JobSpec) -> None:
        """Start a job. Raises ConfigError if there is no room, an address is in use, or the switch does not answer."""
        with self._lock:
            self._check_job(spec)
            nowhere = [None] * spec.workers
            job = _Job(spec, place=self._allocator.take(spec), hosts=list(nowhere), links=list(nowhere))
            with self._adding(job):
                for rank in range(spec.workers):
                    if spec.addresses[rank] is not None:
                        job.hosts[rank] = self._attach(job, rank, spec.macs[rank] if spec.macs else 0)
                self._apply(job, tables.job_changes(spec, job.place, job.hosts))

    def set_address(self, job_id: int, rank: int, address: Address, mac: int = 0) -> None:
        """Set a rank's address. Raises ConfigError as `start_job` does, KeyError for an unknown job."""
        with self._lock:
            job = self._jobs[job_id]
            addresses = list(job.spec.addresses)
            addresses[rank] = address
            spec = JobSpec(**{**vars(job.spec), "addresses": tuple(addresses)})
            self._check_job(spec, but=job)
            job.spec = spec
            try:
                job.hosts[rank] = self._attach(job, rank, mac)
                for changes in job.changes:
                    self._driver.undo(changes)
                job.changes.clear()
                all_of_it = tables.job_changes(spec, job.place, job.hosts)
                self._apply(job, Changes(groups=all_of_it.groups, entries=all_of_it.entries))
            except (Unreachable, ControlError) as error:
                raise ConfigError(f"rank {rank} of job {job_id} can't be reached: {error}") from error

    # Dataplane: paths to it

    def address_for(self, sender: Address) -> Address:
        return self.address

    def link(self, job_id: int, rank: int) -> Link | None:
        with self._lock:
            return self._jobs[job_id].links[rank]

    # Dataplane: counters

    def counters(self, job_id: int) -> JobCounters:
        """Counters of a job. Raises KeyError for an unknown job. While packets flow, the slots in use are estimated as
        the incomplete rounds of the rank that is furthest ahead; when there was no progress for a second, the switch's
        registers are read."""
        with self._lock:
            job = self._jobs[job_id]
            now = time.monotonic()
            job.cells = self._read_cells(job)
            ranks = tables.job_counters(job.spec, job.cells)
            accepted = [rank["accepted"] for rank in ranks]  # retransmissions do not count as progress
            if accepted != job.accepted:
                job.accepted, job.moved_at, job.stalled = accepted, now, None
            in_use = _open_rounds(ranks)
            if not in_use or now - job.moved_at < STALL_S:
                return JobCounters(ranks, in_use)
            if job.stalled is None:
                job.stalled = self._read_slots(job) or (in_use, ())
            return JobCounters(ranks, *job.stalled)

    def _read_cells(self, job: _Job) -> list[tuple[int, int]]:
        first = tables.OUTCOMES * job.place.worker
        if self._silent_since is None and not job.failure:
            try:
                return list(self._driver.read_counter("outcomes", first, first + tables.OUTCOMES * job.spec.workers))
            except (Unreachable, ControlError) as error:
                log.debug("counters of job %d: %s", job.spec.job_id, error)
        return job.cells or [(0, 0)] * tables.OUTCOMES * job.spec.workers

    def _read_slots(self, job: _Job) -> tuple[int, tuple[int, ...]] | None:
        first, last = job.place.row, job.place.row + 2 * job.spec.slots
        try:
            rounds, marks = (self._driver.read_register(name, first, last) for name in ("rounds", "marks"))
        except (Unreachable, ControlError):
            return None
        return None if rounds is None or marks is None else tables.open_slots(job.spec, job.place, rounds, marks)

    # Internal: programming

    def _prepare(self) -> None:
        """Program the entries that a switch needs before any job. Raises Unreachable, ControlError."""
        self._driver.reset()
        ports = self._driver.ports()
        if ports is None:
            ports = [AttachedPort(number, self._links.get(number, "")) for number in {*self._links, *self._known_ports}]
        self._ports: list[AttachedPort] = sorted(ports)
        static = [port.number for port in self._ports]
        base = tables.switch_changes(self.address[0], self.mac, [n for n in static if n not in self._links])
        lossy = [tables.loss_changes(port, self._loss_rate, self._loss_rate) for port in static]
        self._base = Changes(
            groups=base.groups, entries=base.entries + tuple(entry for changes in lossy for entry in changes.entries)
        )
        self._driver.apply(self._base)

    def _clear(self) -> None:
        if self._silent_since is None:
            self._undo_base(self._driver, self._base)

    def _check_job(self, spec: JobSpec, but: _Job | None = None) -> None:
        if self._silent_since is not None:
            raise ConfigError(f"the switch at {self.where} does not answer")
        if spec.workers > tables.MAX_WORKERS:
            raise ConfigError(f"{spec.workers} workers: a P4 switch supports {tables.MAX_WORKERS} per job")
        if spec.payload_bytes not in self._driver.payloads:
            raise ConfigError(
                f"payload of {spec.payload_bytes} bytes: the switch's program takes "
                f"{' and '.join(map(str, self._driver.payloads))}"
            )
        used = {
            address: (rank, job.spec.job_id)
            for job in self._jobs.values()
            if job is not but
            for rank, address in enumerate(job.spec.addresses)
            if address is not None
        }
        for rank, address in enumerate(spec.addresses):
            if address is None:
                continue
            if address in spec.addresses[:rank]:
                first = spec.addresses.index(address)
                raise ConfigError(f"address {address[0]}:{address[1]} is both rank {first}'s and rank {rank}'s")
            if address in used:
                other, job_id = used[address]
                raise ConfigError(
                    f"address {address[0]}:{address[1]} of rank {rank} belongs to rank {other} of job {job_id}"
                )

    def _apply(self, job: _Job, changes: Changes) -> None:
        job.changes.append(changes)
        self._driver.apply(changes)

    def _remove(self, job: _Job) -> None:
        """Remove all of a job; from a switch that does not answer, as soon as it answers again."""
        try:
            self._undo(job)
        except (Unreachable, ControlError) as error:
            log.debug("job %d: %s", job.spec.job_id, error)
            self._left_behind.append(job)
        self._free_links = sorted([*self._free_links, *job.lent_ports])
        self._allocator.release(job.spec.job_id)

    def _undo(self, job: _Job) -> None:
        for changes in reversed(job.changes):
            self._driver.undo(changes)
        for port in job.own_ports:
            self._driver.remove_port(port)

    # Internal: attachment of ranks

    def _attach(self, job: _Job, rank: int, mac: int) -> Host:
        """Determine where a rank is attached, or attach it. Raises ConfigError if that is unknown."""
        transport = (job.spec.transports[rank] if job.spec.transports else "") or "udp"
        if transport == "frames":
            return self._lend(job, rank)
        ip, _ = tables.address_of(job.spec, rank)
        if transport not in ("udp", "raw"):
            transports = ", ".join(self.transports)
            raise ConfigError(
                f"rank {rank} uses the transport {transport}; the switch at {self.where} is reached by {transports}"
            )
        if not mac or ipaddress.IPv4Address(ip).is_loopback:
            raise ConfigError(
                f"rank {rank} sends from {ip}, which is on no port of the switch at {self.where}; "
                f"it is reached by {', '.join(self.transports)} (SWITCHML_TRANSPORT)"
            )
        job.links[rank] = Link("", mac, self.mac)
        port = self._stations.get(mac)
        return self._locate(rank, mac) if port is None else Host(port, mac)

    def _lend(self, job: _Job, rank: int) -> Host:
        """Lend a port to a rank that builds its own frames: one of `links`, or a new UDP port of switchml's switch."""
        mac = RANK_MACS + job.place.worker + rank
        if self._free_links:
            port = self._free_links.pop(0)
            job.lent_ports.append(port)
            job.links[rank] = Link(self._links[port], mac, self.mac)
            return Host(port, mac)
        if not self._udp_bind:
            raise ConfigError(f"no port of the switch is free for rank {rank}: all {len(self._links)} are in use")
        used = {port.number for port in self._ports} | {n for other in self._jobs.values() for n in other.own_ports}
        port = next((n for n in range(MAX_PORT + 1) if n not in used and n not in job.own_ports), -1)
        if port < 0:
            raise ConfigError(f"no port of the switch is free for rank {rank}: all {MAX_PORT + 1} are in use")
        ip, udp_port = tables.address_of(job.spec, rank)
        for tries_left in (2, 1, 0):
            here = f"{self._udp_bind}:{_free_udp_port(self._udp_bind)}"
            try:
                self._driver.add_port(port, f"{UDP_PREFIX}{here},{ip}:{udp_port}")
                break
            except ControlError as error:  # another process may have bound the UDP port
                if not tries_left:
                    raise ConfigError(f"the switch can't open a UDP port at {here} for rank {rank}: {error}") from error
        job.own_ports.append(port)
        job.links[rank] = Link(f"{UDP_PREFIX}{here}", mac, self.mac)
        if self._loss_rate:
            self._apply(job, tables.loss_changes(port, self._loss_rate, self._loss_rate))
        return Host(port, mac)

    def _locate(self, rank: int, mac: int) -> Host:
        """The port at which the switch last saw a MAC address: ranks send a broadcast before they join. If another host
        has taken the address's cell since, returns all ports: slower, but always correct."""
        cell = crc16(mac.to_bytes(6, "big")) % STATIONS
        for _ in range(_LOCATE_TRIES):
            cells = self._driver.read_register("stations", cell, cell + 1)
            if cells is None:
                break
            if cells[0] >> 48 and cells[0] & 0xFFFF_FFFF_FFFF == mac:
                return Host((cells[0] >> 48) - 1, mac)
            time.sleep(_LOCATE_PAUSE_S)
        first, *others = [port.number for port in self._ports if port.number not in self._links] or [-1]
        if cells and cells[0] >> 48 and first >= 0:
            other = mac_text(cells[0] & 0xFFFF_FFFF_FFFF)
            log.warning("the switch can't tell %s from %s: rank %d gets its results at all ports; name its own with "
                        "--station %s=PORT", mac_text(mac), other, rank, mac_text(mac))  # fmt: skip
            return Host(first, mac, tuple(others))
        raise ConfigError(
            f"the switch at {self.where} has seen nothing from rank {rank} ({mac_text(mac)}): is it attached to one of "
            f"its ports? If so, name the port: --station {mac_text(mac)}=PORT"
        )

    # Internal: monitoring

    def _check_switches(self) -> None:
        now = time.monotonic()
        try:
            if self._silent_since is not None:
                self._driver.reconnect()
            if self._driver.has_state():
                lost = ""
                while self._left_behind:
                    self._undo(self._left_behind[-1])
                    self._left_behind.pop()
            else:
                self._left_behind.clear()
                lost = f"the switch at {self.where} was restarted and has lost the job's slots"
                self._prepare()
            if self._silent_since is not None or lost:
                log.warning("the switch at %s answers%s", self.where, "; it was restarted" if lost else " again")
            self._silent_since = None
        except (Unreachable, ControlError, ConfigError) as error:
            if self._silent_since is None:
                log.warning("%s", error)
                self._silent_since = now
            silent_s = now - self._silent_since
            lost = f"{error} (for {silent_s:.0f} s)" if silent_s >= SILENCE_LIMIT_S else ""
            if isinstance(error, Gone):
                lost = f"{error}; it has ended, and lost the job's slots"
        if lost:
            self._fail_all(lost)


def udp_window_bytes() -> int:
    """Bytes that a UDP port of switchml's switch can buffer, if the switch may request the same size as this
    process."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return sockets.grow_buffers(probe, SOCKET_BYTES)


def _open_rounds(ranks: Sequence[dict[str, int]]) -> int:
    """Number of incomplete rounds that a rank has contributed to, for the rank that is furthest ahead."""
    completed = sum(rank["completed"] for rank in ranks)
    return max(max(rank["accepted"] for rank in ranks) - completed, 0)


def _free_udp_port(address: str) -> int:
    """A UDP port that is currently free; for another machine's address, one that is free on this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            probe.bind(("", 0))
        return int(probe.getsockname()[1])


def crc16(data: bytes) -> int:
    """CRC-16/ARC, which is v1model's crc16."""
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0xA001 if value & 1 else 0)
    return value
