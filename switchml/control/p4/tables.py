"""The P4 program's (p4/switchml.p4) table entries for a switch and for each job, and the interpretation of its
counters.

All of it is plain data: a driver applies `Changes` to a switch, undoes them when the job ends, and passes the cells
that it read to `job_counters`. Names and orders of fields are those of the program.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from switchml.control.dataplane import Address, JobSpec
from switchml.counters import COUNTERS
from switchml.errors import ConfigError
from switchml.protocol.packet import BITMAP_BYTES, CONTRIBUTION, HEADER_BYTES, SIZE_CODE_OF, UDP_PORT

MAX_WORKERS = 32
"""Maximum ranks of a job: a slot's bitmap has 32 bits."""
FLOOD_GROUP = 1
"""The multicast group of all ports; job groups have higher numbers."""
OUTCOMES = 32
"""Cells of the counter `outcomes` per worker; cell 0 of all counts packets from unknown senders."""
RECEIVED_BEFORE_PAYLOAD = 14 + 20 + 8
"""Header bytes that the switch counts and a socket does not: Ethernet, IPv4 and UDP."""

_HAS_ABOVE, _FROM_BELOW, _FROM_ABOVE = 1, 2, 4  # p4/headers.p4
_PARTIAL = 4  # in the size code of a partial sum
_RETRANSMISSION = 16  # added to an outcome of protocol 2 whose packet had R set
_MOVES = (
    ("accepted",),
    ("accepted", "completed"),
    ("accepted", "completed", "overflow"),
    ("accepted", "completed", "mixed"),
    ("accepted", "completed", "overflow", "mixed"),
    ("answered",),
    ("duplicates",),
    ("duplicates", "waits"),
    ("stale",),
    ("refused_window",),
    ("refused_tag",),
    ("refused_format",),
    ("duplicates",),
)
"""Counters incremented by each outcome; p4/headers.p4 numbers the outcomes in this order."""
_LEFT_OUT = len(_MOVES)
"""Outcome that counts results not sent to the worker, instead of packets received from it."""


@dataclass(frozen=True)
class Entry:
    """A table entry: `key` and `params` in the program's order. All keys are exact."""

    table: str
    key: tuple[int, ...]
    action: str
    params: tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """A multicast group: (replication id, port) of each copy, in order. One node per copy."""

    group: int
    copies: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Cells:
    """Cells `start` to `end - 1` of a counter, to be set to 0."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class Changes:
    """Changes that a driver applies: zero the cells, then create the groups, then add the entries. It undoes groups and
    entries in reverse order."""

    counters: tuple[Cells, ...] = ()
    groups: tuple[Group, ...] = ()
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Host:
    """Attachment of a worker: the switch's port, and the worker's MAC address. `others`: further ports at which it may
    be; a copy is sent to each, which only a host with the MAC address accepts."""

    port: int
    mac: int
    others: tuple[int, ...] = ()


@dataclass(frozen=True)
class RegisterPlace:
    """A job's resources on the switch: `rows(spec)` rows of the registers from `row`, the workers' numbers from
    `worker` (at least 1; also the replication ids), and a multicast group (at least 2).

    `generation` (32 bits, not 0) is a number that no other job has had in these rows since the switch started: contents
    of a row with another generation count as zeros, so that no register has to be written when a job starts."""

    row: int
    worker: int
    group: int
    generation: int


@dataclass(frozen=True)
class Neighbour:
    """Another switch of a job's tree, from the point of view of one: its IPv4 address, and its attachment."""

    address: str
    host: Host


def address_number(address: str) -> int:
    """An IPv4 address as a key."""
    return int(ipaddress.IPv4Address(address))


def address_of(spec: JobSpec, rank: int) -> Address:
    """Address that a rank sends from. Raises ValueError if it is unknown."""
    address = spec.addresses[rank]
    if address is None:
        raise ValueError(f"the address of rank {rank} of job {spec.job_id} is not known")
    return address


def rows(spec: JobSpec) -> int:
    """Number of rows of a job's slots: two versions each."""
    return 2 * spec.slots


def switch_changes(address: str, mac: int, ports: Sequence[int]) -> Changes:
    """Changes that a switch needs before any job: its own address, and the ports that it forwards between."""
    return Changes(
        groups=(Group(FLOOD_GROUP, tuple((0, port) for port in ports)),),
        entries=(Entry("own_addresses", (address_number(address),), "own", (mac,)),),
    )


