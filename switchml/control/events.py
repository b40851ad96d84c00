"""The live stream of events for observers: ZeroMQ PUB at the aggregator, SUB at each observer. JSON, without secrets.

A message has two frames, the kind of the event (so that a subscriber can filter) and a JSON object with `event` (the
kind again), `time` (seconds since 1970) and these fields:

    job_forming  job, world_size
    rank_joined  job, rank, host, pid, joined, world_size
    job_started  job, job_id, world_size, slots, payload_bytes, formed_in_s
    peer_left    job, ranks, reason
    peer_lost    job, ranks, reason
    job_ended    job, job_id, state (ended or failed), reason
    stall        job, job_id, missing: ranks that a round has waited for longer than a second; empty when it is over
    rates        job, job_id, goodput_bps, rounds_per_s, slots_in_use; once a second. For jobs without a secret also
                 received_packets_per_s, sent_packets_per_s, retransmissions_per_s, stale_per_s

Everybody who can connect to the port may subscribe, so there are no addresses, and for jobs with a secret no packet
counts. PUB drops messages that a subscriber does not read in time; the aggregator never waits for an observer.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

import zmq

from switchml.errors import ConfigError

PRIVATE = ("address",)
"""Fields of journal entries that are not published."""


class EventPublisher:
    """Publishes on tcp://bind:port (0 = any free port). Not thread-safe. Raises ConfigError if the port is in use."""

    def __init__(self, bind: str, port: int):
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.linger = 200
        try:
            self._socket.bind(f"tcp://{bind}:{port or '*'}")
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(
                f"events port {bind}:{port}: {error.strerror or error}; choose another with --events-port"
            ) from error
        endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = (bind, int(endpoint.rpartition(":")[2]))

    def publish(self, kind: str, fields: dict[str, Any]) -> None:
        public = {name: value for name, value in fields.items() if name not in PRIVATE}
        message = json.dumps({"event": kind, "time": time.time(), **public})
        self._socket.send_multipart([kind.encode(), message.encode()])

    def close(self) -> None:
        self._socket.close()
        self._context.term()


def follow(
    host: str, port: int, *, kinds: tuple[str, ...] = (), timeout_s: float | None = None, tick_s: float | None = None
) -> Iterator[dict[str, Any]]:
    """Iterate over the events of the aggregator at tcp://host:port, without end; reconnects automatically.

    `kinds`: only these kinds; `timeout_s` ends the iteration after that long without an event; with `tick_s`, yields an
    empty dictionary whenever there was no event for that long.
    """
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.linger = 0
        for kind in kinds or ("",):
            subscriber.subscribe(kind)
        subscriber.connect(f"tcp://{host}:{port}")
        waited_since = ticked = time.monotonic()
        while timeout_s is None or time.monotonic() - waited_since < timeout_s:
            # In slices, so that Ctrl-C is handled.
            if subscriber.poll(200):
                yield json.loads(subscriber.recv_multipart()[-1])
                waited_since = ticked = time.monotonic()
            elif tick_s is not None and time.monotonic() - ticked >= tick_s:
                ticked = time.monotonic()
                yield {}
