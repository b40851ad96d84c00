"""Failover of a rank whose aggregator is lost: it moves to the next standby together with the other ranks, or waits for
its aggregator to return, and then continues the running calls (docs/protocol.md, section 12).

`route` decides on the next aggregator and its time limits, without a clock; `Failover` pauses the agents of a rank,
follows the route, and resumes them. If there are standbys, it also pings a silent aggregator (heartbeat.py).
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
"""Default limit for failing over, or for waiting for the aggregator: a supervisor restarts one within seconds. If a
single rank is cut off, the others detect it after the peer timeout (10 s), and then move to the standby."""
REACH_S = 1.0
"""Seconds for one of several aggregators to answer before the next one is tried."""
MEET_S = 3.0
"""Seconds that a rank waits for the others at the first aggregator that answers; half as long at the next, and so on.
So ranks that started at different times still meet: each spends more than half of its time at the first one."""
PAUSE_S = 0.1


def timeout_s(text: str | None = None) -> float:
    """Parse SWITCHML_FAILOVER_TIMEOUT: a time such as 30s, bare seconds, or 0 to fail at once. Raises ConfigError."""
    text = text or os.environ.get("SWITCHML_FAILOVER_TIMEOUT") or FAILOVER_TIMEOUT
    try:
        return units.TIME.parse(text, bare=1.0)
    except ConfigError as error:
        raise ConfigError(f"SWITCHML_FAILOVER_TIMEOUT: {error}") from None


def split_standbys(address: str) -> tuple[str, tuple[str, ...]]:
    """Split `a:1,b:1,standby=c:1` into the active aggregators and the standbys, in their order. Raises ConfigError if
    there are only standbys."""
    listed = [each.strip() for each in address.split(",")]
    standbys = tuple(each.removeprefix("standby=").strip() for each in listed if each.startswith("standby="))
    active = ",".join(each for each in listed if not each.startswith("standby="))
    if not active or not all(standbys):
        raise ConfigError(f"aggregators {address!r}: expected HOST:PORT[,HOST:PORT…][,standby=HOST:PORT…]")
    return active, standbys


@dataclass(frozen=True)
class RouteStop:
    """An aggregator to try, with the time limits in seconds for reaching it and for waiting for the other
    ranks there."""

    address: Any
    reach_s: float
    meet_s: float


def route(addresses: Sequence[Any], lost: Any) -> Iterator[RouteStop]:
    """Aggregators to try after the loss of `lost`, one of `addresses`: cyclically those after it in the list. A single
    aggregator is retried forever."""
    at = list(addresses).index(lost) + 1
    ordered = [*addresses[at:], *addresses[:at]]
    if len(ordered) == 1:
        while True:
            yield RouteStop(lost, REACH_S, float("inf"))
    while True:
        for number, address in enumerate(ordered):
            yield RouteStop(address, REACH_S, MEET_S / 2**number)


def join_first(
    address: str, standbys: Sequence[str], options: joining.Options, **limit: int
) -> tuple[list[joining.JoinedPart], list[str]]:
    """Join a job at its aggregator, or at a standby if that can't be reached or is lost before the job has started.

    Returns the result of `joining.join`, and all addresses, rotated to start with the one joined. An aggregator that
    has never been reached may take half of the remaining time; one that has been is given up after `REACH_S`. Raises
    JoinError."""
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
        except SwitchMLError as error:  # also errors of a tunnel or shared memory, if its aggregator died meanwhile
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
    """Whether an aggregator answers, even with a refusal."""
    try:
        client.wait_for(address, tls_ca=tls_ca, timeout_s=REACH_S)
    except client.Unreachable:
        return False
    except JoinError:
        return True
    return True


def is_loss(event: client.SessionEvent, has_standby: bool) -> bool:
    """Whether the event requires a failover. A lost peer may be cut off from this aggregator only: then it will be at
    the standby."""
    return isinstance(event, client.AggregatorLost) or (isinstance(event, membership.PeerLost) and has_standby)


class FailoverAgent(Protocol):
    """Interface of an agent that failover uses."""

    def pause(self) -> bytes:
        """Stop moving packets and block the agent's thread; returns the progress (`handover.rounds_of`)."""

    def migrate(self, joined: joining.JoinedPart, agreed: bytes) -> None:
        """Continue at another aggregator, from the rounds `agreed` by all ranks. Raises ConfigError."""

    def resume(self) -> None:
        """Unblock the agent's thread after `pause`."""

    def fail(self, error: BaseException) -> None:
        """End the rank's participation in the job with `error`."""

    @property
    def has_no_result(self) -> bool:
        """Whether no round has completed yet."""

    @property
    def sums_halves(self) -> bool:
        """Whether half precision is sent unconverted."""

    @property
    def is_over(self) -> bool:
        """Whether the rank's participation in the job has ended with an error."""

    @property
    def heard(self) -> int:
        """Number of packets received from aggregators."""

    @property
    def is_waiting(self) -> bool:
        """Whether packets are in flight."""


