"""What a rank does when its aggregator is lost: it goes to the next one of its list with the other ranks, or waits for
its own to come back, and goes on with the calls under way (docs/protocol.md, section 12).

`route` decides where to go and for how long, without a clock; `Failover` stops the agents of a rank, follows the
route, and lets them go on. Where there are standbys, it also asks a silent aggregator whether it is still there
(heartbeat.py).
"""

import functools
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from host_agent import heartbeat, joining
from switchml import units
from switchml.control import client, membership
from switchml.control.membership import JobInfo, Resumption
from switchml.errors import ConfigError, JoinError, SwitchMLError

log = logging.getLogger("host_agent")

FAILOVER_TIMEOUT = "20s"
"""How long a rank tries to go on elsewhere, or waits for its aggregator: a supervisor restarts one within seconds. If
one rank alone is cut off, the others hear of it after the peer timeout (10 s), and then come to the standby."""
REACH_S = 1.0
"""How long an aggregator of several may take to answer before the next one is tried."""
MEET_S = 3.0
"""How long a rank waits for the others at the first aggregator that answers; half as long at the next, and so on. So
ranks that started their rounds at different times still meet: each is at the first one more than half of its time."""
PAUSE_S = 0.1


def timeout_s(text: str | None = None) -> float:
    """SWITCHML_FAILOVER_TIMEOUT, a time such as 30s, or 0 for an error at once; bare seconds do too. Raises
    ConfigError."""
    text = text or os.environ.get("SWITCHML_FAILOVER_TIMEOUT") or FAILOVER_TIMEOUT
    try:
        return units.TIME.parse(text, bare=1.0)
    except ConfigError as error:
        raise ConfigError(f"SWITCHML_FAILOVER_TIMEOUT: {error}") from None


def split_standbys(address: str) -> tuple[str, tuple[str, ...]]:
    """The aggregators of `a:1,b:1,standby=c:1`, and its standbys, in their order. Raises ConfigError if it names
    standbys alone."""
    listed = [each.strip() for each in address.split(",")]
    standbys = tuple(each.removeprefix("standby=").strip() for each in listed if each.startswith("standby="))
    active = ",".join(each for each in listed if not each.startswith("standby="))
    if not active or not all(standbys):
        raise ConfigError(f"aggregators {address!r}: expected HOST:PORT[,HOST:PORT…][,standby=HOST:PORT…]")
    return active, standbys


@dataclass(frozen=True)
class Stop:
    """An aggregator to try, and for how long (s): to reach it, and to meet the other ranks there."""

    address: Any
    reach_s: float
    meet_s: float


def route(addresses: Sequence[Any], lost: Any) -> Iterator[Stop]:
    """Where to go after the aggregator at `lost`, one of `addresses`: to those after it in the list, round and round.
    Where there is only one, that is waited for."""
    at = list(addresses).index(lost) + 1
    ordered = [*addresses[at:], *addresses[:at]]
    if len(ordered) == 1:
        while True:
            yield Stop(lost, REACH_S, float("inf"))
    while True:
        for number, address in enumerate(ordered):
            yield Stop(address, REACH_S, MEET_S / 2**number)


def join_first(
    address: str, standbys: Sequence[str], options: joining.Options, **limit: int
) -> tuple[list[joining.Joined], list[str]]:
    """Begin a job at its aggregator, or where that is not there, or is lost before the job has started, at a standby.
    Returns what `joining.join` does, and all addresses, beginning with this one. An aggregator that has not been there
    yet may take half of the time that is left; who was there goes on after `REACH_S`. Raises JoinError."""
    addresses = [address, *standbys]
    if not standbys:
        return joining.join(address, options, **limit), addresses
    options = replace(options, has_standby=True)
    deadline = time.monotonic() + options.timeout_s
    for at in itertools.cycle(addresses):
        left_s = deadline - time.monotonic()
        reach_s = min(options.reach_timeout_s, max(left_s / 2, REACH_S))
        try:
            joined = joining.join(at, options.until(deadline, reach_timeout_s=reach_s, retry_s=REACH_S), **limit)
        except SwitchMLError as error:  # of a tunnel or memory, too, if its aggregator died meanwhile
            if time.monotonic() >= deadline or (
                not isinstance(error, client.Unreachable) and is_there(at, options.tls_ca)
            ):
                raise
            log.warning(f"job '{options.job}' rank {options.rank}: {error}; trying the next of {', '.join(addresses)}")
        else:
            number = addresses.index(at)
            return joined, [*addresses[number:], *addresses[:number]]
    raise AssertionError("a cycle has no end")


