"""The agent's end of the control plane: join a job, follow its events, leave.

    session = join("10.0.0.254:50099", job="resnet", rank=0, world_size=4, data_address=("10.0.0.1", 4000))
    session.info.slots, session.info.job_tag, ...
    session.events(on_event)      # PeerLost, PeerLeft or AggregatorLost, from one background thread
    session.leave()

This module imports grpc, which takes a while; import it where a job is joined, not at program start. A session does not
survive fork(): a child process must not use it, and may inherit the connection's socket, in which case the parent's
death is detected only by unanswered pings (within the aggregator's peer timeout). Start children before joining, or
with spawn.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from switchml import units
from switchml.control import rpc, v2_pb2
from switchml.control.agreement import Report
from switchml.control.channel import PEER_TIMEOUT_S, is_broken, is_final, open_channel, split_address, words_of
from switchml.control.dataplane import Address, Link
from switchml.control.membership import (
    PROTOCOL,
    Disagreement,
    JobInfo,
    Peer,
    PeerLeft,
    PeerLost,
    Resumption,
    name_ranks,
)
from switchml.control.messages import address as plain_address
from switchml.control.messages import fields
from switchml.control.secret import given_secret
from switchml.errors import ConfigError, JoinError

__all__ = [
    "AggregatorLost",
    "Disagreement",
    "JobInfo",
    "Link",
    "Peer",
    "PeerLeft",
    "PeerLost",
    "Session",
    "join",
    "status",
    "wait_for",
]

log = logging.getLogger("switchml.client")

RETRY_S = 0.2
"""Pause in seconds between attempts to reach an aggregator that has not started yet."""
REACH_TIMEOUT = "30s"
"""Default limit for reaching an aggregator that should have been started already: one that is started with the job
responds within seconds, unless it has to compile its kernels."""
NOTICE_S = 2.0
"""Seconds after which waiting for an aggregator is logged to stderr."""
ANSWER_GRACE_S = 2.0
"""Seconds by which a client exceeds the join timeout: the aggregator's own error names the missing ranks."""
LEAVE_TIMEOUT_S = 1.0
STATUS_TIMEOUT_S = 5.0
_SHORTEST_ATTEMPT_S = 0.1
_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
JOBS = v2_pb2.DESCRIPTOR.services_by_name["Jobs"]


class Unreachable(JoinError):
    """No aggregator answered at an address in time, or it no longer answers."""


@dataclass(frozen=True)
class AggregatorLost:
    """The aggregator is lost; `reason` is a human-readable sentence."""

    reason: str


SessionEvent = PeerLost | PeerLeft | Disagreement | AggregatorLost


def join(
    address: str,
    *,
    job: str,
    rank: int,
    world_size: int,
    data_address: Address,
    more_addresses: Sequence[Address] = (),
    secret: str | None = None,
    slots: int = 0,
    payload_bytes: int = 1024,
    wire: int = 0,
    receive_buffer_bytes: int = 0,
    transport: str = "",
    mac: int = 0,
    authenticate: bool = False,
    queues: int = 1,
    host_name: str | None = None,
    resumption: Resumption | None = None,
    deadline_s: float = 0.0,
    large_packets: bool = False,
    is_given_up: Callable[[], bool] = lambda: False,
    timeout_s: float = 60.0,
    retry_s: float = math.inf,
    peer_timeout_s: float = PEER_TIMEOUT_S,
    tls_ca: str | Path | None = None,
) -> Session:
    """Join a job at the aggregator at `address` ("host:port") and wait until all ranks have joined.

    `data_address` is the source of this rank's data packets, `more_addresses` those of further parts that the job may
    have (`info.parts`). `slots` is the requested pool size, 0 for the aggregator's choice. `receive_buffer_bytes` of
    the data socket bounds the advised window. `transport` and `mac` describe the path of packets, for switches that
    need it; with the transport "none" the job consists of a membership only, without slots. `authenticate`: packets are
    signed with the job's key, `info.key`; the same on all ranks. `queues`: number of queues of collectives that this
    rank supports (docs/protocol.md, section 11). `deadline_s`: seconds that sums wait for late ranks (section 13), 0
    for no limit; the same on all ranks. `large_packets`: this rank can share memory with the aggregator, and benefits
    from large packets there. `resumption`: the job continues here, and does not begin (section 12). `is_given_up` is
    polled; if it returns True, the wait ends with JoinError.

    `host_name` is shown to the others in `peers` (default: this machine's). `secret` defaults to the environment's
    (secret.py), `tls_ca` (a PEM file, which enables TLS) to SWITCHML_TLS_CA. An aggregator that can't be reached, or is
    lost before the job has started, is retried for `timeout_s`, at most for `retry_s` at a time; then the JoinError is
    an `Unreachable`. A refusal is final. An aggregator silent for `peer_timeout_s` counts as lost.

    Raises JoinError with the aggregator's message, or ConfigError for an invalid argument.
    """
    host, port = split_address(address)
    try:
        request = v2_pb2.JoinRequest(
            protocol=PROTOCOL,
            job=job,
            rank=rank,
            world_size=world_size,
            secret=given_secret() if secret is None else secret,
            data_address=plain_address(data_address),
            more_addresses=[plain_address(address) for address in more_addresses],
            slots=slots,
            payload_bytes=payload_bytes,
            wire=wire,
            receive_buffer_bytes=receive_buffer_bytes,
            host=socket.gethostname() if host_name is None else host_name,
            pid=os.getpid(),
            transport=transport,
            mac=mac,
            authenticate=authenticate,
            queues=queues,
            deadline_s=deadline_s,
            large_packets=large_packets,
            resumption=None if resumption is None else v2_pb2.Resumption(**vars(resumption)),
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"can't ask to join job {job!r} as rank {rank!r} of {world_size!r}: {error}") from error
    session = Session(f"{host}:{port}", request, timeout_s, retry_s, peer_timeout_s, tls_ca)
    try:
        session._wait_started(is_given_up)
    except BaseException:
        # KeyboardInterrupt too: the rank must not remain in the forming job.
        (session.leave if resumption is None else session.drop)()
        raise
    return session


