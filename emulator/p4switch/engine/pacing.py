"""Egress queues with a rate, or without room, for the compiled engine: packets wait in EgressQueues, as they do in the
interpreter, and the packet path's kernels get them back one by one."""

import ctypes
from typing import NamedTuple

from emulator.p4switch.engine.layout import CELL, views
from emulator.p4switch.engine.memory import RING_SIZE, Memory
from emulator.p4switch.packet_path.engine import SLACK
from emulator.p4switch.state.state import State
from emulator.p4switch.traffic import EgressQueues


class Waiting(NamedTuple):
    """A packet that waits: its queue, its system cells and headers, and its bytes."""

    port: int
    priority: int
    headers: bytes
    data: bytes


class Pacing:
    """`queues` hold the packets. The kernels put packets into the ring `queued`, and `park` takes them from there."""

    def __init__(self, state: State, memory: Memory) -> None:
        self.queues: EgressQueues[Waiting] = EgressQueues(state.queues, state.clock)
        self._plan, self._headers_bytes = views(memory.plan), memory.layout.phv_end
        self._qdepth, _ = memory.field("queueing_metadata.enq_qdepth")
        self._version = -1
        self._is_paced = False
        self._data = ctypes.create_string_buffer(0)

    def is_needed(self) -> bool:
        """Whether packets may have to wait in queues: a queue has a rate, or no room at all, or a packet waits."""
        settings = self.queues.settings
        if settings.version != self._version:
            self._version = settings.version
            self._is_paced = settings.are_paced
        is_needed = self._is_paced or self.queues.next_us() is not None
        self._plan["is_paced"][0] = is_needed
        return is_needed

    def park(self) -> None:
        """Put the ring's packets into their queues; those that find them full are dropped."""
        names = ("queued", "queued_first", "queued_n", "ring_stride")
        ring, first, n, stride = (int(self._plan[name][0]) for name in names)
        for number in range(first, first + n):
            self._park(ring + number % RING_SIZE * stride)
        self._plan["queued_first"][0] = self._plan["queued_n"][0] = 0

    def _park(self, packet: int) -> None:
        port, priority = _word(packet + CELL.queue_port).value, _word(packet + CELL.queue_priority).value
        if self._qdepth >= 0:
            _word(packet + self._qdepth).value = self.queues.size(port, priority)
        headers = ctypes.string_at(packet, self._headers_bytes)
        data = ctypes.string_at(_word(packet + CELL.packet).value, _word(packet + CELL.length).value)
        self.queues.push(port, priority, Waiting(port, priority, headers, data + bytes(SLACK)))

    def release(self) -> bool:
        """Put the packet whose turn it is into the ring, which is empty, for the kernels; False if there is none."""
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
