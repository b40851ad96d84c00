"""Continuation of a job at another aggregator (docs/protocol.md, section 12): the report of each rank, the aggregator's
decision, and the resumption of a worker's rounds.

A round has its result only if every rank contributed, so no rank is more than one round of a slot ahead of another. A
worker keeps each round's packet until the next round of the slot has its result. So a rank that is ahead sends the
packet of its last round again, and ranks that lack the result get it: from the same packets, so with the same bits.
"""

from collections.abc import Sequence

import numpy as np

from switchml.errors import ConfigError
from switchml.protocol.packet import ADDRESSED_BYTES, HEADER_BYTES, R_FLAG, WORD_BYTES
from switchml.protocol.sending import advance, send, start_list
from switchml.protocol.worker_state import REDO, REDO_THEN_SEND, State
from switchml.runtime.jit import int64, kernel
from switchml.runtime.memory import u8_at

_MODULUS = 256
"""Rounds are reported modulo this, since ranks differ by at most one."""


def agree(reports: Sequence[bytes]) -> bytes:
    """The round of each slot from which a job continues: the minimum over the ranks' reports (`rounds_of`), modulo 256.

    Raises ConfigError if the reports can't be of ranks of one job: rounds that differ by more than one, or different
    numbers of slots.
    """
    if len({len(report) for report in reports}) != 1:
        raise ConfigError(f"ranks report {sorted({len(report) for report in reports})} slots: expected the same number")
    rounds = np.array([np.frombuffer(report, np.uint8) for report in reports])
    ahead = rounds - rounds[0]  # modulo 256: 255, 0 or 1
    behind = (ahead == _MODULUS - 1).any(axis=0)
    if (ahead + behind > 1).any():
        raise ConfigError("ranks report rounds that differ by more than one: they are not in the same state of a job")
    least: bytes = (rounds[0] - behind).astype(np.uint8).tobytes()
    return least


def rounds_of(state: State) -> bytes:
    """A worker's report: for each slot the number of rounds that have their results, modulo 256."""
    slots = state.slots
    done: bytes = (slots["round"] + (slots["redo"] > 0)).astype(np.uint8).tobytes()
    return done


def has_no_result(state: State) -> bool:
    """Whether no round of a worker has its result yet."""
    slots = state.slots
    return not (slots["round"].any() or slots["redo"].any())


def resume(state: State, fresh: State, agreed: bytes, now: int) -> State:
    """Resume at another aggregator, from the rounds that it answered (`agree`). `fresh`: the arrays of a new worker of
    the job there, with its tag, sequence numbers, window and packet rows; `now`: in ns. Returns the arrays to use from
    now on; `send_all` then sends the packets of all rounds in flight.

    Raises ConfigError, and changes nothing, if `agreed` does not match the worker's report.
    """
    slots, number = state.slots, len(state.slots)
    repeated = slots["redo"] > 0
    done = slots["round"] + repeated
    ahead = (done - np.frombuffer(agreed, np.uint8)) % _MODULUS
    if (ahead > 1).any():
        raise ConfigError("the aggregator resumes at rounds that do not match this rank's report")
    moved = state._replace(packets=fresh.packets, wide=fresh.wide)
    identity = fresh.scalars["identity"]
    if identity["large"] != state.scalars["identity"]["large"]:
        raise ConfigError("the aggregator's packets differ in size from those of the rounds in progress")
    # 1. A repetition in progress is undone; it may be due again.
    slots["busy"][repeated] = slots["redo"][repeated] == REDO_THEN_SEND
    _swap_packet_fields(slots, repeated)
    slots["round"], slots["redo"] = done, 0
    slots["start"] = identity["isn"] + np.arange(number) - (done - ahead) * number
    _move_packets(state, moved, np.flatnonzero(slots["busy"]), identity)
    # 2. If a rank lacks the result of a slot's last round, that round is repeated first.
    redo = ahead == 1
    slots["redo"][redo] = np.where(slots["busy"][redo], REDO_THEN_SEND, REDO)
    slots["busy"][redo] = 1
    _swap_packet_fields(slots, redo)
    slots["round"] -= redo
    _move_packets(state, moved, np.flatnonzero(redo), identity)
    # 3. Timers and window are reset. A queue's base returns to the lowest chunk that is repeated.
    busy = slots["busy"] == 1
    slots["waited"] = slots["retries"] = 0
    slots["resent"] = slots["probed"] = -1
    for name in ("identity", "rtt", "silence", "timers"):
        state.scalars[name] = fresh.scalars[name]
    slots["sent_at"][busy] = now
    slots["deadline"][busy] = due = now + int(state.scalars["rtt"]["rto"][0])
    state.scalars["timers"]["earliest"] = due
    state.scalars["silence"]["flight_at"] = now
    for number, queue in enumerate(state.queues):
        ours = slots["queue"] == number
        free = (slots["done"] == 1) & (slots["redo"] == 0)
        chunks = (slots["chunk"] + np.where(free, queue["slots"], 0))[ours]  # the next chunk of each slot
        queue["base"] = min(int(queue["next"]), int(chunks.min()))
        queue["late"] = np.count_nonzero(free[ours] & (chunks < queue["next"]))
        queue["in_flight"] = np.count_nonzero(busy & ours)
        queue["progress_at"], queue["heard_at"], queue["newest"] = now, 0, 0
    window, first = state.scalars["window"][0], fresh.scalars["window"][0]
    for name in ("size", "limit", "credit"):
        window[name] = first[name]
    window["in_flight"], window["moved"], window["limited"] = np.count_nonzero(busy), 1, 0
    window["counted"], window["counted_at"] = state.scalars["counters"]["received"][0], now
    return moved


