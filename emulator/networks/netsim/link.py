"""One direction of a cable and the queue in front of it: packets queue, are serialized and propagate, and may be lost,
duplicated or delayed.

The queue needs no events: a packet's end of transmission is known when it is queued, since the packets ahead of it
can't change. Only arrivals are events. All times are whole nanoseconds of the simpy environment's clock.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import simpy

from emulator.networks.netsim.config import LinkConfig
from emulator.networks.netsim.packets import Train

NS = 1e9


@dataclass
class LinkCounts:
    """Counters of a link. `bytes` and `packets` were sent, framing included; `dropped` found the queue full; `lost`
    were sent and never arrived. Queue lengths include waiting packets and the one being sent."""

    packets: int = 0
    bytes: int = 0
    dropped: int = 0
    lost: int = 0
    duplicated: int = 0
    late: int = 0
    most_queued_bytes: float = 0.0
    queued_byte_s: float = 0.0
    """Time integral of the queue's length, in byte seconds."""


class Environment(simpy.Environment):
    """Virtual time, in whole nanoseconds."""

    @property
    def now(self) -> int:
        return int(self._now)


class _Call:
    """An event that calls `action(value)`; simpy's own event types would double the cost of a packet."""

    __slots__ = ("_action", "_value", "callbacks")
    _ok = True

    def __init__(self, action: Callable[[Any], object], value: Any):
        self._action, self._value = action, value
        self.callbacks = _CALLBACKS

    def ring(self) -> None:
        self._action(self._value)


_CALLBACKS = (_Call.ring,)


def at(env: Environment, time_ns: int, action: Callable[[Any], object], value: Any = None) -> None:
    """Schedule `action(value)` at `time_ns`, which must not be in the past."""
    env.schedule(_Call(action, value), delay=time_ns - env.now)  # type: ignore[arg-type]  # duck-typed as an Event


class Link:
    """One direction of a link. `deliver(packet)` is called when a packet arrives. `chooser` draws losses, delays and
    duplicates."""

    def __init__(
        self,
        env: Environment,
        config: LinkConfig,
        chooser: random.Random,
        deliver: Callable[[Any], object],
        name: str = "",
    ):
        self.env, self.chooser, self.deliver, self.name = env, chooser, deliver, name
        self.counts = LinkCounts()
        self.is_cut = False
        """While true, all sent packets are lost."""
        self._free_at = 0.0
        self._last_arrival = 0
        self._is_bad = False  # Gilbert's model: in the bad state everything is lost
        self.become(config)

    def become(self, config: LinkConfig) -> None:
        """Change the properties; packets already queued keep their times."""
        self.config = config
        self._framing_bytes, self._queue_bytes = config.framing_bytes, config.queue_bytes or math.inf
        self._ns_per_byte = 8 * NS / config.rate_bps
        self._least_ns = config.packet_s * NS
        self._delay_ns = config.delay_s * NS
        self._burst_ns = config.burst_bytes * self._ns_per_byte
        self._jitter_ns = config.jitter_s * NS
        burst = max(config.burst_packets, 1 / (1 - config.loss))  # even independent losses are sometimes consecutive
        self._leave_bad, self._enter_bad = 1 / burst, config.loss / (burst * (1 - config.loss))
        self._is_plain = not (config.loss or config.jitter_s or config.duplicate or config.late)

    def send(self, packet: Any) -> bool:
        """Queue a packet or a train of `packet.length` bytes (without framing). Returns whether there
        was room for it."""
        counts, now, count = self.counts, self.env.now, packet.count
        length = packet.length + self._framing_bytes
        # Comparisons instead of four calls of `max` per packet: calls dominate the cost.
        waiting_ns = self._free_at - self._burst_ns - now
        queued = (waiting_ns / self._ns_per_byte if waiting_ns > 0.0 else 0.0) + length
        if queued > self._queue_bytes:
            counts.dropped += count
            return False
        counts.packets += count
        counts.bytes += length
        if queued > counts.most_queued_bytes:
            counts.most_queued_bytes = queued
        service, least = length * self._ns_per_byte, self._least_ns * count
        # The token bucket as a virtual clock (ITU-T I.371's GCRA): `_free_at` is when a link without bursts would be
        # free.
        self._free_at = (self._free_at if self._free_at > now else now) + (service if service > least else least)
        departure = self._free_at - self._burst_ns
        if departure < now:
            departure = now
        counts.queued_byte_s += length * (departure - now) / NS
        if self.is_cut:
            counts.lost += count
        elif self._is_plain:
            # Rounded up: a packet may not arrive before its last bit.
            at(self.env, -int(-(departure + self._delay_ns) // 1), self.deliver, packet)
        else:
            self._travel(packet, departure)
        return True

    def _travel(self, packet: Any, departure: float) -> None:
        config, counts, draw = self.config, self.counts, self.chooser.random
        if config.loss:
            packet = self._thin_out(packet)
            if packet is None:
                return
        arrival = -int(-(departure + self._delay_ns) // 1)
        if self._jitter_ns:
            arrival = self._last_arrival = max(arrival + int(draw() * self._jitter_ns), self._last_arrival)
        if config.duplicate and draw() < config.duplicate:
            counts.duplicated += 1
            at(self.env, arrival + int(draw() * config.late_s * NS), self.deliver, packet)
        if config.late and draw() < config.late:
            counts.late += 1
            arrival += int(draw() * config.late_s * NS)
        at(self.env, arrival, self.deliver, packet)

    def _thin_out(self, packet: Any) -> Any:
        """The packets of a packet or train that survive loss; None if there are none."""
        surviving = []
        for one in packet.packets if isinstance(packet, Train) else (packet,):
            draw = self.chooser.random()
            self._is_bad = draw >= self._leave_bad if self._is_bad else draw < self._enter_bad
            if not self._is_bad:
                surviving.append(one)
        self.counts.lost += packet.count - len(surviving)
        if len(surviving) == packet.count:
            return packet
        return Train(surviving, packet.framing_bytes) if surviving else None


class Server:
    """A server that processes packets one after the other at a limited rate, with a latency: a switch's pipeline, a
    CPU."""

    def __init__(self, env: Environment, packets_per_s: float, latency_s: float, deliver: Callable[[Any], object]):
        self.env, self.deliver = env, deliver
        self.handled = 0
        self.most_waiting = 0.0
        self._service_ns = NS / packets_per_s if packets_per_s else 0.0
        self._latency_ns = latency_s * NS
        self._free_at = 0.0

    def send(self, packet: Any) -> bool:
        """Process a packet."""
        now = self.env.now
        self.handled += packet.count
        if not self._service_ns and not self._latency_ns:
            self.deliver(packet)
            return True
        self._free_at = max(self._free_at, now) + self._service_ns * packet.count
        if self._service_ns:
            self.most_waiting = max(self.most_waiting, (self._free_at - now) / self._service_ns)
        at(self.env, -int(-(self._free_at + self._latency_ns) // 1), self.deliver, packet)
        return True
