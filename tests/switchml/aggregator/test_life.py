"""A software aggregator that starts, stops and has nothing to do."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from switchml.aggregator.software import SoftwareDataplane
from switchml.control.dataplane import JobSpec
from switchml.errors import ConfigError
from tests.support.dataplane import DEADLINE_S, Workers
from tests.support.sleepers import threads_named, until_asleep


def test_a_taken_port_is_refused_in_words(dataplane):
    with pytest.raises(
        ConfigError, match=f"data port 127.0.0.1:{dataplane.address[1]}: Address already in use; choose another"
    ):
        SoftwareDataplane(port=dataplane.address[1])


def test_start_and_stop_leave_nothing_behind():
    SoftwareDataplane(port=0).start().stop()  # whatever stays for good is there now
    gc.collect()  # other tests' files are closed
    files, threads = os.listdir("/proc/self/fd"), set(threading.enumerate())
    for _ in range(5):
        dataplane = SoftwareDataplane(port=0).start()
        dataplane.start_job(JobSpec(1, 2, 1, 16, 256, (("127.0.0.1", 4),)))
        dataplane.stop()
        dataplane.stop()
        dataplane.stop_job(1)  # a control plane that stops later still may say so
    SoftwareDataplane(port=0).stop()  # never started
    # Of other tests something may end meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= len(files) and threads >= set(threading.enumerate())


@pytest.mark.slow
def test_no_request_is_lost_when_the_data_plane_stops():
    gc.collect()  # of earlier tests
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        dataplane = SoftwareDataplane(port=0).start()
        with ThreadPoolExecutor(2) as pool:
            requests = [
                pool.submit(dataplane.start_job, JobSpec(n, 2, 1, 1, 256, (("127.0.0.1", 1 + n),))) for n in range(20)
            ]
            pool.submit(dataplane.stop).result(DEADLINE_S)
            for future in requests:
                error = future.exception(DEADLINE_S)  # answered in any case, and refused from some point on
                assert error is None or isinstance(error, ConfigError) and "is stopping" in str(error)
        dataplane.stop_job(0)
    del dataplane, requests, future, error  # a mapping holds a descriptor, and an exception's traceback a mapping
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("options", [{}, {"loss_rate": 0.1, "reorder_rate": 0.5}], ids=["clean", "lossy"])
def test_an_idle_aggregator_sleeps(start, bind, options):
    dataplane = start(**options)
    job = Workers(dataplane, bind, 1, 1)
    for slot in range(16):
        job.send(0, job.packet(0, slot, np.zeros(64)))
    until_asleep(threads_named("switchml-aggregator"))
    dataplane.counters(1)  # still awake for those who ask