class Failover:
    """Failover of one rank's agents, one for each part of its job. `addresses`: of the aggregator and its standbys;
    `others`: handler of the session's other events."""

    def __init__(
        self,
        agents: Sequence[FailoverAgent],
        joined: joining.JoinedPart,
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

    def _follow(self, joined: joining.JoinedPart) -> None:
        """Handle events of a session, and of the tunnel beside it, from now on."""
        session = joined.session
        if joined.tunnel is not None:
            joined.tunnel.on_lost(lambda reason: self._on_event(session, client.AggregatorLost(reason)))
        session.events(functools.partial(self._on_event, session))

    def _on_event(self, session: client.Session, event: client.SessionEvent) -> None:
        """Handle an event; called by a thread of the session or the tunnel."""
        if session is not self._session:
            return  # an event of a session that this rank has left
        if isinstance(event, membership.PeerLeft):
            self._has_departed = True
        has_standby = len(self._addresses) > 1
        if not is_loss(event, has_standby) or self._has_departed or not self._options.failover_s:
            self._others(event)
            return
        with self._lock:
            if session is not self._session or self._go(event.reason):
                return
        who = "no standby took over the job" if has_standby else "it did not return"
        self._others(replace(event, reason=f"{event.reason}; {who} within {self._options.failover_s:g} s"))

    def _watch(self) -> None:
        """Ping a silent aggregator until this rank's participation in the job ends."""
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
        """Count the aggregator's answer to a ping."""
        self._answers += 1

    def _go(self, reason: str) -> bool:
        """Fail over; returns False if that was not possible, or the rank leaves."""
        started = time.monotonic()
        where = ", ".join(address for address in self._addresses if address != self._at) or "the same one"
        log.warning(
            f"{self._who}: aggregator {self._at} lost: {reason}; trying {where} for {self._options.failover_s:g} s"
        )
        reports = tuple(agent.pause() for agent in self._agents)
        self._session.drop()  # dropped, not left: the others are to follow
        try:
            moved = self._follow_route(reports, started + self._options.failover_s)
        finally:
            for agent in self._agents:
                agent.resume()
        if moved:
            log.warning(
                f"{self._who}: continues at {self._at} (epoch {self._info.epoch}) after "
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
                log.info(f"{self._who}: can't continue at {stop.address}: {error}")
            time.sleep(min(PAUSE_S, max(deadline - time.monotonic(), 0)))
        raise AssertionError("a route has no end")

    def _join(self, stop: RouteStop, resumption: Resumption, left_s: float) -> list[joining.JoinedPart]:
        """Join at a stop of the route. Raises JoinError and ConfigError."""
        info = self._info
        transport = self._options.transport
        options = replace(
            self._options,
            transport="auto" if transport in ("frames", "raw") else transport,  # a standby may not be a switch
            slots=info.slots * self._parts,
            queues=info.queues,
            timeout_s=min(stop.meet_s, left_s),
            reach_timeout_s=min(stop.reach_s, left_s),
            resumption=resumption,
            is_given_up=self._is_over,
        )
        joined = joining.join(stop.address, options, self._parts)
        problem = _missing_feature(info, joined[0].session.info, any(agent.sums_halves for agent in self._agents))
        if problem:
            joining.close(joined)
            raise JoinError(f"the aggregator at {stop.address} {problem}")
        return joined

    def _arrive(self, address: str, joined: list[joining.JoinedPart]) -> None:
        """Migrate the agents. Raises ConfigError."""
        session = joined[0].session
        self._tags += tuple(part.job_tag for part in session.info.parts)
        try:
            for agent, part, agreed in zip(self._agents, joined, session.info.rounds, strict=True):
                agent.migrate(part, agreed)
        except BaseException:
            joining.close(joined)
            raise
        self._at, self._session, self._info = address, session, session.info
        if not session.info.epoch:  # the other ranks had not learned that the job had started: it begins here
            self._lineage = _lineage(session.info)
        self._follow(joined[0])


def _lineage(begun: JobInfo) -> int:
    """Identifier of a job that persists through failovers."""
    return begun.job_tag << 32 | begun.isn


def _missing_feature(old: JobInfo, new: JobInfo, sums_halves: bool) -> str:
    """Feature that the job's running calls need and the next aggregator lacks; "" if none. `sums_halves`: half
    precision is sent unconverted."""
    if not new.rounds:
        return "does not take over running jobs"
    if new.dense_only and not old.dense_only:
        return "does not support sparse packets"
    if old.collectives and not new.collectives:
        return "supports no collectives other than sums"
    if new.only_sums and not old.only_sums:
        return "does not support min, max and bitwise operations"
    if sums_halves and not new.halves:
        return "does not sum half precision unconverted"
    if new.padded and not old.padded:
        return "requires padded sparse packets"
    return ""
