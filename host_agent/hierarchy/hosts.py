"""Grouping of ranks by host, and the exchange of their shared memory.

All ranks of a job first join a job without packets (`Membership`), which tells them the host of each rank, and later
which ranks died or left. Then the lowest rank of each host, its leader, creates the memory and passes it to the others
over a Unix socket in the abstract namespace, whose scope is the network namespace.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
import time

from host_agent.calls import FailureState
from host_agent.hierarchy.memory import FAILED, STARTING, HostMemory, create
from host_agent.joining import Options
from host_agent.watch import lost
from switchml.control import client
from switchml.control.membership import CONTROL_ONLY
from switchml.errors import AggregatorLost, ConfigError, JobError, JoinError, PeerLost, RanksDisagree

HIERARCHIES = ("none", "node")
RANKS_SUFFIX = ".ranks"
"""Suffix of the name of the job of all ranks, after the name of the job of the hosts."""
_RETRY_S = 0.01
_TICK_S = 0.25
"""Interval in seconds between checks that the job still runs."""
_NO_ADDRESS = ("", 0)


def resolve(choice: str | None) -> tuple[str, str]:
    """Parse a caller's choice, or else SWITCHML_HIERARCHY: "none", "node" or "node:NAME". Returns (hierarchy, name of
    this host). Raises ConfigError."""
    text = choice or os.environ.get("SWITCHML_HIERARCHY") or "none"
    mode, _, name = text.partition(":")
    if mode not in HIERARCHIES or (name and mode == "none"):
        raise ConfigError(f"hierarchy {text!r}: expected {', '.join(HIERARCHIES)} or node:NAME-OF-THIS-HOST")
    return mode, name


def this_machine() -> str:
    """Identifier that two processes have in common if and only if they can reach each other over loopback."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
    return f"{boot_id}/{os.stat('/proc/self/ns/net').st_ino}"


def host_label(name: str = "") -> str:
    """Human-readable label of this host, with a hash that all its processes have in common: those of the same machine,
    network namespace and user, or those with the same `name`."""
    identity = f"name {name}" if name else f"{this_machine()}/{os.getuid()}"
    return f"{socket.gethostname()[:40]}/{hashlib.blake2b(identity.encode(), digest_size=5).hexdigest()}"


