"""Network fault injection: random packet loss, delay and duplication, independently for each packet and receiver.

This replaces netem on kernels without it. An `Impairment` is applied after `receive_batch` or before `send_batch` and
maps one packet list to another. Loss, reordering and duplication are probabilities in [0, 1). A reordered packet is
held back until 1 to 32 more packets have passed, or for 2 ms. The generator is seeded: the same seed and packet lists
give the same result.
"""

from typing import Any, NamedTuple

import numpy as np

from switchml.errors import ConfigError
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import copy_bytes

MAX_DELAYED = 64
_DELAYED_BYTES = 2048
_DELAY_NS = 2_000_000
_FURTHEST = 32
_RELEASED = -2
"""`delayed_length` of a copy that is listed in this call's output: the slot can be reused from the next call on."""


class Impairment(NamedTuple):
    """`odds` float64[3]: loss, reordering, duplication. `random` uint64[1]: generator state. `delayed…`: delayed
    packets. `counts` int64[3]: packets lost, delayed and duplicated so far.
    """

    odds: np.ndarray
    random: np.ndarray
    delayed: np.ndarray
    delayed_length: np.ndarray
    delayed_endpoint: np.ndarray
    delayed_until: np.ndarray
    delayed_passes: np.ndarray
    counts: np.ndarray


def new_impairment(loss: float = 0.0, reorder: float = 0.0, duplicate: float = 0.0, seed: int = 0) -> Impairment:
    """Return a new Impairment. Raises ConfigError for a rate outside [0, 1)."""
    for name, rate in (("loss", loss), ("reorder", reorder), ("duplicate", duplicate)):
        if not 0 <= rate < 1:
            raise ConfigError(f"{name} rate {rate}: expected a probability, at least 0 and less than 1")
    return Impairment(
        np.array([loss, reorder, duplicate]),
        np.array([seed * 0x9E3779B97F4A7C15 + 1 & 0xFFFFFFFFFFFFFFFF], np.uint64),
        np.zeros((MAX_DELAYED, _DELAYED_BYTES), np.uint8),
        np.full(MAX_DELAYED, -1, np.int64),
        np.zeros(MAX_DELAYED, np.uint64),
        np.zeros(MAX_DELAYED, np.int64),
        np.zeros(MAX_DELAYED, np.int64),
        np.zeros(3, np.int64),
    )


@kernel
def random(state: np.ndarray, index: int) -> np.float64:
    """Return a float64 in [0, 1) from the generator with state state[index] (uint64): splitmix64 (Steele, Lea, Flood
    2014)."""
    state[index] = np.uint64(state[index] + np.uint64(0x9E3779B97F4A7C15))
    z = state[index]
    z = np.uint64((z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9))
    z = np.uint64((z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB))
    z = z ^ (z >> np.uint64(31))
    return np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@kernel
def active(impairment: Impairment) -> bool:
    """Return whether any probability is nonzero."""
    return bool(impairment.odds[0] > 0 or impairment.odds[1] > 0 or impairment.odds[2] > 0)


@kernel
def _append(output: Any, n: int, address: Address, length: int, endpoint: int) -> int:
    if n < output.address.size:
        output.address[n], output.length[n], output.endpoint[n] = address, length, endpoint
        return n + 1
    return n


@kernel
def _release(impairment: Impairment, k: int, output: Any, n: int) -> int:
    """Append delayed packet k to the output."""
    length = impairment.delayed_length[k]
    impairment.delayed_length[k] = _RELEASED
    return _append(output, n, impairment.delayed[k].ctypes.data, length, impairment.delayed_endpoint[k])


@kernel
def impair(impairment: Impairment, packets: Any, count: int, now: int, output: Any) -> int:
    """Apply the impairment to packets[:count] at `now` (ns). Returns the number of packets in `output`, which stay
    valid until the next call.
    """
    n = 0
    for k in range(MAX_DELAYED):
        if impairment.delayed_length[k] == _RELEASED:
            impairment.delayed_length[k] = -1
    for i in range(count):
        if random(impairment.random, 0) < impairment.odds[0]:
            impairment.counts[0] += 1
            continue
        address, length, endpoint = packets.address[i], packets.length[i], packets.endpoint[i]
        place = -1
        if random(impairment.random, 0) < impairment.odds[1] and length <= _DELAYED_BYTES:
            for k in range(MAX_DELAYED):
                if impairment.delayed_length[k] == -1:
                    place = k
                    break
        if place >= 0:
            impairment.counts[1] += 1
            copy_bytes(impairment.delayed[place].ctypes.data, address, length)
            impairment.delayed_length[place], impairment.delayed_endpoint[place] = length, endpoint
            impairment.delayed_until[place] = now + _DELAY_NS
            impairment.delayed_passes[place] = 1 + int64(random(impairment.random, 0) * _FURTHEST)
        else:
            n = _append(output, n, address, length, endpoint)
        if random(impairment.random, 0) < impairment.odds[2]:
            impairment.counts[2] += 1
            n = _append(output, n, address, length, endpoint)
        for k in range(MAX_DELAYED):
            if impairment.delayed_length[k] >= 0 and k != place:
                impairment.delayed_passes[k] -= 1
                if impairment.delayed_passes[k] <= 0:
                    n = _release(impairment, k, output, n)
    for k in range(MAX_DELAYED):
        if impairment.delayed_length[k] >= 0 and impairment.delayed_until[k] <= now:
            n = _release(impairment, k, output, n)
    return n


@kernel
def next_release(impairment: Impairment) -> int:
    """Return when the next delayed packet is due (ns), or the largest int64."""
    due = int64(0x7FFFFFFFFFFFFFFF)
    for k in range(MAX_DELAYED):
        if impairment.delayed_length[k] >= 0:
            due = min(due, impairment.delayed_until[k])
    return due
