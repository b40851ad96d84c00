"""One TCP connection, packet by packet, with the mechanisms that determine the time of a bulk transfer: slow start,
CUBIC, selective acknowledgements, fast recovery, the retransmission timer. No handshake, no flow control, no Nagle.

RFC 5681 (slow start, recovery), RFC 9438 (CUBIC), RFC 8985 (RACK loss detection and tail loss probes), RFC 6937
(proportional rate reduction), RFC 6298 (the timer, with Linux's minimum of 200 ms). Windows count packets of one
segment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from emulator.networks.netsim.link import NS, Environment
from emulator.networks.netsim.rank import Alarm
from switchml.protocol.sizes import IP_BYTES, MTU, TCP_BYTES, UDP_BYTES

MSS_BYTES = MTU - IP_BYTES - TCP_BYTES
"""Payload of a segment with an MTU of 1500 and TCP timestamps, as Linux sends them."""
HEADER_BYTES = TCP_BYTES - UDP_BYTES
"""TCP header with timestamps, less the UDP header that a link's framing includes."""
ACK_EVERY = 2
"""Segments per acknowledgement (RFC 5681, delayed ACKs); immediate if segments are missing."""
INITIAL_WINDOW = 10.0
"""Initial window of RFC 6928."""
MINIMUM_RTO_S, INITIAL_RTO_S = 0.2, 1.0
ACK_GRAIN_S = 0.001
"""Added to the reordering window's timer: a jiffy."""
PROBE_GRAIN_S = 0.002
"""Added to two round-trip times before a probe: the granularity of Linux's timers (TCP_TIMEOUT_MIN)."""
REORDERING = 0.25
"""Reordering window as a share of the round-trip time: a segment sent this long before one that arrived is lost (RFC
8985, section 6.2)."""
SACKED = 32
"""Selectively acknowledged segments named in an acknowledgement: the latest arrivals (RFC 2018's three blocks cover
about as many)."""
_BETA, _C = 0.7, 0.4
"""RFC 9438: the window reduction factor after a loss, and the coefficient of the cubic (packets/s^3)."""


class Segment:
    """A segment. `number` counts segments from 0; `size`: its payload. An acknowledgement has `size` 0: all segments
    before `number` arrived, and those in `sacked`. `is_last`: no further data was queued behind it."""

    __slots__ = ("connection", "is_last", "length", "number", "sacked", "size", "to")
    count = 1

    def __init__(
        self,
        connection: Connection,
        to: int,
        number: int,
        size: int,
        is_last: bool = False,
        sacked: tuple[int, ...] = (),
    ):
        self.connection, self.to, self.number, self.size = connection, to, number, size
        self.is_last, self.sacked, self.length = is_last, sacked, size + HEADER_BYTES