def status(
    address: str, *, secret: str | None = None, tls_ca: str | Path | None = None, timeout_s: float = STATUS_TIMEOUT_S
) -> v2_pb2.StatusReply:
    """Status of the aggregator at `address`, as shown by `switchml status`: totals, and details of the jobs with this
    secret (default: the environment's) and of those without one. Raises JoinError if it can't be reached, or refuses
    because of too many wrong secrets."""
    secret = given_secret() if secret is None else secret
    target = "{}:{}".format(*split_address(address))
    with open_channel(target, PEER_TIMEOUT_S, tls_ca) as channel:
        try:
            request = v2_pb2.StatusRequest(secret=secret)
            reply: v2_pb2.StatusReply = rpc.client(channel, JOBS).Status(request, timeout=timeout_s)
            return reply
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                raise JoinError(f"the aggregator at {target} refused the status request: {error.details()}") from error
            raise JoinError(f"no answer from an aggregator at {target}: {words_of(error)}") from error


def reach_timeout_s() -> float:
    """Parse SWITCHML_JOIN_TIMEOUT, a time such as 2min, or bare seconds. Raises ConfigError."""
    text = os.environ.get("SWITCHML_JOIN_TIMEOUT") or REACH_TIMEOUT
    try:
        return units.TIME.parse(text, bare=1.0)
    except ConfigError as error:
        raise ConfigError(f"SWITCHML_JOIN_TIMEOUT: {error}") from None


def wait_for(address: str, *, tls_ca: str | Path | None = None, timeout_s: float = 60.0) -> v2_pb2.StatusReply:
    """Status of the aggregator at `address` as shown without a secret. It may still be starting: it is retried for
    `timeout_s`. Raises JoinError.
    """
    notice, deadline = time.monotonic() + NOTICE_S, time.monotonic() + timeout_s
    while True:
        left_s = max(deadline - time.monotonic(), _SHORTEST_ATTEMPT_S)
        try:
            return status(address, secret="", tls_ca=tls_ca, timeout_s=min(STATUS_TIMEOUT_S, left_s))
        except JoinError as error:
            cause = error.__cause__
            assert isinstance(cause, grpc.RpcError)
            is_silent = cause.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if is_final(cause) and not is_silent:
                raise
            if time.monotonic() + RETRY_S >= deadline:
                raise Unreachable(_unreachable(address, timeout_s, words_of(cause))) from cause
            if time.monotonic() >= notice:
                log.warning("switchml: waiting for the aggregator at %s, %.0f s at most …", address, timeout_s)
                notice = deadline
        time.sleep(RETRY_S)


def _send(method: Any, request: Any) -> None:
    """Call a method of the aggregator without waiting for its answer."""
    method.future(request).add_done_callback(lambda _: None)  # keeps a reference: an unreferenced call is cancelled


def _unreachable(target: str, timeout_s: float, reason: str) -> str:
    return (
        f"no aggregator answered at {target} within {timeout_s:g} s: {reason}. "
        "Is `switchml aggregate` running there, and do both sides use TLS or neither?"
    )