def is_there(address: str, tls_ca: str | None = None) -> bool:
    """Whether an aggregator answers, be it with a refusal."""
    try:
        client.wait_for(address, tls_ca=tls_ca, timeout_s=REACH_S)
    except client.Unreachable:
        return False
    except JoinError:
        return True
    return True


def is_loss(event: client.SessionEvent, has_standby: bool) -> bool:
    """Whether to go on elsewhere. A peer that is lost may be cut off from this aggregator alone: then it will be at the
    standby."""
    return isinstance(event, client.AggregatorLost) or (isinstance(event, membership.PeerLost) and has_standby)


class Mover(Protocol):
    """An agent, as far as failing over needs it."""

    def pause(self) -> bytes:
        """Stop moving packets; returns what `handover.rounds_of` says. The agent's thread then waits."""

    def migrate(self, joined: joining.Joined, agreed: bytes) -> None:
        """Go on at another aggregator, from the rounds `agreed`. Raises ConfigError."""

    def resume(self) -> None:
        """End the wait that `pause` began."""

    def fail(self, error: BaseException) -> None:
        """End the rank's part in the job."""

    @property
    def has_no_result(self) -> bool:
        """Whether no round has its result yet."""

    @property
    def sums_halves(self) -> bool:
        """Whether half precision travels as it is."""

    @property
    def is_over(self) -> bool:
        """Whether that has happened."""

    @property
    def heard(self) -> int:
        """How many packets have come from aggregators."""

    @property
    def is_waiting(self) -> bool:
        """Whether packets are awaited."""


