"""A bad network on purpose: packets lost, late or doubled by chance, independently for each packet and receiver.

Where the kernel has no netem, a lossy link must be ours. An `Impairment` sits behind `receive_batch` or before
`send_batch` and turns one packet list into another. Loss, reordering and duplication are probabilities in [0, 1). A
reordered packet is held back until between 1 and 32 more have passed, or 2 ms are over. The generator is seeded: the
same list of packets meets the same fate.
"""

from typing import NamedTuple

import numpy as np

from switchml.errors import ConfigError
from switchml.net.udp import Packets
from switchml.runtime.jit import kernel
from switchml.runtime.memory import copy_bytes

HELD = 64
_HELD_BYTES = 2048
_HOLD_NS = 2_000_000
_FURTHEST = 32
_RELEASED = -2
"""`held_length` of a copy that this call's output lists: it may be reused from the next call on."""


class Impairment(NamedTuple):
    """`odds` float64[3]: loss, reordering, duplication. `random` uint64[1]: generator state. The rest: packets held
    back.

    `counts` int64[3]: packets lost, held back, doubled so far.
    """

    odds: np.ndarray
    random: np.ndarray
    held: np.ndarray
    held_length: np.ndarray
    held_endpoint: np.ndarray
    held_until: np.ndarray
    held_passes: np.ndarray
    counts: np.ndarray


def new_impairment(loss: float = 0.0, reorder: float = 0.0, duplicate: float = 0.0, seed: int = 0) -> Impairment:
    """Raises ConfigError for a rate outside [0, 1)."""
    for name, rate in (("loss", loss), ("reorder", reorder), ("duplicate", duplicate)):
        if not 0 <= rate < 1:
            raise ConfigError(f"{name} rate {rate}: expected a probability, at least 0 and less than 1")
    return Impairment(
        np.array([loss, reorder, duplicate]),
        np.array([seed * 0x9E3779B97F4A7C15 + 1 & 0xFFFFFFFFFFFFFFFF], np.uint64),
        np.zeros((HELD, _HELD_BYTES), np.uint8),
        np.full(HELD, -1, np.int64),
        np.zeros(HELD, np.uint64),
        np.zeros(HELD, np.int64),
        np.zeros(HELD, np.int64),
        np.zeros(3, np.int64),
    )


@kernel
def random(state, index):
    """A float64 in [0, 1) from the generator whose state is state[index] (uint64): splitmix64 (Steele, Lea, Flood
    2014)."""
    state[index] = np.uint64(state[index] + np.uint64(0x9E3779B97F4A7C15))
    z = state[index]
    z = np.uint64((z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9))
    z = np.uint64((z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB))
    z = z ^ (z >> np.uint64(31))
    return np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@kernel
def active(impairment):
    """Whether it does anything at all."""
    return impairment.odds[0] > 0 or impairment.odds[1] > 0 or impairment.odds[2] > 0


@kernel
def _append(output, n, address, length, endpoint):
    if n < output.address.size:
        output.address[n], output.length[n], output.endpoint[n] = address, length, endpoint
        return n + 1
    return n


@kernel
def impair(impairment, packets, count, now, output):
    """What becomes of packets[:count] at `now` (ns); returns how many packets `output` then lists.

    What `output` lists stays valid until the next call.
    """
    n = 0
    for k in range(HELD):
        if impairment.held_length[k] == _RELEASED:
            impairment.held_length[k] = -1
    for i in range(count):
        if random(impairment.random, 0) < impairment.odds[0]:
            impairment.counts[0] += 1
            continue
        address, length, endpoint = packets.address[i], packets.length[i], packets.endpoint[i]
        hold = -1
        if random(impairment.random, 0) < impairment.odds[1] and length <= _HELD_BYTES:
            for k in range(HELD):
                if impairment.held_length[k] == -1:
                    hold = k
                    break
        if hold >= 0:
            impairment.counts[1] += 1
            copy_bytes(impairment.held[hold].ctypes.data, address, length)
            impairment.held_length[hold], impairment.held_endpoint[hold] = length, endpoint
            impairment.held_until[hold] = now + _HOLD_NS
            impairment.held_passes[hold] = 1 + np.int64(random(impairment.random, 0) * _FURTHEST)
        else:
            n = _append(output, n, address, length, endpoint)
        if random(impairment.random, 0) < impairment.odds[2]:
            impairment.counts[2] += 1
            n = _append(output, n, address, length, endpoint)
        for k in range(HELD):
            if impairment.held_length[k] >= 0 and k != hold:
                impairment.held_passes[k] -= 1
                if impairment.held_passes[k] <= 0:
                    n = _append(
                        output,
                        n,
                        impairment.held[k].ctypes.data,
                        impairment.held_length[k],
                        impairment.held_endpoint[k],
                    )
                    impairment.held_length[k] = _RELEASED
    for k in range(HELD):
        if impairment.held_length[k] >= 0 and impairment.held_until[k] <= now:
            n = _append(
                output, n, impairment.held[k].ctypes.data, impairment.held_length[k], impairment.held_endpoint[k]
            )
            impairment.held_length[k] = _RELEASED
    return n


@kernel
def next_release(impairment):
    """When the next held packet is due (ns), or the largest int64."""
    due = np.int64(0x7FFFFFFFFFFFFFFF)
    for k in range(HELD):
        if impairment.held_length[k] >= 0:
            due = min(due, impairment.held_until[k])
    return due


__all__ = ["Impairment", "Packets", "active", "impair", "new_impairment", "next_release"]