class Session:
    """One rank's membership in a started job. Created by `join`. Methods may be called from any thread.

    One background thread reads the Join stream, another calls the callback of `events`.
    """

    info: JobInfo
    """The job, once it has started."""

    def __init__(
        self,
        target: str,
        request: v2_pb2.JoinRequest,
        timeout_s: float,
        retry_s: float,
        peer_timeout_s: float,
        tls_ca: str | Path | None,
    ):
        self._target = target
        self._request = request
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s, self._retry_s = timeout_s, retry_s
        self._peer_timeout_s = peer_timeout_s
        self._channel = open_channel(target, peer_timeout_s, tls_ca)
        self._jobs = rpc.client(self._channel, JOBS)
        self._lock = threading.Lock()
        self._left = False
        self._stream: grpc.Call | None = None
        self._token = ""
        self._outcome: JobInfo | JoinError | None = None
        self._decided = threading.Event()
        self._events: queue.SimpleQueue[SessionEvent | None] = queue.SimpleQueue()
        self._dispatcher: threading.Thread | None = None
        self._stopping = threading.Event()
        # Daemons: a program that ends without leaving must not hang here; its peers detect the broken connection.
        threading.Thread(target=self._read, name="switchml-control", daemon=True).start()

    def _wait_started(self, is_given_up: Callable[[], bool]) -> None:
        begun = time.monotonic()
        notice_s = NOTICE_S
        # In slices: if a signal is delivered to another thread first, Ctrl-C is handled only between two waits.
        while not self._decided.wait(0.2):
            waited_s = time.monotonic() - begun
            if waited_s >= notice_s and self._token:
                notice_s *= 2
                self._warn_of_missing_ranks(waited_s)
            if is_given_up():
                raise JoinError(f"job {self._request.job!r}: rank {self._request.rank} left before it started")
            if time.monotonic() < self._deadline + (ANSWER_GRACE_S if self._token else 0.0):
                continue
            if not self._token:
                raise Unreachable(_unreachable(self._target, self._timeout_s, "no answer"))
            raise JoinError(
                f"the aggregator at {self._target} accepted this rank, but job {self._request.job!r} did not start "
                f"within {self._timeout_s:g} s"
            )
        assert self._outcome is not None
        if isinstance(self._outcome, JoinError):
            raise self._outcome
        self.info = self._outcome

    def _warn_of_missing_ranks(self, waited_s: float) -> None:
        request = v2_pb2.StatusRequest(secret=self._request.secret)
        try:
            jobs = self._jobs.Status(request, timeout=NOTICE_S).jobs
        except grpc.RpcError:  # the next notice, or the end of the wait, reports the error
            return
        name, rank, size = self._request.job, self._request.rank, self._request.world_size
        missing = next((list(job.missing) for job in jobs if job.name == name and job.state == "forming"), [])
        if missing:
            log.warning(
                f"job '{name}' rank {rank}: has waited {waited_s:.0f} s (limit {self._timeout_s:.0f} s) for "
                f"{len(missing)} of {size} ranks to join: {name_ranks(missing)}"
            )

    def events(self, callback: Callable[[SessionEvent], None]) -> None:
        """Call `callback` with every event from now on, and with earlier ones. Calls come from one background thread.

        After PeerLost, Disagreement or AggregatorLost there are no further events: the job is over. Raises ConfigError
        if called twice.
        """
        with self._lock:
            if self._dispatcher is not None:
                raise ConfigError("Session.events was called twice: expected one callback")
            self._dispatcher = threading.Thread(
                target=self._dispatch, args=(callback,), name="switchml-events", daemon=True
            )
        self._dispatcher.start()

    def waiting(self, part: int, report: Report) -> None:
        """Report this rank's calls in a part of the job, when a call stalls. Returns at once; an aggregator that does
        not support such reports ignores it."""
        queues = [v2_pb2.QueueReport(**vars(queue)) for queue in report.queues]
        with suppress(grpc.RpcError, ValueError):  # the channel is closed
            _send(self._jobs.Waiting, v2_pb2.WaitingRequest(token=self._token, part=part, queues=queues))

    def count(self, calls: dict[str, int], loading: dict[str, float]) -> None:
        """Report how many collectives this rank's program has called, by name, and the counters of its planned loader.
        Like `waiting`, returns at once."""
        with suppress(grpc.RpcError, ValueError):
            _send(self._jobs.Count, v2_pb2.CountRequest(token=self._token, calls=calls, loading=loading))

    def ping(self, on_answer: Callable[[], None]) -> None:
        """Ping the aggregator; `on_answer` is called, from another thread, when it has answered. Returns at once."""

        def end(call: Any) -> None:
            if call.code() not in _NO_ANSWER:  # an older aggregator answers that it does not support this call
                on_answer()

        with suppress(grpc.RpcError, ValueError):
            self._jobs.Ping.future(v2_pb2.PingRequest(), timeout=self._peer_timeout_s).add_done_callback(end)

    def leave(self) -> None:
        """Report that this rank is done; the others get PeerLeft. Returns quickly, may be called twice, and does not
        raise if the aggregator is lost. There are no further events.
        """
        self._end(says_so=True)

    def drop(self) -> None:
        """Close the connection without leaving: for the others this rank is lost, and the job fails."""
        self._end(says_so=False)

    def _end(self, says_so: bool) -> None:
        with self._lock:
            if self._left:
                return
            self._left = True
        self._stopping.set()
        if self._token and says_so:
            with suppress(grpc.RpcError, ValueError):
                self._jobs.Leave(v2_pb2.LeaveRequest(token=self._token), timeout=LEAVE_TIMEOUT_S)
        if self._stream is not None:
            self._stream.cancel()
        self._channel.close()

    def close(self) -> None:
        """Leave unless that has been done, and release the connection."""
        self.leave()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.leave()

    # The reading thread.

    def _read(self) -> None:
        try:
            self._connect_and_read()
        except Exception as error:  # callers wait for this thread, so it must report an outcome
            log.debug("control stream of %s ended", self._request.job, exc_info=True)
            self._over(f"the control stream failed: {error!r}")
        finally:
            self._events.put(None)

    def _connect_and_read(self) -> None:
        reason, lost_at = "no attempt was made", math.inf
        while not self._stopping.is_set():
            now = time.monotonic()
            remaining = self._deadline - now
            if remaining <= 0 or now >= lost_at + self._retry_s:
                waited_s = self._timeout_s if remaining <= 0 else self._retry_s
                self._decide(Unreachable(_unreachable(self._target, waited_s, reason)))
                return
            self._request.timeout_s = remaining
            error = self._read_stream()
            if self._outcome is not None or self._stopping.is_set():
                return
            if error is not None and is_final(error):
                self._decide(JoinError(self._refusal(error)))
                return
            reason = words_of(error) if error is not None else "the stream ended"
            lost_at = time.monotonic() if self._token else min(lost_at, time.monotonic())
            self._token = ""
            self._stopping.wait(RETRY_S)

    def _read_stream(self) -> grpc.RpcError | None:
        """Join and follow the stream to its end; returns the error if one ended it before the job started."""
        stream = self._stream = self._jobs.Join(self._request)
        try:
            for event in stream:
                kind = event.WhichOneof("event")
                if kind == "joined":
                    self._token = event.joined.token
                elif kind == "started":
                    self._decide(self._info(event.started))
                elif kind == "peer_left":
                    self._events.put(PeerLeft(tuple(event.peer_left.ranks), event.peer_left.reason))
                elif kind == "peer_lost":
                    self._events.put(PeerLost(tuple(event.peer_lost.ranks), event.peer_lost.reason))
                    return None
                elif kind == "disagreement":
                    self._events.put(Disagreement(event.disagreement.reason))
                    return None
                elif kind == "ended":
                    self._over(event.ended.reason)
                    return None
        except grpc.RpcError as error:
            if not isinstance(self._outcome, JobInfo):
                return error
            self._over(self._how_lost(error))
        else:
            if isinstance(self._outcome, JobInfo):
                self._over("the aggregator ended the job without a reason")
        return None

    def _decide(self, outcome: JobInfo | JoinError) -> None:
        self._outcome = outcome
        self._decided.set()

    def _over(self, reason: str) -> None:
        """Report a lost aggregator: as a refusal before the job started, as an event afterwards."""
        if self._outcome is None:
            self._decide(Unreachable(f"aggregator at {self._target}: {reason}"))
        elif isinstance(self._outcome, JobInfo) and not self._left:
            self._events.put(AggregatorLost(reason))

    def _how_lost(self, error: grpc.RpcError) -> str:
        if "keepalive" in (error.details() or "").lower() or "ping timeout" in (error.details() or "").lower():
            return f"the aggregator at {self._target} did not answer for {self._peer_timeout_s:g} s"
        return f"the connection to the aggregator at {self._target} broke: {words_of(error)}"

    def _refusal(self, error: grpc.RpcError) -> str:
        words = error.details() or "no details"
        if is_broken(error):
            return f"no TLS connection to the aggregator at {self._target}: {words}"
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            words += " (is this a switchml aggregator's control port?)"
        who = f"rank {self._request.rank} of job {self._request.job!r}"
        return f"the aggregator at {self._target} refused {who}: {words}"

    def _info(self, started: v2_pb2.Started) -> JobInfo:
        request = self._request
        return JobInfo(**fields(started), job=request.job, rank=request.rank, world_size=request.world_size)

    # The dispatching thread.

    def _dispatch(self, callback: Callable[[SessionEvent], None]) -> None:
        while (event := self._events.get()) is not None:
            if self._left:
                return
            try:
                callback(event)
            except Exception:
                log.exception("the callback of Session.events failed on %r", event)