class Failover:
    """Of one rank's agents, one for each part of its job. `addresses`: of the aggregator and its standbys; `others`:
    what to do with the session's other events."""

    def __init__(
        self,
        agents: Sequence[Mover],
        joined: joining.Joined,
        addresses: Sequence[str],
        others: Callable[[client.SessionEvent], None],
    ):
        self._agents, self._addresses, self._others = agents, list(addresses), others
        self._options, self._session, self._info = joined.options, joined.session, joined.session.info
        self._at, self._parts = addresses[0], len(agents)
        self._lineage = _lineage(self._info)
        self._tags = tuple(part.job_tag for part in self._info.parts)
        self._has_departed = False
        self._lock = threading.Lock()
        self._answers = 0
        self._follow(joined)
        if len(self._addresses) > 1 and self._options.failover_s:
            threading.Thread(target=self._watch, name="switchml-heartbeat", daemon=True).start()

    def _follow(self, joined: joining.Joined) -> None:
        """Act on what a session, or the tunnel beside it, reports from now on."""
        session = joined.session
        if joined.tunnel is not None:
            joined.tunnel.on_lost(lambda reason: self._on_event(session, client.AggregatorLost(reason)))
        session.events(functools.partial(self._on_event, session))

    def _on_event(self, session: client.Session, event: client.SessionEvent) -> None:
        """Called by a thread of the session or the tunnel."""
        if session is not self._session:
            return  # that we have left
        if isinstance(event, membership.PeerLeft):
            self._has_departed = True
        has_standby = len(self._addresses) > 1
        if not is_loss(event, has_standby) or self._has_departed or not self._options.failover_s:
            self._others(event)
            return
        with self._lock:
            if session is not self._session or self._go(event.reason):
                return
        who = "no standby took the job over" if has_standby else "it did not come back"
        self._others(replace(event, reason=f"{event.reason}; {who} within {self._options.failover_s:g} s"))

    def _watch(self) -> None:
        """Until this rank's part in the job ends."""
        beat, session = heartbeat.Heartbeat(), self._session
        while not self._is_over():
            time.sleep(heartbeat.TURN_S)
            if session is not self._session or self._lock.locked() or self._has_departed:
                session = self._session
                beat.begin()
                continue
            heard = self._answers + sum(agent.heard for agent in self._agents)
            match beat.turn(heard, any(agent.is_waiting for agent in self._agents)):
                case heartbeat.Beat.ASK:
                    session.ping(self._answered)
                case heartbeat.Beat.LOST:
                    self._on_event(session, client.AggregatorLost("it is silent"))

    def _answered(self) -> None:
        """The aggregator has answered a ping."""
        self._answers += 1

    def _go(self, reason: str) -> bool:
        """Move; False if that was not possible, or the rank leaves."""
        started = time.monotonic()
        where = ", ".join(address for address in self._addresses if address != self._at) or "the same one"
        log.warning(
            f"{self._who}: aggregator {self._at} lost: {reason}; trying {where} for {self._options.failover_s:g} s"
        )
        reports = tuple(agent.pause() for agent in self._agents)
        self._session.drop()  # not left: the others are to follow
        try:
            moved = self._follow_route(reports, started + self._options.failover_s)
        finally:
            for agent in self._agents:
                agent.resume()
        if moved:
            log.warning(
                f"{self._who}: goes on at {self._at} (epoch {self._info.epoch}) after "
                f"{time.monotonic() - started:.2f} s"
            )
        return moved

    @property
    def _who(self) -> str:
        return f"job '{self._options.job}' rank {self._options.rank}"

    def _is_over(self) -> bool:
        return any(agent.is_over for agent in self._agents)

    def _follow_route(self, reports: tuple[bytes, ...], deadline: float) -> bool:
        has_no_result = all(agent.has_no_result for agent in self._agents)
        resumption = Resumption(self._lineage, self._info.epoch + 1, reports, self._tags, has_no_result)
        for stop in route(self._addresses, self._at):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._is_over():
                return False
            try:
                self._arrive(stop.address, self._join(stop, resumption, left_s))
                return True
            except SwitchMLError as error:
                log.info(f"{self._who}: can't go on at {stop.address}: {error}")
            time.sleep(min(PAUSE_S, max(deadline - time.monotonic(), 0)))
        raise AssertionError("a route has no end")

    def _join(self, stop: Stop, resumption: Resumption, left_s: float) -> list[joining.Joined]:
        """Raises JoinError and ConfigError."""
        info = self._info
        transport = self._options.transport
        options = replace(
            self._options,
            transport="auto" if transport in ("frames", "raw") else transport,  # a standby may be no switch
            slots=info.slots * self._parts,
            queues=info.queues,
            timeout_s=min(stop.meet_s, left_s),
            reach_timeout_s=min(stop.reach_s, left_s),
            resumption=resumption,
            is_given_up=self._is_over,
        )
        joined = joining.join(stop.address, options, self._parts)
        problem = _lacks(info, joined[0].session.info, any(agent.sums_halves for agent in self._agents))
        if problem:
            joining.close(joined)
            raise JoinError(f"the aggregator at {stop.address} {problem}")
        return joined

    def _arrive(self, address: str, joined: list[joining.Joined]) -> None:
        """Have the agents go on. Raises ConfigError."""
        session = joined[0].session
        self._tags += tuple(part.job_tag for part in session.info.parts)
        try:
            for agent, part, agreed in zip(self._agents, joined, session.info.rounds, strict=True):
                agent.migrate(part, agreed)
        except BaseException:
            joining.close(joined)
            raise
        self._at, self._session, self._info = address, session, session.info
        if not session.info.epoch:  # others had not heard that the job had started: it begins here
            self._lineage = _lineage(session.info)
        self._follow(joined[0])


def _lineage(begun: JobInfo) -> int:
    """What a job goes by as long as it goes on."""
    return begun.job_tag << 32 | begun.isn


def _lacks(had: JobInfo, gets: JobInfo, sums_halves: bool) -> str:
    """What the next aggregator can't do that a job's packets under way need; "" if nothing. `sums_halves`: half
    precision travels as it is."""
    if not gets.rounds:
        return "does not take jobs over"
    if gets.dense_only and not had.dense_only:
        return "takes no sparse packets"
    if had.collectives and not gets.collectives:
        return "takes no collectives but sums"
    if gets.only_sums and not had.only_sums:
        return "takes no minima, maxima or operations on bits"
    if sums_halves and not gets.halves:
        return "adds up no half precision"
    if gets.padded and not had.padded:
        return "wants sparse packets padded"
    return ""
