"""Many jobs on one software aggregator, which come and go while packets flow."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time

import numpy as np
import pytest

from switchml.aggregator.software import MAX_JOBS
from switchml.control.dataplane import JobSpec
from switchml.errors import ConfigError
from switchml.protocol.packet import RESULT
from tests.support.dataplane import DEADLINE_S, Workers, address_of, drain
from tests.support.launch import until
from tests.support.packets import V2Packet


def test_jobs_come_and_go_while_traffic_flows(dataplane, bind):
    """One job's packets never stop; it is stopped and started under them, and the job beside it never notices."""
    steady, victim = Workers(dataplane, bind, 1, 2), Workers(dataplane, bind, 2, 2)
    stop = threading.Event()

    def flood() -> None:
        packets = [victim.packet(round_, slot, np.full(64, 7)) for round_ in range(8) for slot in range(16)]
        while not stop.is_set():
            for data in packets:
                victim.send(0, data)
                victim.send(1, data)
            for sock in victim.sockets:
                drain(sock)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        for round_ in range(150):
            if round_ % 5 == 0:
                dataplane.stop_job(2)
            elif round_ % 5 == 2:
                dataplane.start_job(victim.spec)
            assert all((values == 2 * round_).all() for values in exchange(steady, round_))
    finally:
        stop.set()
        thread.join()
    dataplane.stop_job(2)
    exchange(steady, 150)  # behind the last of the flood
    for sock in victim.sockets:
        drain(sock)
    before = dataplane.refused()["refused_address"]
    assert before > 0
    victim.send(0, victim.packet(0, 0, np.zeros(64)))
    until(lambda: dataplane.refused()["refused_address"] == before + 1, DEADLINE_S)
    assert drain(victim.sockets[0]) == []
    with pytest.raises(KeyError):
        dataplane.counters(2)


def exchange(job: Workers, number: int) -> list[np.ndarray]:
    """One round of all workers, `number` in every lane; asked for again, since a flooded socket may lose a packet."""
    packets = [job.packet(number // job.slots, number % job.slots, np.full(64, number), r=r) for r in (False, True)]
    results: dict[int, np.ndarray] = {}
    deadline = time.monotonic() + DEADLINE_S
    for data in itertools.chain(packets[:1], itertools.repeat(packets[1])):
        for rank in range(len(job.sockets)):
            job.send(rank, data)
        for rank, sock in enumerate(job.sockets):
            sock.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                while rank not in results:
                    answer = sock.recv(2048)
                    if answer[0] >> 4 == RESULT and answer[2:6] == data[2:6]:
                        results[rank] = V2Packet.unpack(answer).values
        if len(results) == len(job.sockets):
            return [results[rank] for rank in range(len(job.sockets))]
        assert time.monotonic() < deadline, f"round {number} did not come back"


def test_room_for_so_many_jobs_and_no_more(dataplane):
    for number in range(MAX_JOBS):
        dataplane.start_job(JobSpec(number, 2, 1, 1, 256, ((address_of(1, number), 5000),)))
    with pytest.raises(ConfigError, match=f"no more jobs can start: at most {MAX_JOBS} jobs"):
        dataplane.start_job(JobSpec(MAX_JOBS, 2, 1, 1, 256, (("127.9.9.9", 1),)))
    dataplane.stop_job(17)
    dataplane.start_job(JobSpec(MAX_JOBS, 2, 1, 1, 256, (("127.9.9.9", 1),)))


def test_a_restarted_job_has_clean_slots(dataplane, marker, bind):
    job = Workers(dataplane, bind, 1, 2)
    job.send(0, job.packet(0, 0, np.full(64, 5)))
    marker.pass_through()
    assert dataplane.counters(1).slots_in_use == 1
    dataplane.stop_job(1)
    dataplane.start_job(job.spec)
    assert dataplane.counters(1).slots_in_use == 0
    for rank in range(2):
        job.send(rank, job.packet(0, 0, np.full(64, 1)))
    marker.pass_through()
    assert [data for data, _ in drain(job.sockets[0])] == [job.packet(0, 0, np.full(64, 2), kind=RESULT)]
