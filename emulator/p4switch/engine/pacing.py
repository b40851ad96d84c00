"""Egress queues with a rate limit or zero capacity, for the compiled engine: packets wait in EgressQueues, as in the
interpreter, and are returned to the packet path's kernels one by one."""

import ctypes
from typing import NamedTuple

from emulator.p4switch.engine.layout import CELL, views
from emulator.p4switch.engine.memory import RING_SIZE, Memory
from emulator.p4switch.packet_path.engine import SLACK
from emulator.p4switch.state.state import State
from emulator.p4switch.traffic import EgressQueues


class Waiting(NamedTuple):
    """A waiting packet: its queue, its system cells and headers, and its bytes."""

    port: int
    priority: int
    headers: bytes
    data: bytes


class Pacing:
    """Transfers packets between the kernels' ring `queued` and the egress `queues`. `enqueue` moves packets from the
    ring to the queues, `release` back."""

    def __init__(self, state: State, memory: Memory) -> None:
        self.queues: EgressQueues[Waiting] = EgressQueues(state.queues, state.clock)
        self._plan, self._headers_bytes = views(memory.plan), memory.layout.phv_end
        self._qdepth, _ = memory.field("queueing_metadata.enq_qdepth")
        self._version = -1
        self._is_paced = False
        self._data = ctypes.create_string_buffer(0)

    def is_needed(self) -> bool:
        """Whether packets may have to wait in queues: a queue has a rate limit or zero capacity, or a packet waits."""
        settings = self.queues.settings
        if settings.version != self._version:
            self._version = settings.version
            self._is_paced = settings.are_paced
        is_needed = self._is_paced or self.queues.next_us() is not None
        self._plan["is_paced"][0] = is_needed
        return is_needed

    def enqueue(self) -> None:
        """Move the ring's packets to their queues; packets that find a full queue are dropped."""
        names = ("queued", "queued_first", "queued_n", "ring_stride")
        ring, first, n, stride = (int(self._plan[name][0]) for name in names)
        for number in range(first, first + n):
            self._enqueue(ring + number % RING_SIZE * stride)
        self._plan["queued_first"][0] = self._plan["queued_n"][0] = 0

    def _enqueue(self, packet: int) -> None:
        port, priority = _word(packet + CELL.queue_port).value, _word(packet + CELL.queue_priority).value
        if self._qdepth >= 0:
            _word(packet + self._qdepth).value = self.queues.size(port, priority)
        headers = ctypes.string_at(packet, self._headers_bytes)
        data = ctypes.string_at(_word(packet + CELL.packet).value, _word(packet + CELL.length).value)
        self.queues.push(port, priority, Waiting(port, priority, headers, data + bytes(SLACK)))

    def release(self) -> bool:
        """Move the next due packet to the ring, which is empty, for the kernels. Returns False if there is none."""
        waiting = self.queues.pop()
        if waiting is None:
            return False
        packet = int(self._plan["queued"][0])
        ctypes.memmove(packet, waiting.headers, len(waiting.headers))
        self._data = ctypes.create_string_buffer(waiting.data)
        _word(packet + CELL.packet).value = ctypes.addressof(self._data)
        _word(packet + CELL.now).value = int(self._plan["now"][0])
        self._plan["queued_n"][0] = self._plan["n_released"][0] = 1
        self._plan["queue_length"][0] = self.queues.size(waiting.port, waiting.priority)
        return True


def _word(address: int) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(int(address))
