"""How the ranks of a group find their aggregator: rank 0 decides, and tells the others through the group's store.

Rank 0 takes the aggregator that SWITCHML_AGGREGATOR names, else the one that this process knows from its default group,
else it starts one. Along go the job's name and secret, both random unless SWITCHML_SECRET is set, so that simultaneous
jobs on one aggregator never meet.
"""

from __future__ import annotations

import contextlib
import json
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

from torch._C._distributed_c10d import PrefixStore, Store

from host_agent.failover import split_standbys
from host_agent.hierarchy.hosts import this_machine
from host_agent.pytorch.aggregator import ROOM, ChildAggregator, options_for
from host_agent.reach import address_towards
from host_agent.v1.joining import protocol_of
from switchml.control import client
from switchml.control.client import reach_timeout_s
from switchml.control.membership import name_ranks
from switchml.control.v1 import client as v1
from switchml.errors import JoinError, SwitchMLError
from switchml.text import plain

FAREWELL_S = 5.0
"""How long a rank that is done waits for the others to be done too."""
LONGEST_JOB_NAME = 180
"""The aggregator takes 200; agents put suffixes behind it."""
POLL_S = 0.005
"""How often a rank looks who has come."""
SHORT_RUN_ID = 12
"""Of torchrun's run id, which may be a UUID."""


class ToldByAnother(JoinError):
    """What another rank has said on its own stderr."""


def without_traceback() -> None:
    """A JoinError that nobody catches ends this process with one line on stderr; with none, where rank 0 has said
    it."""
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, JoinError):
            usual(kind, error, trace)
        elif not isinstance(error, ToldByAnother):
            print(plain(f"switchml: error: {error}"), file=sys.stderr, flush=True)

    sys.excepthook = hook


def own_part(store: Store, rank: int, size: int, timeout: timedelta) -> Store:
    """A part of `store` that no earlier group of this name has written to. torchrun keeps one store for all rounds of
    `--max-restarts`, and earlier rounds may have ended anywhere, with another number of ranks.

    1. Each rank but 0 announces a random word. What it finds there is of an earlier round.
    2. Rank 0 names the new part to each word that it reads, old ones as well, until the rank that wrote it answers
       from within the part. Nobody waits for an old word.

    Raises JoinError after `timeout`.
    """
    if rank != 0:
        word = secrets.token_hex(8)
        store.set(f"word/{rank}", word)
        store.wait([f"part/{word}"], timeout)
        part = PrefixStore(bytes(store.get(f"part/{word}")).decode(), store)
        part.set(f"here/{rank}", "")
        return part
    name = f"{secrets.token_hex(8)}/"
    part = PrefixStore(name, store)
    missing, deadline = list(range(1, size)), time.monotonic() + timeout.total_seconds()
    while missing := [other for other in missing if not part.check([f"here/{other}"])]:
        for other in missing:
            if store.check([f"word/{other}"]):
                store.set(f"part/{bytes(store.get(f'word/{other}')).decode()}", name)
        if time.monotonic() >= deadline:
            raise JoinError(f"{name_ranks(missing)} did not come within {timeout.total_seconds():g} s")
        time.sleep(POLL_S)
    return part


@dataclass(frozen=True)
class Invitation:
    """What a rank needs to join: the aggregator's control address HOST:PORT, the job and its secret."""

    address: str
    job: str
    secret: str


