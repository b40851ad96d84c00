"""One rank of one v2 job: `Worker` owns the records of worker_state.py, starts tasks, and drives the rules of
sending.py, timers.py and results.py (docs/protocol.md, sections 4 to 6).

Sans-I/O: no socket and no clock. Inputs are packets and `now`; outputs are the slots whose packet is to be sent, and
the next deadline. The agent's compiled loop, the packet-level emulator and the tests drive the same kernels. Times are
int64 nanoseconds of any monotonic clock.

An all-reduce or another collective of a tensor is a task. Tasks are divided into chunks, numbered consecutively through
the job's life; chunk g uses slot g mod S for one or more rounds. If there are two queues of tasks, each numbers its own
chunks and has half of the slots.
"""

import numpy as np

from switchml.errors import ConfigError
from switchml.protocol import exact, first_round, handover, sparse
from switchml.protocol import packet as wire_format
from switchml.protocol.chunks import packet_at
from switchml.protocol.collectives import Collective, run_of
from switchml.protocol.fixedpoint import (
    FLOAT32,
    FLOAT64,
    FORMATS,
    ITEM_BYTES,
    LANE_BYTES,
    LANES,
    RAW,
    WIRES,
    guard_bits,
    has_digits,
    headroom,
    is_exact,
    spreads,
)
from switchml.protocol.halves import KINDS, WHOLE
from switchml.protocol.handover import send_all
from switchml.protocol.packet import CODE_UNKNOWN, MAX_SPARSE_BYTES, check_slots
from switchml.protocol.results import receive
from switchml.protocol.retransmission import INITIAL_RTO, LONGEST_PROBE, MIN_BACKOFF, MIN_IN_FLIGHT
from switchml.protocol.sending import build_streams, fill
from switchml.protocol.sparse import Sparse
from switchml.protocol.timers import timeouts
from switchml.protocol.worker_state import BYTES, QUEUE, QUEUES, RUNNING, SCALARS, SLOT, SUMS, TASK, TASKS, State
from switchml.runtime.memory import u8_at

PAST_CACHES_BYTES = 4 << 20
"""A target of at least this size is written past the caches (memory.copy_past_caches). A core's own cache rarely holds
more, so each line would be read needlessly before it is written, and would displace other data."""
_NEVER = np.iinfo(np.int64).max


def elements_per_chunk(fmt: int, payload_bytes: int, workers: int) -> int:
    """Number of elements of a format in one packet."""
    lanes, guard = payload_bytes // (LANES[fmt] * LANE_BYTES[fmt]), guard_bits(workers)
    return first_round.elements(lanes, guard) if first_round.is_wide(fmt, guard) else lanes