def loss_changes(port: int, incoming: float, outgoing: float) -> Changes:
    """Configuration of the drop simulator at a port: probabilities (0 to 1) for incoming and outgoing packets."""
    rates = (("in", incoming), ("out", outgoing))
    for direction, probability in rates:
        if not 0 <= probability <= 1:
            raise ConfigError(
                f"a probability of {probability} that packets are lost {direction} port {port}: expected 0 to 1"
            )
    return Changes(
        entries=tuple(
            Entry(f"loss_{direction}", (port,), f"lose_{direction}", (min(round(probability * 2**32), 2**32 - 1),))
            for direction, probability in rates
            if probability
        )
    )


def job_changes(spec: JobSpec, place: RegisterPlace, hosts: Sequence[Host | None], udp_port: int = UDP_PORT) -> Changes:
    """Changes for a job. `hosts[rank]` is None for a rank of protocol 1 whose address is not known yet; once it is,
    `rank_entries` gives the missing entries, and the group is replaced."""
    if spec.workers > MAX_WORKERS:
        raise ConfigError(f"{spec.workers} workers: a P4 switch supports {MAX_WORKERS} per job")
    known = [(rank, host) for rank, host in enumerate(hosts) if spec.addresses[rank] and host is not None]
    first, last = place.worker, place.worker + spec.workers
    copies = tuple((first + rank, port) for rank, host in known for port in (host.port, *host.others))
    return Changes(
        counters=(Cells("outcomes", OUTCOMES * first, OUTCOMES * last),),
        groups=(Group(place.group, copies),),
        entries=tuple(entry for rank, host in known for entry in rank_entries(spec, place, rank, host, udp_port)),
    )


def rank_entries(
    spec: JobSpec, place: RegisterPlace, rank: int, host: Host, udp_port: int = UDP_PORT
) -> tuple[Entry, ...]:
    """The entries of one rank: for its packets, then for the results sent to it."""
    ip, port = address_of(spec, rank)
    address = address_number(ip)
    number, me = place.worker + rank, 1 << rank
    if spec.protocol == 1:
        v1_job = (number, me, spec.workers - 1, place.generation, place.row, spec.slots, place.group)
        return (
            Entry("workers_v1", (address,), "v1_worker", v1_job),
            Entry("receivers", (number,), "v1_receiver", (host.mac, address)),
        )
    job = _v2_job(spec, place, number, me, (1 << spec.workers) - 1)
    return (
        Entry("workers", (address, port, udp_port), "deadline_worker" if spec.has_deadline else "v2_worker", job),
        Entry("receivers", (number,), "receiver", (host.mac, address, port)),
    )


def tree_changes(
    spec: JobSpec,
    place: RegisterPlace,
    hosts: Mapping[int, Host],
    below: Sequence[tuple[Neighbour, Sequence[int]]] = (),
    above: Neighbour | None = None,
    udp_port: int = UDP_PORT,
) -> Changes:
    """Changes of one switch of a tree for a job of protocol 2: docs/protocol.md, section 9.

    `hosts`: the ranks attached to this switch. `below`: the switches that send it partial sums, and the ranks whose
    values each includes. `above`: the switch to which it sends its own partial sums, None at the root. In addition to
    the workers' numbers, the place has one more for each of `below` and for `above`, in this order; and the group after
    its own.
    """
    bits = [sum(1 << rank for rank in ranks) for _, ranks in below]
    all_ranks = sum(bits) + sum(1 << rank for rank in hosts)
    heads = len(hosts) + sum(len(ranks) for _, ranks in below)
    if spec.protocol != 2:
        raise ConfigError("a tree of switches supports only protocol 2; protocol 1 has one switch")
    if spec.has_deadline:
        raise ConfigError("a tree of switches sums over all ranks, and does not support jobs with a deadline")
    if spec.workers > MAX_WORKERS:
        raise ConfigError(f"{spec.workers} workers: a P4 switch supports {MAX_WORKERS} per job")
    if all_ranks.bit_count() != heads or all_ranks >> spec.workers or not all_ranks:
        raise ConfigError(f"ranks at a switch of a tree: expected each of 0 to {spec.workers - 1} at most once")
    down, up = place.group, place.group + 1
    role, group = (_HAS_ABOVE, up) if above else (0, down)

    def sender(tree: int, number: int, me: int, its_group: int) -> tuple[int, ...]:
        *job, size, last = _v2_job(spec, replace(place, group=its_group), number, me, all_ranks)
        return (tree, *job, size | (_PARTIAL if tree & _FROM_BELOW else 0), last)

    entries, copies = [], []
    for rank, host in hosts.items():
        (ip, port), number = address_of(spec, rank), place.worker + rank
        key = (address_number(ip), port, udp_port)
        entries.append(Entry("workers", key, "tree_worker", sender(role, number, 1 << rank, group)))
        entries.append(Entry("receivers", (number,), "receiver", (host.mac, address_number(ip), port)))
        copies.append((number, host.port))
    neighbours = [(switch, role | _FROM_BELOW, me, group) for (switch, _), me in zip(below, bits, strict=True)]
    if above:
        neighbours.append((above, _FROM_ABOVE, 0, down))
    for number, (switch, tree, me, its_group) in enumerate(neighbours, place.worker + spec.workers):
        address = address_number(switch.address)
        job = sender(tree, number, me, its_group)
        entries.append(Entry("switches", (address, udp_port, spec.job_tag), "tree_worker", job))
        behind = ((1 << spec.workers) - 1) ^ all_ranks if switch is above else me
        receiver = switch.host.mac, address, udp_port, behind
        entries.append(Entry("receivers", (number,), "switch_receiver", receiver))
        if switch is not above:
            copies.append((number, switch.host.port))
    groups = [Group(down, tuple(copies))]
    if above:
        groups.append(Group(up, ((number, above.host.port),)))
    first, last = place.worker, place.worker + spec.workers + len(neighbours)
    return Changes((Cells("outcomes", OUTCOMES * first, OUTCOMES * last),), tuple(groups), tuple(entries))