class Membership(FailureState):
    """One rank's membership in the job of all ranks, until PeerLost or AggregatorLost ends it.

    `hosts[h]`: the ranks of host h in ascending order; hosts are in the order of their lowest ranks."""

    def __init__(self, session: client.Session, job: str, rank: int):
        super().__init__()
        self._session, self._job = session, job
        info = session.info
        self.hosts = group_by([peer.host for peer in info.peers])
        self.host = next(number for number, ranks in enumerate(self.hosts) if rank in ranks)
        self.index = self.hosts[self.host].index(rank)
        leader = info.peers[self.hosts[self.host][0]]
        mark = f"{job} {info.job_id} {info.job_tag} {leader.rank} {leader.pid} {leader.host}"
        self._socket_name = f"\0switchml-{hashlib.blake2b(mark.encode(), digest_size=16).hexdigest()}"
        self.departed: dict[int, str] = {}
        """Ranks that have left → the reason."""
        session.events(self._on_event)

    @classmethod
    def join(cls, address: str, options: Options, host: str) -> Membership:
        """Join and wait for all ranks. `host`: a name for this host, or "" to identify it by machine. Raises
        JoinError."""
        session = client.join(
            address,
            job=options.job + RANKS_SUFFIX,
            rank=options.rank,
            world_size=options.world_size,
            data_address=_NO_ADDRESS,
            transport=CONTROL_ONLY,
            host_name=host_label(host),
            timeout_s=options.timeout_s,
            **options.client_options(),
        )
        return cls(session, options.job, options.rank)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of this host; the first is its leader."""
        return self.hosts[self.host]

    def departure(self) -> PeerLost | None:
        """The error of calls that begin after a rank has left; None if no rank has."""
        return self.lost(tuple(self.departed)) if self.departed else None

    def lost(self, ranks: tuple[int, ...]) -> PeerLost:
        """The error of calls that need these ranks."""
        return lost(self._job, ranks, "; ".join(self.departed[rank] for rank in ranks if rank in self.departed))

    def share_memory(self, deadline: float) -> HostMemory:
        """Return the memory of this host's ranks, once all of them have it. Raises JoinError."""
        if self.index:
            fd = self._receive_memory(deadline)
        else:
            try:
                fd = create(len(self.ranks))
                self._hand_out(fd, deadline)
            except OSError as error:
                raise JoinError(f"job '{self._job}': no memory for the ranks of this host: {error}") from None
        try:
            return HostMemory(fd, self.index, len(self.ranks))
        finally:
            os.close(fd)

    def await_leader(self, memory: HostMemory, deadline: float) -> None:
        """Wait until the leader of this host has joined the job of the hosts. Raises the leader's error."""
        while memory.state == STARTING:
            heard = memory.rings()
            if memory.state == STARTING:
                memory.wait(heard, _TICK_S)
            try:
                self.check(deadline + 1.0, f"rank {self.ranks[0]} of this host did not join")
            except JoinError:
                if memory.state == STARTING:  # a leader that fails announces its error before it leaves
                    raise
        if memory.state == FAILED:
            raise memory.failure()

    def leave(self) -> None:
        self._session.leave()

    def check(self, deadline: float, awaited: str) -> None:
        """While joining: check that the job still runs and the deadline has not passed. Raises JoinError."""
        if self.error is not None:
            raise JoinError(f"while this rank joined: {self.error}")
        if self.departed:
            raise JoinError(f"while this rank joined: {self.departure()}")
        if time.monotonic() >= deadline:
            raise JoinError(f"job '{self._job}': {awaited} within the time limit")

    def _hand_out(self, fd: int, deadline: float) -> None:
        missing = set(self.ranks[1:])
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self._socket_name)
            listener.listen(len(self.ranks))
            listener.settimeout(10 * _RETRY_S)
            while missing:
                self.check(deadline, f"ranks {sorted(missing)} of this host did not fetch its memory")
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                with connection, contextlib.suppress(OSError):  # if that rank is lost, `check` will raise
                    if _user_of(connection) == os.getuid():
                        connection.settimeout(max(deadline - time.monotonic(), _RETRY_S))
                        rank = int.from_bytes(connection.recv(4), "little")
                        socket.send_fds(connection, [b"memory"], [fd])
                        missing.discard(rank)

    def _receive_memory(self, deadline: float) -> int:
        while True:
            self.check(deadline, f"rank {self.ranks[0]} of this host did not hand out its memory")
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                try:
                    connection.connect(self._socket_name)
                    if _user_of(connection) != os.getuid():
                        raise ConfigError(f"job '{self._job}': its leader on this host belongs to another user")
                    connection.settimeout(max(deadline - time.monotonic(), _RETRY_S))
                    connection.send(self.ranks[self.index].to_bytes(4, "little"))
                    _, fds, _, _ = socket.recv_fds(connection, 64, 1)
                    if fds:
                        return fds[0]
                except OSError:
                    pass  # not listening yet, or lost: `check` will raise
            time.sleep(_RETRY_S)

    def _on_event(self, event: client.SessionEvent) -> None:
        if isinstance(event, client.PeerLeft):
            self.departed |= dict.fromkeys(event.ranks, event.reason)
            return
        error: JobError
        if isinstance(event, client.AggregatorLost):
            error = AggregatorLost(f"job '{self._job}': aggregator lost: {event.reason}")
        elif isinstance(event, client.PeerLost):
            error = lost(self._job, event.ranks, event.reason)
        else:  # only agents that send packets report calls
            error = RanksDisagree(f"job '{self._job}': {event.reason}")
        self.fail(error)


def group_by(labels: list[str]) -> tuple[tuple[int, ...], ...]:
    """Indices of equal labels, in the order in which labels first occur."""
    places: dict[str, list[int]] = {}
    for place, label in enumerate(labels):
        places.setdefault(label, []).append(place)
    return tuple(tuple(each) for each in places.values())


def _user_of(connection: socket.socket) -> int:
    """User ID of the process at the other end of a Unix socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
