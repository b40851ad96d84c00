"""The real agent (host_agent/agent.py) without its thread and socket: the same calls, errors and rules, one turn
whenever a packet, a timer or a call comes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import simpy

from emulator.netsim.link import NS
from emulator.netsim.packets import Packet
from emulator.netsim.rank import NEVER, Alarm, Turns
from host_agent import loop as compiled
from host_agent.agent import HostAgent


class _Way:
    """Stands where the agent expects its way to the aggregator (host_agent/reach.py); there is nothing to close."""

    name, aggregator = "udp", ("virtual", 0)

    def packet_rows(self, slots: int, payload_bytes: int) -> None:
        """The worker makes its packets in memory of its own."""

    def sparse_rows(self, slots: int) -> None:
        """Those of sparse streams, too."""

    def close(self) -> None:
        pass


class VirtualAgent(HostAgent):
    """`send(packet)` carries its datagrams; `endpoint` is written on them as where they come from. `inbox_packets`:
    what its receive buffer holds. While `is_paused` it does nothing."""

    def __init__(
        self,
        env: simpy.Environment,
        session,
        *,
        rank: int,
        world_size: int,
        job: str,
        endpoint: int,
        send: Callable[[Packet], object],
        inbox_packets: int,
    ):
        self.env, self._endpoint, self._send_packet = env, endpoint, send
        self._inbox: list[Packet] = []
        self._inbox_packets = inbox_packets
        self._is_working = False
        self.is_paused = self.is_over = False
        super().__init__(session, _Way(), rank=rank, world_size=world_size, job=job)

    # What HostAgent leaves to its surroundings.

    def _clock(self) -> float:
        return self.env.now / NS

    def _open(self, aggregator: tuple[str, int]) -> None:
        self._turns = Turns(self._worker, self._endpoint, self.rank)
        self._alarm = Alarm(self.env, self.work)
        self._thread = threading.current_thread()

    def _end_thread(self) -> None:
        self.work()

    # What comes from outside.

    def receive(self, packet: Packet) -> None:
        """A datagram has arrived."""
        if len(self._inbox) < self._inbox_packets:
            self._inbox.append(packet)
            self.work()

    def hear(self, tell: Callable[[], None]) -> None:
        """Something is told to the agent by another thread; then it wakes."""
        tell()
        self.work()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self.work()

    def vanish(self) -> None:
        """The process is gone, without a word."""
        self.is_over = True
        self._alarm.set(None)

    def work(self) -> None:
        """What the agent's thread does from waking up until it sleeps again."""
        if self.is_over or self.is_paused or self._is_working:
            return
        self._is_working = True
        try:
            why = compiled.TASK_DONE
            while why != compiled.TICK:
                if not self._before_loop():
                    self.vanish()
                    self._wind_up()
                    return
                packets, self._inbox = self._inbox, []
                for packet in self._turns.turn(packets, self.env.now):
                    self._send_packet(packet)
                if self._turns.error:
                    why = compiled.FAILED
                else:
                    why = compiled.TASK_DONE if self._turns.completed > self._reported else compiled.TICK
                self._after_loop(why)
                if self._error is not None or self._queue:
                    why = compiled.WOKEN  # its own doing: a call that was submitted or failed in between
        finally:
            self._is_working = False
        due = self._turns.deadline
        if self._running:
            due = min(due, self.env.now + self._tick_ns)
        self._alarm.set(due if due != NEVER else None)