def _v2_job(spec: JobSpec, place: RegisterPlace, number: int, me: int, all_ranks: int) -> tuple[int, ...]:
    """The parameters of v2_worker, for the sender with this number."""
    origin = (spec.isn - 2 * spec.slots) % 2**32
    kind, size = CONTRIBUTION + spec.wire, SIZE_CODE_OF[spec.payload_bytes]
    slots = (place.generation, place.row, spec.slots, origin)
    return number, place.worker, me, all_ranks, *slots, spec.job_tag, kind, size, place.group


def job_counters(spec: JobSpec, cells: Sequence[tuple[int, int]]) -> tuple[dict[str, int], ...]:
    """The ranks' counters, from (packets, bytes) of the cells that `job_changes` zeroed.

    Sent packets are computed from received ones, so a packet dropped by the switch's queues counts as sent, and every
    result as one with data.
    """
    result_bytes, wait_bytes = HEADER_BYTES + spec.payload_bytes, HEADER_BYTES + BITMAP_BYTES
    ranks = []
    for rank in range(spec.workers):
        counted = dict.fromkeys(COUNTERS, 0)
        for outcome in range(OUTCOMES):
            if outcome == _LEFT_OUT:
                continue
            packets, n_bytes = cells[OUTCOMES * rank + outcome]
            counted["received_packets"] += packets
            counted["received_bytes"] += n_bytes - RECEIVED_BEFORE_PAYLOAD * packets
            if outcome >= _RETRANSMISSION:
                counted["retransmissions"] += packets
            if packets:
                for name in _MOVES[outcome % _RETRANSMISSION]:
                    counted[name] += packets
        ranks.append(counted)
    completed = sum(counted["completed"] for counted in ranks)
    for rank, counted in enumerate(ranks):
        results = completed + counted["answered"] - cells[OUTCOMES * rank + _LEFT_OUT][0]
        counted["sent_packets"] = results + counted["waits"]
        counted["sent_bytes"] = result_bytes * results + wait_bytes * counted["waits"]
    return tuple(ranks)


def open_slots(
    spec: JobSpec, place: RegisterPlace, rounds: Sequence[int], marks: Sequence[int]
) -> tuple[int, tuple[int, ...]]:
    """(number of slots with an open round, ranks that these wait for), from the job's rows of the registers `rounds`
    and `marks`. Cells may be signed, as Thrift returns them, or unsigned."""
    is_v1, all_ranks = spec.protocol == 1, (1 << spec.workers) - 1
    slots, missing = set(), 0
    for row, (cell, mark) in enumerate(zip(rounds, marks, strict=True)):
        if mark >> 32 & 0xFFFFFFFF != place.generation:
            continue
        upper, lower = cell >> 32 & 0xFFFFFFFF, cell & 0xFFFFFFFF
        waits_for = (all_ranks & ~lower if upper else 0) if is_v1 else lower
        if waits_for:
            slots.add(row % spec.slots)
            missing |= waits_for
    return len(slots), tuple(rank for rank in range(spec.workers) if missing >> rank & 1)
