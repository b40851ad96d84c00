"""Rendezvous of a group's ranks at an aggregator: rank 0 decides, and informs the others through the group's store.

Rank 0 uses the aggregator of SWITCHML_AGGREGATOR, else that of this process's default group, else it starts one. It
also sends the job's name, which is random, so that concurrent jobs on one aggregator never collide.

All ranks of a job have a secret. If they share one already, it is not sent, but seals the messages: the user's
(SWITCHML_SECRET, SWITCHML_SECRET_FILE), or in a sub-group the default group's. Otherwise rank 0 generates one, and the
store exposes it to everybody who can connect to it.
"""

import atexit
import contextlib
import json
import logging
import os
import resource
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType

from torch._C._distributed_c10d import Store

from host_agent.failover import is_there, split_standbys
from host_agent.hierarchy.hosts import this_machine
from host_agent.pytorch.aggregator import LIMITS, ChildAggregator, options_for
from host_agent.pytorch.store import ADVICE, POLL_S, asking, host_of, read, read_fields
from host_agent.reach import address_towards
from host_agent.v1.joining import protocol_of
from switchml.control import client
from switchml.control.channel import split_address
from switchml.control.client import reach_timeout_s
from switchml.control.secret import is_beyond_loopback, open_secret
from switchml.control.v1 import client as v1
from switchml.errors import ConfigError, JoinError, SwitchMLError
from switchml.text import plain

log = logging.getLogger("host_agent")

FAREWELL_S = 5.0
"""Seconds that a rank that is done waits for the others to be done too."""
LONGEST_JOB_NAME = 180
"""The aggregator accepts 200 characters; agents append suffixes."""
LONGEST_ERROR = 2000
"""Maximum characters of an error that rank 0 sends to the others."""
SHORT_RUN_ID = 12
"""Characters of torchrun's run id, which may be a UUID."""


class ToldByAnother(JoinError):
    """An error that another rank has printed on its own stderr."""


def without_traceback() -> None:
    """Make an uncaught JoinError print one line on stderr instead of a traceback; nothing if rank 0 has printed it."""
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, JoinError):
            usual(kind, error, trace)
        elif not isinstance(error, ToldByAnother):
            print(plain(f"switchml: error: {error}"), file=sys.stderr, flush=True)

    sys.excepthook = hook


@dataclass(frozen=True)
class Invitation:
    """Data that a rank needs to join: the aggregator's control address HOST:PORT, the job and its secret."""

    address: str
    job: str
    secret: str