class Worker:
    """One rank of one v2 job, without its socket: owns the arrays, starts tasks, and offers the kernels to Python
    callers. `identity`, `window`, `queues`, `rtt`, `silence`, `timers`, `counters` and `failure` are its records.

    `isn`, `job_tag`, `slots`, `window` (maximum rounds in flight) come from joining; `payload_bytes` is 256 or 1024,
    `large_bytes` the data bytes of large packets, 0 without any. `packets` uint8[2 slots, k >= 42 + payload, or large]:
    memory in which to build packets (each at the end of its row), allocated by default; `wide` uint8[2 slots, k]:
    memory for packets of sparse streams, of up to MAX_SPARSE_BYTES, by default the same rows. `lossless`: the transport
    loses no packets, so a round is probed only to find the ranks it waits for. `padded`: the switch requires padding of
    sparse packets without data. `two_queues`: bytes have a separate queue with half of the slots (section 11).
    `trailer_bytes`: bytes reserved for the tag after each packet, and after the last row. `deadline_ns`: time that sums
    with a memory wait for ranks, 0 for no limit (section 13).
    """

    def __init__(
        self,
        *,
        rank: int,
        workers: int,
        slots: int,
        job_tag: int,
        isn: int,
        window: int | None = None,
        payload_bytes: int = 1024,
        large_bytes: int = 0,
        packets: np.ndarray | None = None,
        wide: np.ndarray | None = None,
        lossless: bool = False,
        padded: bool = False,
        two_queues: bool = False,
        trailer_bytes: int = 0,
        deadline_ns: int = 0,
    ) -> None:
        check_slots(slots)
        count = QUEUES if two_queues and slots >= QUEUES else 1
        size = slots if window is None else window
        if not 1 <= size <= slots:
            raise ConfigError(f"window of {size}: expected 1 to {slots} (the job's slots)")
        if wide is None:
            wide_bytes = max(MAX_SPARSE_BYTES, wire_format.MAX_BEFORE_DATA + large_bytes)
            wide = np.zeros((2 * slots, wide_bytes), np.uint8) if packets is None else packets
        packet_bytes = max(wire_format.HEADER_BYTES + payload_bytes, wire_format.MAX_BEFORE_DATA + large_bytes)
        self.state = State(
            np.zeros(1, SCALARS),
            np.zeros(count, QUEUE),
            np.zeros(slots, SLOT),
            np.zeros(TASKS, TASK),
            np.zeros((2 * slots, packet_bytes), np.uint8) if packets is None else packets,
            wide,
            np.zeros((slots, sparse.STATE_ROWS, wire_format.MAX_COLUMNS), np.int64),
            np.zeros((slots, max(payload_bytes, large_bytes // 2)), np.uint32),
            np.zeros((2 * slots, payload_bytes // 4), exact.SUM),
            np.zeros(2 * slots, np.int64),
            np.zeros((slots, 4, wire_format.MAX_BLOCKS), np.int64),
            np.zeros(payload_bytes // 4, np.uint32),
            np.zeros(wire_format.BITMAP_BYTES, np.uint8),
            np.zeros(max(payload_bytes, large_bytes // 4), np.float32),
        )
        scalars = self.state.scalars
        self.queues = queues = self.state.queues
        self.identity, self.window, self.rtt = scalars["identity"][0], scalars["window"][0], scalars["rtt"][0]
        self.silence, self.timers = scalars["silence"][0], scalars["timers"][0]
        self.counters, self.failure = scalars["counters"][0], scalars["failure"][0]
        identity, rtt = self.identity, self.rtt
        identity["rank"], identity["workers"], identity["slots"] = rank, workers, slots
        identity["payload"], identity["job_tag"], identity["isn"], identity["padded"] = (
            payload_bytes,
            job_tag,
            isn,
            padded,
        )
        identity["large"] = large_bytes
        identity["headroom"], identity["spread"] = headroom(workers), spreads(workers)
        identity["least_timeout"], identity["trailer"] = LONGEST_PROBE if lossless else 0, trailer_bytes
        identity["deadline"] = deadline_ns
        self.window["size"], self.window["credit"] = size, MIN_IN_FLIGHT
        self.window["limit"] = size if lossless else min(size, MIN_IN_FLIGHT)
        rtt["base"], rtt["rto"], rtt["backoff"] = _NEVER // 4, INITIAL_RTO, MIN_BACKOFF
        self.timers["earliest"] = _NEVER
        queues["slots"] = slots // count
        queues["first_slot"] = np.arange(count) * queues["slots"]
        self.state.slots["queue"] = np.arange(slots) // queues["slots"][0]
        self.state.slots["start"] = isn + np.arange(slots)
        self.state.slots["chunk"] = np.arange(slots) % queues["slots"][0] - queues["slots"][0]
        self.state.slots["done"] = 1
        self.state.slots["capacity"] = self.state.slots["kept_capacity"] = payload_bytes
        self.state.slots["agreed"] = CODE_UNKNOWN
        self.state.slots["resent"] = self.state.slots["probed"] = -1
        self._out = np.zeros(2 * slots + 64, np.int32)
        self._non_zero: dict[int, np.ndarray] = {}

    def resume(self, other: "Worker", agreed: bytes, now: int) -> None:
        """Continue at another aggregator, where `other` is this rank's new worker, which must not be used afterwards,
        from the rounds `agreed` (handover.py). Raises ConfigError."""
        self.state = handover.resume(self.state, other.state, agreed, now)

    @property
    def outstanding(self) -> int:
        """Number of tasks in progress."""
        return int(self.window["next_task"] - self.window["first_task"])

    def queue_of(self, collective: Collective | None) -> int:
        """Index of the queue of a collective, or of an all-reduce if None."""
        moves = collective is not None and collective.moves_bytes
        return BYTES if moves and len(self.queues) == QUEUES else SUMS

    def start(
        self,
        source: int,
        target: int,
        numel: int,
        dtype: str,
        divisor: int = 1,
        history: np.ndarray | None = None,
        blocks: Sparse | None = None,
        collective: Collective | None = None,
        memory: int = 0,
    ) -> int:
        """Start an all-reduce of `numel` (> 0) elements at address `source` into `target`; returns the task's number.
        With `collective`, start that (with 0 elements: a barrier), with the elements of one share if it has shares; the
        result is stored as it specifies.

        `dtype` is a key of FORMATS, `divisor` 1 for a sum and n for a mean, `history` int8[k] the exponent codes that
        the first k chunks of the previous equal tensor needed (updated in place; all -128 without one). `blocks`: skip
        those that are zero on every rank (without history). `memory`: address of the same number of elements, which are
        set to those of `source` that came too late, and to 0 elsewhere; may be `source`. A worker with a deadline needs
        one for each dense sum, which may then exclude some ranks. All memory must stay alive until the task is DONE.
        There must be fewer than TASKS tasks outstanding.
        """
        window, fmt = self.window, FORMATS[dtype]
        if blocks is not None and has_digits(fmt):
            fmt = FORMATS[f"{dtype}/limbs"]
        half = WHOLE if is_exact(fmt) else KINDS.get(dtype.partition("/")[0], WHOLE)
        item = ITEM_BYTES[fmt] if half == WHOLE else 2
        number = int(window["next_task"])
        number_of_queue = self.queue_of(collective)
        queue = self.queues[number_of_queue]
        workers, slots = int(self.identity["workers"]), int(queue["slots"])
        payload, large = int(self.identity["payload"]), int(self.identity["large"])
        per_chunk = per_block = elements_per_chunk(fmt, payload, workers)
        capacity, codes = payload, 0
        if large and blocks is None and (fmt == RAW or has_digits(fmt)):
            capacity, per_chunk = large, elements_per_chunk(fmt, large, workers)
        elif large and blocks is None and fmt in (FLOAT32, FLOAT64):
            capacity, codes, per_chunk = large, wire_format.CODES_BYTES, large // payload * per_block
        if WIRES[fmt] and not self.identity["headroom"][WIRES[fmt]]:
            raise ConfigError(f"{dtype}: lanes can't hold the sum of {workers} ranks; use a wider wire")
        columns, threshold, non_zero, group = 0, 0.0, 0, 0
        if not memory and self.identity["deadline"] and blocks is None and collective is None:
            raise ConfigError("a dense sum in a job with a deadline: expected memory for late contributions")
        if collective is not None and is_exact(fmt):
            raise ConfigError(f"{dtype}: exact sums are all-reduces; expected no other collective")
        if blocks is not None:
            if is_exact(fmt) or half:
                raise ConfigError(f"{dtype}: dense only, expected no sparse blocks")
            columns, threshold = blocks.columns(per_chunk), blocks.threshold
            per_chunk -= per_chunk % columns
            first = int(window["first_task"])
            self._non_zero = {other: array for other, array in self._non_zero.items() if other >= first}
            self._non_zero[number] = np.empty(-(-numel // (per_chunk // columns)), np.uint8)
            non_zero = self._non_zero[number].ctypes.data
        chunks = -(-numel // per_chunk) or 1
        if columns:
            chunks, history = sparse.streams_of(slots, chunks), None
        if first_round.is_wide(fmt, guard_bits(workers)):
            group = first_round.group_size(slots, guard_bits(workers))
            chunks += -(-chunks // group)
        scheme = (0,) * 10
        if collective is not None:
            shares, run = collective.shares, run_of(slots, collective.shares or 1)
            places = (collective.reach, collective.root, collective.op, shares, chunks, run)
            scheme = (1, *places, collective.source_step, collective.target_step, collective.mark)
            chunks *= shares or 1
        remembered = 0 if history is None else min(len(history), per_chunk // per_block * chunks)
        history_at = history.ctypes.data if history is not None and remembered else 0
        elements = (source, target, numel, fmt, divisor, per_chunk)
        progress = (queue["total"], chunks, 0, item, half, history_at, remembered, 0, RUNNING)
        self.state.tasks[number % TASKS] = (
            *elements,
            *progress,
            columns,
            threshold,
            non_zero,
            0,
            group,
            number_of_queue,
            *scheme,
            memory,
            workers,
            0,
            numel * max(scheme[4], 1) * item >= PAST_CACHES_BYTES,
            capacity,
            codes,
            per_block,
        )
        queue["total"] += chunks
        window["next_task"] += 1
        return number

    def receive(self, datagrams: list[bytes], now: int) -> list[bytes]:
        """Process arrived datagrams; returns the packets to send now (including due retransmissions and new ones)."""
        n = send_all(self.state, self._out) if self.window["moved"] else 0
        for data in datagrams:
            buffer = np.frombuffer(data or b"\0", np.uint8)
            n = receive(self.state, buffer.ctypes.data, len(data), now, self._out, n)
        n = fill(self.state, now, self._out, n)
        build_streams(self.state, self._out, n)
        n = timeouts(self.state, now, self._out, n)
        slots = self.state.slots
        return [u8_at(packet_at(self.state, i), int(slots[i]["length"])).tobytes() for i in self._out[:n].tolist()]

    @property
    def deadline(self) -> int:
        """Time at which `receive` must be called again if nothing arrives (ns; the largest int64 if nothing is in
        flight)."""
        return int(self.timers["earliest"])

    def missing_ranks(self) -> tuple[int, ...]:
        """The ranks named by the last wait packet."""
        return tuple(np.flatnonzero(np.unpackbits(self.state.missing, bitorder="little")).tolist())
