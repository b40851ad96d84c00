"""Slots that jobs take as they come (docs/protocol.md, section 14): the compiled rule beside one of dictionaries. Whole
jobs over bad networks are in tests/emulator/networks/faults/test_best_effort.py."""

import random

import numpy as np
import pytest

from switchml.errors import ConfigError
from switchml.protocol import best_effort
from switchml.protocol.best_effort import HOLD_NS, PARTIAL_BYTES, STALE_NS
from switchml.protocol.pool import Pool

_LANES, _R = 64, 8


def _packet(job_tag, seq, lanes, resent=False, ahead=3, need=4, used=5, kind=8):
    header = bytes([kind << 4 | (_R if resent else 0) | 1, ahead]) + seq.to_bytes(4, "big") + job_tag.to_bytes(2, "big")
    return header + bytes([need, used]) + np.asarray(lanes, ">i4").tobytes()


def _trailer(ranks, flags=0):
    return sum(1 << rank for rank in ranks).to_bytes(32, "little") + bytes([flags, 0])


class _SlowSwitch:
    """Section 14's table, with dictionaries: slot → [key, since, {rank: packet}]."""

    def __init__(self, slots):
        self._count, self._slots, self._notes = slots, {}, {}

    def _index(self, key, multiplier, count):
        return (key * multiplier >> 32 & 0xFFFFFFFF) & (count - 1)

    def _note_of(self, key):
        return self._index(key, 0xC2B2AE3D27D4EB4F, best_effort.NOTES_A_SLOT * self._count)

    def _end(self, index):
        _, _, packets = self._slots.pop(index)
        first = next(iter(packets.values()))
        lanes = [np.frombuffer(data[10:], ">i4").astype(np.int64) for data in packets.values()]
        sums, flags = lanes[0], 0
        for more in lanes[1:]:
            sums = sums + more
            wrapped = (sums + 2**31) % 2**32 - 2**31
            flags |= 1 if (wrapped != sums).any() else 0
            sums = wrapped
        flags |= 2 if len({data[9] for data in packets.values()}) > 1 else 0
        ahead, need = (max((data[at] ^ 128) - 128 for data in packets.values()) & 255 for at in (1, 8))
        head = bytes([first[0] & 0xF7, ahead]) + first[2:8] + bytes([need, first[9]])
        return head + sums.astype(">i4").tobytes() + _trailer(packets, flags)

    def take(self, workers, rank, data, now):
        """(partial sum or b"", whether the packet is passed on)."""
        if len(data) != 10 + 4 * _LANES:
            return b"", True
        key = int.from_bytes(data[6:8], "big") << 32 | int.from_bytes(data[2:6], "big")
        index = self._index(key, 0x9E3779B97F4A7C15, self._count)
        if index in self._slots and now - self._slots[index][1] > STALE_NS:
            del self._slots[index]
        has = self._slots.get(index)
        if data[0] & _R:
            self._notes[self._note_of(key)] = key
            return (self._end(index) if has and has[0] == key else b""), True
        if self._notes.get(self._note_of(key)) == key:
            return b"", True
        sent = b""
        if has and has[0] != key and now - has[1] > HOLD_NS:
            self._notes[self._note_of(has[0])] = has[0]
            sent, has = self._end(index), None
        if not has:
            self._slots[index] = [key, now, {rank: data}]
            return sent, False
        if has[0] != key:
            self._notes[self._note_of(key)] = key
            return b"", True
        if rank in has[2]:
            return b"", False
        has[2][rank] = data
        return (self._end(index) if len(has[2]) == workers else b""), False


def _take(shared, job, rank, data, now, partial):
    buffer = np.frombuffer(data, np.uint8)
    length, passed = best_effort.take(shared, job, rank, buffer.ctypes.data, len(data), now, partial)
    return partial[:length].tobytes(), bool(passed)


@pytest.mark.parametrize("seed", range(4))
def test_the_switch_does_as_the_slow_one(seed):
    draw = random.Random(seed)
    shared, slow, partial = best_effort.new_shared(8), _SlowSwitch(8), np.zeros(PARTIAL_BYTES, np.uint8)
    jobs = [Pool(workers=3, slots=8, payload_bytes=256, job_tag=job_tag).job[0] for job_tag in (11, 500, 65535)]
    now, kinds = 0, set()
    for step in range(3000):
        now += draw.choice((0, 1000, HOLD_NS // 4)) if draw.random() < 0.995 else STALE_NS
        job, rank, seq = draw.choice(jobs), draw.randrange(3), draw.randrange(30) + step // 200 * 5
        lanes = np.random.default_rng(rank).integers(-(2**31), 2**31, _LANES) // draw.choice((1, 4))
        used = 5 if draw.random() < 0.9 else 6
        data = _packet(
            int(job["job_tag"]), seq, lanes, draw.random() < 0.1, draw.randrange(256), draw.randrange(256), used
        )
        if draw.random() < 0.05:
            data = bytes([data[0] | 4, 1]) + data[2:] + bytes(4)  # sparse
        mine = _take(shared, job, rank, data, now, partial)
        assert mine == slow.take(3, rank, data, now)
        kinds.add((bool(mine[0]), mine[1]))
    assert len(kinds) == 4 and shared.counts.all()


def test_a_job_that_is_over_leaves_no_slot_behind():
    shared, partial = best_effort.new_shared(4), np.zeros(PARTIAL_BYTES, np.uint8)
    job = Pool(workers=2, slots=8, payload_bytes=256, job_tag=9).job[0]
    for seq in range(4):
        _take(shared, job, 0, _packet(9, seq, np.zeros(_LANES)), 0, partial)
    assert shared.slots["key"].any()
    best_effort.release_job(shared, 8)
    assert shared.slots["key"].any()
    best_effort.release_job(shared, 9)
    assert not shared.slots["key"].any()


def test_a_number_of_slots_that_is_no_power_of_two_is_refused():
    with pytest.raises(ConfigError, match="12 shared slots: expected a power of two"):
        best_effort.new_shared(12)