class Connection:
    """A connection from host `ends[0]` to host `ends[1]`. `send_data` and `send_ack` transmit a Segment from either
    end; its receiver calls `receive`. `on_bytes(count)` is called for bytes that arrived in order.
    """

    def __init__(
        self,
        env: Environment,
        ends: tuple[int, int],
        send_data: Callable[[Segment], bool],
        send_ack: Callable[[Segment], bool],
        on_bytes: Callable[[int], None],
    ):
        self.env, self.ends, self._on_bytes = env, ends, on_bytes
        self._send_data, self._send_ack = send_data, send_ack
        self._sizes: deque[int] = deque()  # sizes of the segments from `_una` on
        self._una = self._next = self._end = 0  # oldest unacknowledged, next to send, end of the written data
        self._window, self._threshold = INITIAL_WINDOW, float("inf")
        self._sent_at: dict[int, int] = {}
        self._in_order_sent: deque[tuple[int, int]] = deque()  # (send time, segment) of every transmission
        self._newest = -1  # latest send time among segments that have arrived
        self._sacked: set[int] = set()
        self._lost: set[int] = set()
        self._resent: set[int] = set()  # lost and retransmitted
        self._recover = 0  # recovery ends when this segment is acknowledged
        self._most_before, self._epoch_ns = 0.0, -1
        self._srtt = self._rttvar = 0.0
        self._rto_s = INITIAL_RTO_S
        self._timed: tuple[int, int] | None = None  # the segment whose round trip is measured, and its send time
        self._alarm = Alarm(env, self._time_out)
        self._has_probed = False
        self._expected = self._unacknowledged = 0
        self._early: dict[int, int] = {}  # sizes of out-of-order segments, by number
        self._recent: deque[int] = deque(maxlen=SACKED)
        self.sent = self.retransmitted = self.timeouts = 0

    # -- sender --

    def write(self, count: int) -> None:
        """Send `count` more bytes."""
        full, rest = divmod(count, MSS_BYTES)
        self._sizes.extend([MSS_BYTES] * full + [rest] * bool(rest))
        self._end += full + bool(rest)
        self._push()

    @property
    def _in_flight(self) -> int:
        return self._next - self._una - len(self._sacked) - len(self._lost) + len(self._resent)

    def _push(self, delivered: int | None = None) -> None:
        """Send what the window allows; in recovery, at most as many segments as were `delivered` (RFC 6937), as a burst
        would hit a queue that was full a moment ago."""
        if not self._alarm.is_set and self._una < self._end:
            self._set_alarm()
        missing = sorted(self._lost - self._resent)
        usable = int(self._window) - self._in_flight
        if delivered is not None and self._una < self._recover:
            usable = min(usable, max(delivered, 1))
        for _ in range(usable):
            if missing:
                self._resent.add(missing[0])
                self._emit(missing.pop(0))
                self.retransmitted += 1
            elif self._next < self._end:
                if self._timed is None:
                    self._timed = (self._next, self.env.now)
                self._next += 1
                self._emit(self._next - 1)
            else:
                break

    def _emit(self, number: int) -> None:
        size = self._sizes[number - self._una]
        self.sent += 1
        self._sent_at[number] = self.env.now
        self._in_order_sent.append((self.env.now, number))
        self._send_data(Segment(self, self.ends[1], number, size, number == self._end - 1))

    def receive(self, segment: Segment) -> None:
        """Handle an arriving segment of this connection, data at the one end or an acknowledgement at the other."""
        if segment.size:
            self._receive_data(segment)
        else:
            self._receive_ack(segment)

    def _receive_ack(self, ack: Segment) -> None:
        fresh = max(ack.number - self._una, 0)
        new = {number for number in ack.sacked if number >= self._una} - self._sacked
        for number in (*range(self._una, ack.number), *new):
            self._newest = max(self._newest, self._sent_at[number])
        if fresh:
            for number in range(self._una, ack.number):
                self._sizes.popleft()
                del self._sent_at[number]
                for group in (self._sacked, self._lost, self._resent):
                    group.discard(number)
            self._una = ack.number
            if self._timed is not None and self._timed[0] < ack.number:
                self._measure(self.env.now - self._timed[1])
            if ack.number >= self._recover:
                self._grow(fresh)
            self._has_probed = False
        self._sacked |= new
        self._lost -= new
        self._resent -= new
        self._find_losses(int(REORDERING * self._srtt * NS))
        if fresh or new:
            self._set_alarm()
        self._push(fresh + len(new))

    def _find_losses(self, reordering_ns: int) -> None:
        """Mark segments, including retransmissions, as lost that were sent this long before one that has arrived."""
        has_losses = False
        while self._in_order_sent and self._in_order_sent[0][0] + reordering_ns < self._newest:
            sent_at, number = self._in_order_sent.popleft()
            if self._sent_at.get(number) == sent_at and number not in self._sacked:
                self._lost.add(number)
                self._resent.discard(number)
                has_losses = True
        if not has_losses:
            return
        self._timed = None  # Karn: no measurement over a retransmission
        if self._una >= self._recover:
            self._recover = self._next
            self._reduce()
            self._window = self._threshold

    def _reduce(self) -> None:
        self._most_before = self._window
        self._threshold = max(self._window * _BETA, 2.0)
        self._epoch_ns = -1

    def _grow(self, acknowledged: int) -> None:
        if self._window < self._threshold:
            self._window += acknowledged
            return
        if self._epoch_ns < 0:
            self._epoch_ns = self.env.now
            self._most_before = max(self._most_before, self._window)
        elapsed = (self.env.now - self._epoch_ns) / NS + self._srtt
        inflection = ((self._most_before * (1 - _BETA)) / _C) ** (1 / 3)
        target = _C * (elapsed - inflection) ** 3 + self._most_before
        # RFC 9438's Reno-friendly region: never slower than a Reno window with the same beta.
        friendly = self._threshold + 3 * (1 - _BETA) / (1 + _BETA) * elapsed / max(self._srtt, 1e-9)
        target = min(max(target, friendly), 1.5 * self._window)
        if target > self._window:
            self._window += (target - self._window) / self._window * acknowledged

    def _measure(self, round_trip_ns: int) -> None:
        self._timed = None
        sample = round_trip_ns / NS
        if not self._srtt:
            self._srtt, self._rttvar = sample, sample / 2
        else:
            self._rttvar += (abs(sample - self._srtt) - self._rttvar) / 4
            self._srtt += (sample - self._srtt) / 8
        self._rto_s = max(self._srtt + 4 * self._rttvar, MINIMUM_RTO_S)

    def _set_alarm(self) -> None:
        """Set the alarm for the next timer: the reordering window's end, the probe, or the retransmission timeout."""
        wait_s = self._rto_s
        if self._srtt and self._sacked:
            wait_s = min(REORDERING * self._srtt + ACK_GRAIN_S, wait_s)
        elif self._srtt and not self._has_probed:
            wait_s = min(2 * self._srtt + PROBE_GRAIN_S, wait_s)
        self._alarm.set(self.env.now + int(wait_s * NS) if self._una < self._end else None)

    def _time_out(self) -> None:
        if self._una == self._end:
            return
        if self._sacked and self._in_order_sent and self._in_order_sent[0][0] < self._newest:
            self._find_losses(0)
            self._alarm.set(self.env.now + int(self._rto_s * NS))
            self._push()
            return
        if self._srtt and not self._has_probed and self._next > self._una:
            self._has_probed, self._timed = True, None
            self._emit(self._next - 1)
            self.retransmitted += 1
            self._alarm.set(self.env.now + int(self._rto_s * NS))
            return
        self.timeouts += 1
        self._reduce()
        self._window, self._timed = 1.0, None
        self._lost = set(range(self._una, self._next)) - self._sacked
        self._resent.clear()
        self._recover = self._next
        self._rto_s = min(2 * self._rto_s, 60.0)
        self._has_probed = True
        self._alarm.set(self.env.now + int(self._rto_s * NS))
        self._push()

    # -- receiver --

    def _receive_data(self, segment: Segment) -> None:
        arrived = 0
        if segment.number >= self._expected:
            self._early[segment.number] = segment.size
            self._recent.append(segment.number)
        while self._expected in self._early:
            arrived += self._early.pop(self._expected)
            self._expected += 1
            self._unacknowledged += 1
        if self._early or not arrived or self._unacknowledged >= ACK_EVERY or segment.is_last:
            self._unacknowledged = 0
            sacked = tuple(number for number in self._recent if number > self._expected)
            self._send_ack(Segment(self, self.ends[0], self._expected, 0, sacked=sacked))
        if arrived:
            self._on_bytes(arrived)