class _OwnAggregator:
    """The aggregator that this process has started, if any. All its groups share it; it stops with the last one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: ChildAggregator | None = None
        self._users = 0

    def acquire(self, bind: str) -> ChildAggregator:
        """Start it unless it runs. Call `release` once for each call of this."""
        with self._lock:
            if self._child is None or self._child.returncode is not None:
                served = ("--v1",) if protocol_of(None).version == "v1" else ()
                transport = options_for(os.environ.get("SWITCHML_TRANSPORT", ""))
                self._child = ChildAggregator(bind, (*ROOM, *transport, *served))
            self._users += 1
            return self._child

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._child is not None:
                self._child.stop()
                self._child = None


own_aggregator = _OwnAggregator()


@dataclass
class Rendezvous:
    """That of one group's ranks. `prepare`, then `meet` once at the beginning, `part` once at the end.

    `known_address` is the aggregator of the default group, if this process has one: a sub-group uses it too.
    `job` begins the job's name, for groups that torch has not made.
    """

    store: Store
    rank: int
    size: int
    group_name: str
    timeout: timedelta
    known_address: str | None = None
    job: str = ""
    _own: ChildAggregator | None = field(default=None, init=False)

    def prepare(self) -> None:
        """Let rank 0 start the aggregator if one is needed. Does not wait for it: there is other work meanwhile.

        Allows this process as many file descriptors as it may have."""
        # A group takes nine descriptors of each rank, and many systems allow 1024 unless a process asks for more.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self.store.set(f"machine/{self.rank}", this_machine())
        if self.rank == 0 and self._given_address() is None:
            with self._telling_errors():
                self._own = own_aggregator.acquire(self._choose_bind_address())

    def meet(self) -> Invitation:
        """Raises JoinError on every rank if rank 0 could not start the aggregator, or reach it."""
        if self.rank == 0:
            with self._telling_errors():
                invitation = self._invite()
            self.store.set("invitation", json.dumps(invitation.__dict__))
            return invitation
        self.store.wait(["invitation"], self.timeout)
        fields = json.loads(self.store.get("invitation"))
        if "error" in fields:
            raise ToldByAnother(f"rank 0: {fields['error']}")
        return Invitation(**fields)

    def await_others(self, point: str) -> bool:
        """Wait until all ranks have come to this `point`, at most FAREWELL_S; whether they have.

        Before leaving, this lets a rank that has its last result already stay until the others have theirs.
        """
        with contextlib.suppress(RuntimeError):  # the store's server has gone already
            here = self.store.add(point, 1)
            deadline = time.monotonic() + FAREWELL_S
            while here < self.size and time.monotonic() < deadline:
                time.sleep(POLL_S)
                here = self.store.add(point, 0)
            return here >= self.size
        return False

    def part(self, in_good_order: bool) -> None:
        """This rank holds nothing of the group any more. If the aggregator is ours, stop it.

        In good order rank 0 is first to return: its process ends the store. A rank that begins another group sooner
        meets the old store, and has to connect again (by_name.py).
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
        return Invitation(address, self._job_name(), os.environ.get("SWITCHML_SECRET") or secrets.token_urlsafe(24))

    def _reach(self, addresses: str) -> None:
        """Wait until the aggregators are there. Raises JoinError for one that is not; where one refuses to answer,
        joining explains better what is wrong."""
        timeout_s = min(self.timeout.total_seconds(), reach_timeout_s())
        active, _ = split_standbys(addresses)  # a standby may come later
        if protocol_of(None).version == "v1":
            v1.data_port(active, timeout_s=timeout_s)
            return
        for address in filter(None, map(str.strip, active.split(","))):
            deadline = time.monotonic() + timeout_s
            try:
                client.wait_for(address, timeout_s=timeout_s)
            except JoinError:
                if time.monotonic() >= deadline - client.RETRY_S:
                    raise

    def _job_name(self) -> str:
        """SWITCHML_JOB; else torchrun's run, or "torch", and six digits. Groups but the default one always have the
        digits."""
        chosen, run_id = os.environ.get("SWITCHML_JOB", ""), os.environ.get("TORCHELASTIC_RUN_ID", "none")
        if chosen and self.known_address is None and not self.job:
            return chosen
        name = (self.job or chosen)[:LONGEST_JOB_NAME] or ("torch" if run_id == "none" else run_id[:SHORT_RUN_ID])
        return f"{name}-{secrets.token_hex(3)}"

    @contextlib.contextmanager
    def _telling_errors(self) -> Iterator[None]:
        """Pass an error of rank 0 on to the others, who would wait for their invitation in vain."""
        try:
            yield
        except SwitchMLError as error:
            self.store.set("invitation", json.dumps({"error": str(error)}))
            raise

    def _choose_bind_address(self) -> str:
        """Loopback if all ranks run on this machine, else an address of this machine that the others can reach."""
        self.store.wait([f"machine/{rank}" for rank in range(self.size)], self.timeout)
        here = this_machine().encode()
        if all(bytes(self.store.get(f"machine/{rank}")) == here for rank in range(self.size)):
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
    """This machine's IPv4 address on the way to `main_address`, which is usually this machine itself."""
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