def _swap_packet_fields(slots: np.ndarray, which: np.ndarray) -> None:
    """Exchange the descriptions of a slot's current packet and of the previous one."""
    for name in ("words", "codes", "length", "capacity"):
        kept = slots[f"kept_{name}"][which]  # indexed by a mask: a copy
        slots[f"kept_{name}"][which] = slots[name][which]
        slots[name][which] = kept


def _move_packets(state: State, moved: State, indices: np.ndarray, identity: np.ndarray) -> None:
    """Copy the packets of the listed slots' rounds to the rows of `moved`, with the new aggregator's tag and sequence
    numbers. Includes lanes that a root stores after its packet."""
    count = len(state.slots)
    trailers = int(state.scalars["identity"]["trailer"][0]), int(identity["trailer"][0])
    job_tag = int(identity["job_tag"][0]).to_bytes(2, "big")
    for index in indices.tolist():
        slot = state.slots[index]
        start, number, words, data = (int(slot[name]) for name in ("start", "round", "words", "capacity"))
        end = index + (number & 1) * count + 1
        source, target = (one.wide if words else one.packets for one in (state, moved))
        before = HEADER_BYTES + WORD_BYTES * words + int(slot["codes"])
        ends = [rows.ctypes.data + end * rows.shape[1] for rows in (source, target)]
        there, here = (u8_at(at - before - data, before) for at in ends)
        here[:] = there
        here[0] &= 0xFF - R_FLAG
        here[2:8] = np.frombuffer(((start + number * count) & 0xFFFFFFFF).to_bytes(4, "big") + job_tag, np.uint8)
        keeps = words and int(slot["length"]) < ADDRESSED_BYTES + data
        lanes = zip(ends, trailers if keeps else (0, 0), strict=True)
        there, here = (u8_at(at - data + trailer, data) for at, trailer in lanes)
        here[:] = there


@kernel
def finish_redo(w: State, index: int, now: int, out: np.ndarray, n: int) -> int:
    """End the repetition of a slot's last round: return to the current one. Appends its packet, if it has one."""
    slot = w.slots[index]
    redo = slot.redo
    slot.redo = 0
    slot.words, slot.kept_words = slot.kept_words, slot.words
    slot.length, slot.kept_length = slot.kept_length, slot.length
    slot.capacity, slot.kept_capacity = slot.kept_capacity, slot.capacity
    slot.codes, slot.kept_codes = slot.kept_codes, slot.codes
    slot.round += 1
    if redo == REDO_THEN_SEND:
        return send(w, index, now, out, n)
    if not slot.done:  # a group's list, which may be complete by now
        return start_list(w, slot.queue, slot.chunk, now, out, n)
    advance(w, w.queues[slot.queue], slot)
    return n


@kernel
def send_all(w: State, out: np.ndarray) -> int:
    """List the slots with a round in flight, whose packets are to be sent to the new aggregator; returns their
    number."""
    n = int64(0)
    for index in range(len(w.slots)):
        if w.slots[index].busy:
            out[n] = index
            n += 1
    w.scalars[0].counters.sent += n
    w.scalars[0].window.moved = 0
    return n
