"""A software aggregator that loses, delays and doubles packets on purpose."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from switchml.aggregator.software import SoftwareDataplane
from tests.support.dataplane import DEADLINE_S, Workers, drain
from tests.support.launch import until
from tests.support.packets import V2Packet


def unread_bytes(port: int) -> int:
    """What the socket of this port holds unread (rx_queue in /proc/net/udp, a hexadecimal number as the port is)."""
    for line in Path("/proc/net/udp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(f":{port:04X}"):
            return int(fields[4].partition(":")[2], 16)
    raise LookupError(port)


def has_let_go(dataplane: SoftwareDataplane) -> bool:
    """Whether no packet is held back, on its way in or out."""
    ways = dataplane._loop.bad_uplink, dataplane._loop.bad_downlink
    return all((way.delayed_length < 0).all() for way in ways)


def lossy_run(start, bind, **options) -> tuple[list[int], dict[str, int]]:
    """1000 contributions of a lone worker: the slots of its results in the order they came, and its counters."""
    dataplane = start(**options)
    job = Workers(dataplane, bind, 1, 1, slots=1024)
    arrived = []
    for slot in range(1000):
        job.send(0, job.packet(0, slot, np.zeros(64)))
        if slot % 40 == 39:  # no more than a small socket buffer holds
            until(lambda: unread_bytes(dataplane.address[1]) == 0, DEADLINE_S)
            arrived += drain(job.sockets[0])
    until(
        lambda: unread_bytes(dataplane.address[1]) == 0 and dataplane._in_loop(lambda: has_let_go(dataplane)),
        DEADLINE_S,
    )
    seen = dataplane.counters(1).ranks[0]
    arrived += drain(job.sockets[0])
    dataplane.stop_job(1)
    return [V2Packet.unpack(data).seq for data, _ in arrived], seen


def test_loss_is_as_frequent_as_asked_for_and_repeatable(start, bind):
    slots, counts = lossy_run(start, bind, loss_rate=0.3, seed=5)
    assert 630 < counts["accepted"] < 770  # 700 expected; the bounds are five standard deviations away
    assert counts["sent_packets"] == counts["accepted"]
    assert 0.5 * 1000 * 0.7**2 < len(slots) < 1.2 * 1000 * 0.7**2
    assert slots == sorted(slots)
    assert lossy_run(start, bind, loss_rate=0.3, seed=5) == (slots, counts)
    assert lossy_run(start, bind, loss_rate=0.3, seed=6) != (slots, counts)


def test_reordered_packets_are_late_and_not_lost(start, bind):
    slots, counts = lossy_run(start, bind, reorder_rate=0.2)
    assert counts["accepted"] == 1000
    assert sorted(slots) == list(range(1000)) and slots != sorted(slots)


def test_doubled_packets_are_recognized(start, bind):
    slots, counts = lossy_run(start, bind, duplicate_rate=0.4)
    assert counts["accepted"] == 1000
    assert 320 < counts["answered"] < 480
    assert set(slots) == set(range(1000)) and len(slots) > 1500