class _OwnAggregator:
    """The aggregator that this process has started, if any. All its groups share it. It is kept for later groups until
    the process ends, since a start takes seconds; one with other settings takes its place once it has no groups."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: ChildAggregator | None = None
        self._settings: tuple[object, ...] = ()
        self._users = 0

    def acquire(self, bind: str) -> ChildAggregator:
        """Start the aggregator unless it runs. Each call requires a call of `release`."""
        served = ("--v1",) if protocol_of(None).version == "v1" else ()
        options = (*LIMITS, *options_for(os.environ.get("SWITCHML_TRANSPORT", "")), *served)
        inherited = sorted(item for item in os.environ.items() if item[0].startswith("SWITCHML_"))
        with self._lock:
            if self._child is not None and (
                self._child.returncode is not None
                or self._users == 0
                and self._settings != (os.getpid(), bind, options, inherited)
            ):
                self._stop()
            if self._child is None:
                self._child = ChildAggregator(bind, options)
                self._settings = os.getpid(), bind, options, inherited
                atexit.register(self._at_exit)
            self._users += 1
            return self._child

    def release(self) -> None:
        with self._lock:
            self._users -= 1

    def _at_exit(self) -> None:
        """End the aggregator if no group uses it: the others see it end with this process, a little later."""
        if self._users == 0:
            self._stop()

    def _stop(self) -> None:
        """End the aggregator, unless it belongs to the process that this one was forked from."""
        if self._child is not None and self._settings[0] == os.getpid():
            self._child.stop()
        self._child = None
        atexit.unregister(self._at_exit)


own_aggregator = _OwnAggregator()


@dataclass
class Rendezvous:
    """Rendezvous of one group's ranks. Call `prepare`, then `meet` once at the beginning, and `part` once at the end.

    `known_address`: the aggregator of the default group, if this process has one, which a sub-group uses too. `secret`:
    secret that all ranks have already, "" if rank 0 is to generate one. `job`: prefix of the job's name, for groups not
    created by torch.
    """

    store: Store
    rank: int
    size: int
    group_name: str
    timeout: timedelta
    known_address: str | None = None
    job: str = ""
    secret: str = field(default="", repr=False)
    _own: ChildAggregator | None = field(default=None, init=False)

    def prepare(self) -> None:
        """Have rank 0 start the aggregator if one is needed, without waiting for it, so that other work can be done
        meanwhile. Also raises the limit of file descriptors of this process to the maximum."""
        # A group takes nine descriptors per rank, and many systems allow 1024 unless a process raises the limit.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self.store.set(f"machine/{self.rank}", this_machine())
        if self.rank == 0 and self._given_address() is None:
            with self._telling_errors():
                self._own = own_aggregator.acquire(self._choose_bind_address())

    def meet(self) -> Invitation:
        """Exchange the invitation. Raises JoinError on every rank if rank 0 could not start the aggregator, or reach
        it, and if the store holds data that rank 0 can't have written."""
        if self.rank:
            return self._read_invitation()
        with self._telling_errors():
            invitation = self._invite()
        fields = invitation.__dict__
        if self.secret:  # the others have it
            fields = {name: text for name, text in fields.items() if name != "secret"}
        elif invitation.secret and self.size > 1:
            self._warn_of_open_secret(invitation.job)
        self.store.set("invitation", json.dumps(fields))
        return invitation

    def _warn_of_open_secret(self, job: str) -> None:
        """Log that everybody who can connect to the store can read the generated secret."""
        if host := host_of(self.store):
            level = logging.WARNING if is_beyond_loopback(host) else logging.INFO
            log.log(level, f"job '{job}': {open_secret(host)}")

    def _read_invitation(self) -> Invitation:
        with asking("nothing came from rank 0"):
            self.store.wait(["invitation"], self.timeout)
        fields = read_fields(self.store, "invitation")
        if set(fields) == {"error"}:
            raise ToldByAnother(plain(f"rank 0: {' '.join(fields['error'].split())[:LONGEST_ERROR]}"))
        expected = {"address", "job", *([] if self.secret else ["secret"])}
        if set(fields) != expected:
            raise JoinError(f"rank 0's invitation in torch's store lacks {expected - set(fields)}: {ADVICE}")
        self._check_address(fields["address"])
        return Invitation(**{"secret": self.secret, **fields})

    def _check_address(self, address: str) -> None:
        """Raises JoinError for an invalid address, or one that differs from the address this rank was given."""
        given = os.environ.get("SWITCHML_AGGREGATOR") or (self.known_address if not self.job else None)
        if given is not None and given != address:
            raise JoinError(
                f"rank 0 names {address[:80]!r} as the aggregator, and this rank was given {given!r}: set "
                f"SWITCHML_AGGREGATOR alike on all ranks, or on rank 0 alone, or {ADVICE}"
            )
        try:
            active, standbys = split_standbys(address)
            for each in (*active.split(","), *standbys):
                split_address(each.strip())
        except ConfigError as error:
            raise JoinError(f"rank 0's invitation in torch's store: {str(error)[:200]}: {ADVICE}") from error

    def await_others(self, point: str) -> bool:
        """Wait until all ranks have reached this `point`, for at most FAREWELL_S; returns whether they have.

        Called before leaving, so that a rank with its last result stays until the others have theirs.
        """
        with contextlib.suppress(RuntimeError):  # the store's server has ended already
            here = self.store.add(point, 1)
            deadline = time.monotonic() + FAREWELL_S
            while here < self.size and time.monotonic() < deadline:
                time.sleep(POLL_S)
                here = self.store.add(point, 0)
            return here >= self.size
        return False

    def part(self, in_good_order: bool) -> None:
        """Release this rank's resources of the group.

        In good order, rank 0 is the first to return, since its process ends the store. A rank that starts another group
        earlier connects to the old store, and has to reconnect (torch_patches.py).
        """
        if self.rank != 0:
            with contextlib.suppress(RuntimeError):
                self.store.add("gone", 1)
                deadline = time.monotonic() + FAREWELL_S
                while in_good_order and not self.store.check(["over"]) and time.monotonic() < deadline:
                    time.sleep(POLL_S)
            return
        if in_good_order:
            self.await_others("gone")
        if self._own is not None:
            self._own = None
            own_aggregator.release()
        with contextlib.suppress(RuntimeError):
            self.store.set("over", "")

    def _given_address(self) -> str | None:
        return os.environ.get("SWITCHML_AGGREGATOR") or self.known_address

    def _invite(self) -> Invitation:
        address = self._own.address if self._own is not None else self._given_address()
        assert address is not None
        if self._own is None and self.known_address is None:
            self._reach(address)
        drawn = "" if protocol_of(None).version == "v1" else secrets.token_urlsafe(24)
        return Invitation(address, self._job_name(), self.secret or drawn)

    def _reach(self, addresses: str) -> None:
        """Wait until the aggregators respond. Raises JoinError if one does not, nor a standby; if one refuses to
        answer, joining reports a more specific error."""
        timeout_s = min(self.timeout.total_seconds(), reach_timeout_s())
        active, standbys = split_standbys(addresses)
        if protocol_of(None).version == "v1":
            v1.data_port(active, timeout_s=timeout_s)
            return
        for address in filter(None, map(str.strip, active.split(","))):
            deadline = time.monotonic() + timeout_s
            try:
                client.wait_for(address, timeout_s=timeout_s)
            except JoinError:
                if time.monotonic() >= deadline - client.RETRY_S and not any(map(is_there, standbys)):
                    raise

    def _job_name(self) -> str:
        """Name of the job: SWITCHML_JOB; else torchrun's run id, or "torch", and six digits. Groups other than the
        default one always have the digits."""
        chosen, run_id = os.environ.get("SWITCHML_JOB", ""), os.environ.get("TORCHELASTIC_RUN_ID", "none")
        if chosen and self.known_address is None and not self.job:
            return chosen
        name = (self.job or chosen)[:LONGEST_JOB_NAME] or ("torch" if run_id == "none" else run_id[:SHORT_RUN_ID])
        return f"{name}-{secrets.token_hex(3)}"

    @contextlib.contextmanager
    def _telling_errors(self) -> Iterator[None]:
        """Pass an error of rank 0 on to the others, which would otherwise wait for their invitation until the
        timeout."""
        try:
            yield
        except SwitchMLError as error:
            self.store.set("invitation", json.dumps({"error": str(error)[:LONGEST_ERROR]}))
            raise

    def _choose_bind_address(self) -> str:
        """Loopback if all ranks run on this machine, else an address of this machine that the others can reach."""
        self.store.wait([f"machine/{rank}" for rank in range(self.size)], self.timeout)
        here = this_machine().encode()
        if all([read(self.store, f"machine/{rank}") == here for rank in range(self.size)]):
            return "127.0.0.1"
        address = _address_for_others(os.environ.get("MASTER_ADDR", socket.gethostname()))
        print(
            f"switchml: the ranks run on several machines: starting an aggregator on {address}, open to the network "
            "of this address. Set SWITCHML_AGGREGATOR=HOST:PORT to use one of your own",
            file=sys.stderr,
            flush=True,
        )
        return address


def _address_for_others(main_address: str) -> str:
    """This machine's IPv4 address on the route to `main_address`, which is usually this machine itself."""
    try:
        address = address_towards(main_address)
    except OSError as error:
        raise JoinError(
            f"no route to MASTER_ADDR {main_address!r} ({error}), so no address to start the aggregator on; "
            "set SWITCHML_AGGREGATOR=HOST:PORT"
        ) from error
    if address.startswith("127."):
        raise JoinError(
            f"the ranks run on several machines, but MASTER_ADDR {main_address!r} is loopback here; "
            "set it to an address that all can reach, or set SWITCHML_AGGREGATOR=HOST:PORT"
        )
    return address
