"""Jobs on a P4 switch that is a process of its own: what agents get from it, and what it has before, during and after
them. Our switch, and simple_switch where it is on PATH."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

from host_agent.agent import HostAgent
from host_agent.calls import LateContributions
from host_agent.loop import warm_up
from switchml.control import client
from switchml.control.p4 import dataplane as p4_dataplane
from switchml.control.p4.dataplane import P4Dataplane, _free_udp_port, udp_window_bytes
from switchml.control.p4.driver import Unreachable
from switchml.control.p4.processes import SwitchProcess, compiled, connect
from switchml.control.server import Controller
from switchml.errors import AggregatorLost, ConfigError, JoinError
from switchml.protocol.sparse import Sparse
from tests.support.launch import (
    DEADLINE_S,
    LocalAggregator,
    contribution,
    digest,
    good,
    join_all,
    leave_all,
    on_all,
    sparse_arrays,
    total,
    until,
)
from tests.support.p4_programs import PATHS
from tests.support.p4_served import Served

NUMEL = 30_000
BMV2 = (pytest.mark.root, pytest.mark.needs("simple_switch", "ip"))


@pytest.fixture(scope="module", params=["p4", pytest.param("bmv2", marks=BMV2)])
def served(request):
    running = Served(request.param)
    yield running
    running.stop()


def reduce_all(agents: list[HostAgent], seed: int, numel: int = NUMEL, dtype: str = "float32") -> list[np.ndarray]:
    """An all-reduce on all ranks; what each has got, which must be the sum."""
    results = good(on_all(agents, lambda agent: agent.allreduce(contribution(seed, agent.rank, numel, dtype))))
    for result in results:
        np.testing.assert_array_equal(result, total(seed, len(agents), numel, dtype))
    return results


@contextlib.contextmanager
def joined(served: Served, world_size: int, job: str, **options):
    agents = join_all(served.address, world_size, job=job, **options)
    try:
        yield agents
    finally:
        leave_all(agents)


@pytest.mark.parametrize("options", [{}, {"payload_bytes": 256}, {"wire": "int8"}, {"slots": 8}])
def test_sums(served, options):
    with joined(served, 3, "sums", **options) as agents:
        for dtype in ("float32", "int64", "float64") if not options else ("int32",):
            reduce_all(agents, 1, dtype=dtype)
        if options.get("wire"):
            sums = good(on_all(agents, lambda agent: agent.allreduce(np.full(5000, 0.5, np.float32))))
            assert all(digest([other]) == digest([sums[0]]) for other in sums)
            np.testing.assert_allclose(sums[0], 1.5, rtol=0.05)


@pytest.mark.parametrize("payload_bytes", [256, 1024])
def test_sparse_sums(served, payload_bytes):
    """Streams of one block a packet, of four and of eight, with a dense call between them."""
    arrays = sparse_arrays(3, "float32", 0.1, NUMEL, block=32)
    expected_digest = digest([sum(arrays)])
    with joined(served, 3, "sparse", payload_bytes=payload_bytes) as agents:
        for sparse in (Sparse(256), Sparse(64), False, Sparse(payload_bytes // 32)):
            results = good(
                on_all(agents, lambda agent, sparse=sparse: agent.allreduce(arrays[agent.rank], sparse=sparse))
            )
            assert all(digest([result]) == expected_digest for result in results)
        assert all(agent.stats()["streamed"] for agent in agents)
        assert sum(rank.counters["refused_format"] for rank in served.job("sparse").ranks) == 0


@pytest.mark.parametrize("payload_bytes", [256, 1024])
def test_collectives(served, payload_bytes):
    check_collectives(served, payload_bytes)


def check_collectives(served: Served, payload_bytes: int) -> None:
    """Every rank's bytes and sums, with data in packets that were caused by packets without; all ops."""
    numel = 5000
    x = [contribution(7, rank, 3 * numel) for rank in range(3)]
    sums, bits = total(7, 3, 3 * numel), [array.view("int64") for array in x]
    with joined(served, 3, "collectives", payload_bytes=payload_bytes) as agents:

        def everything(agent):
            part = agent.reduce_scatter(x[agent.rank], async_op=True)
            whole = agent.all_gather(x[agent.rank][:numel], async_op=True)
            sent, reduced = agent.broadcast(x[agent.rank], root=1), agent.reduce(x[agent.rank], root=2)
            agent.barrier()
            others = [agent.allreduce(bits[agent.rank][:numel], op=op) for op in ("max", "bor", "bxor")]
            others.append(agent.allreduce(x[agent.rank][:numel], op="min"))
            return part.wait(DEADLINE_S), whole.wait(DEADLINE_S), sent, reduced, others

        for rank, (part, whole, sent, reduced, others) in enumerate(good(on_all(agents, everything))):
            np.testing.assert_array_equal(part, sums[rank * numel : (rank + 1) * numel])
            np.testing.assert_array_equal(whole, np.concatenate([array[:numel] for array in x]))
            np.testing.assert_array_equal(sent, x[1])
            assert (reduced is None) == (rank != 2)
            for op, other in zip((np.maximum, np.bitwise_or, np.bitwise_xor), others, strict=False):
                np.testing.assert_array_equal(other, op.reduce([array[:numel] for array in bits]))
            np.testing.assert_array_equal(others[3], np.minimum.reduce([array[:numel] for array in x]))
            if reduced is not None:
                np.testing.assert_array_equal(reduced, sums)
        assert sum(rank.counters["refused_format"] for rank in served.job("collectives").ranks) == 0


def test_nobody_waits_for_a_stopped_rank(served):
    check_stopped_rank(served)


def check_stopped_rank(served: Served, **options) -> None:
    """In a job with a deadline: the others' sums end without it, and it is told them when it is back."""
    with joined(served, 3, "late", deadline_s=1.0, **options) as agents:  # which a rank keeps that is not stopped
        arrays = [np.arange(5000, dtype=np.float32) % 7 + rank for rank in range(3)]
        late = [LateContributions(np.zeros(5000, np.float32)) for _ in agents]

        def reduce(agent):
            return agent.allreduce(arrays[agent.rank], late=late[agent.rank])

        agents[2].pause()
        in_time = good(on_all(agents[:2], reduce))
        agents[2].resume()
        results = [*in_time, reduce(agents[2])]
        np.testing.assert_allclose(results[0], 1.5 * (arrays[0] + arrays[1]), rtol=1e-6)
        assert digest(results[:1]) == digest(results[1:2]) == digest(results[2:])
        assert [each.ranks for each in late] == [2] * 3 and [each.is_behind for each in late] == [False, False, True]
        np.testing.assert_array_equal(late[2].values, arrays[2])
        reduce_all(agents, 1)  # other sums, and the rank that is back
        np.testing.assert_allclose(good(on_all(agents, reduce))[0], sum(arrays), rtol=1e-6)


def test_a_register_a_lane():
    with Served(program="switchml_lanes") as served:
        check_collectives(served, payload_bytes=256)
        check_stopped_rank(served, payload_bytes=256)


def test_status_shows_what_the_switch_counted(served):
    with joined(served, 2, "counted") as agents:
        reduce_all(agents, 2)
        job = served.job("counted")
        rounds = sum(rank.counters["completed"] for rank in job.ranks)
        assert rounds >= -(-NUMEL // 256)
        for rank, agent in zip(job.ranks, agents, strict=True):
            assert rank.counters["accepted"] == rounds
            assert rank.counters["received_packets"] <= agent.stats()["sent"]
            assert rank.counters["refused_tag"] == rank.counters["refused_format"] == 0
        assert job.slots_in_use == 0


def test_two_jobs_at_once(served):
    with joined(served, 2, "left", slots=64) as left, joined(served, 2, "right", slots=64) as right:

        def work(agents):
            for seed in range(8):
                reduce_all(agents, 100 * seed + id(agents) % 97)
            return True

        assert good(on_all([left, right], work)) == [True, True]
        places = [served.dataplane._jobs[served.job(name).job_id].place for name in ("left", "right")]
        assert abs(places[0].row - places[1].row) >= 2 * 64
        assert abs(places[0].worker - places[1].worker) >= 2
        assert places[0].group != places[1].group and places[0].generation != places[1].generation


def test_rows_are_reused(served):
    """A job begins where another one ended, and finds nothing of it."""
    with joined(served, 2, "first", slots=16) as agents:
        first = served.dataplane._jobs[served.job("first").job_id].place
        reduce_all(agents, 3)
    with joined(served, 2, "second", slots=16) as agents:
        second = served.dataplane._jobs[served.job("second").job_id].place
        assert second.row == first.row and second.generation != first.generation
        reduce_all(agents, 4)


def test_a_job_that_ended_leaves_nothing(served):
    with joined(served, 2, "short") as agents:
        assert served.inside()["workers"] == 2 + served.empty["workers"]
        reduce_all(agents, 5)
    until(lambda: served.inside() == served.empty)


def test_a_job_that_lost_a_rank_leaves_nothing(served):
    agents = join_all(served.address, 2, job="dies")
    agents[1]._session._channel.close()  # as if its process had been killed
    until(lambda: served.job("dies").state == "failed")
    assert served.inside() == served.empty
    leave_all(agents)


def test_whom_a_stalled_job_waits_for(served):
    with joined(served, 3, "stalls", slots=16) as agents:
        early = [agent.allreduce(contribution(6, agent.rank, 64), async_op=True) for agent in (agents[0], agents[2])]
        until(lambda: list(served.job("stalls").missing) == [1])
        assert served.job("stalls").slots_in_use == 2  # the sums' and their seal's
        late = agents[1].allreduce(contribution(6, 1, 64), async_op=True)
        for handle in (*early, late):
            np.testing.assert_array_equal(handle.wait(DEADLINE_S), total(6, 3, 64))


@pytest.mark.slow
def test_too_many_ranks(served):
    with pytest.raises(JoinError, match="a P4 switch supports 32 per job"):
        join_all(served.address, 33, job="many")
    assert served.inside() == served.empty


def test_an_unreachable_address(served):
    with pytest.raises(ConfigError, match="is reached by frames, not by shm"):
        HostAgent.join(served.address, job="x", rank=0, world_size=1, transport="shm")


def test_no_port_is_left(require_program):
    require_program("simple_switch")
    require_program("ip")
    if os.geteuid():
        pytest.skip("needs root")
    with Served("bmv2", ports=1) as served:
        with pytest.raises(JoinError, match="no port of the switch is free"):
            join_all(served.address, 2, job="x")
        with joined(served, 1, "y") as agents:
            reduce_all(agents, 1)


@pytest.mark.slow
@pytest.mark.parametrize("sparse", ["off", "on:block=32"])
def test_losses_and_delays_change_no_bit(monkeypatch, sparse):
    """The switch's drop simulator loses packets, the agents delay some."""
    sums = {}
    for loss_rate, reorder_rate in ((0.0, "0"), (0.03, "0.03")):
        monkeypatch.setenv("SWITCHML_REORDER_RATE", reorder_rate)
        with Served(loss_rate=loss_rate) as served:
            with joined(served, 3, "lossy", sparse=sparse) as agents:
                sums[loss_rate] = digest(
                    good(
                        on_all(
                            agents,
                            lambda agent: agent.allreduce(
                                np.random.default_rng(agent.rank).standard_normal(100_000, np.float32)
                            ),
                        )
                    )
                )
                lost = sum(agent.stats()["retransmitted"] for agent in agents)
            assert loss_rate == 0 or lost > 10
    assert sums[0.0] == sums[0.03]


# Ends


@pytest.mark.slow
def test_a_restarted_switch(monkeypatch):
    """Its jobs learn why they can't go on, however long it takes to start; it is programmed for the next ones.

    It may be back before anybody sees that it has ended."""
    monkeypatch.setattr(p4_dataplane, "SILENCE_LIMIT_S", DEADLINE_S)
    with Served() as served:
        agents = join_all(served.address, 2, job="torn")
        reduce_all(agents, 7)

        def until_it_fails(agent):
            seed = 0
            while True:
                agent.allreduce(contribution(seed, agent.rank, NUMEL))
                seed += 1

        outcomes = []
        ended = threading.Thread(target=lambda: outcomes.extend(on_all(agents, until_it_fails)))
        ended.start()
        served.kill()
        ended.join(DEADLINE_S)
        for outcome in outcomes:
            assert isinstance(outcome, AggregatorLost)
            assert re.search("was restarted and has lost|it has ended, and lost the job's slots", str(outcome))
        assert len(outcomes) == 2
        leave_all(agents)
        until(served.answers)
        until(lambda: served.inside() == served.empty)
        with joined(served, 2, "next") as agents:
            reduce_all(agents, 8)


@pytest.mark.slow
@pytest.mark.parametrize("has_standby", [True, False], ids=["software standby", "restarted"])
def test_a_job_outlives_its_switch(has_standby):
    """Calls are under way when it is killed. They go on with a software aggregator, without frames, or with the switch,
    which has lost all that it had."""
    served, standby = Served(), LocalAggregator()
    addresses = f"{served.address},standby={standby.address}" if has_standby else served.address
    try:
        agents = join_all(addresses, 3, job="outlives", failover_timeout_s=DEADLINE_S)
        assert {agent.transport for agent in agents} == {"frames"}

        def work(agent):
            for seed in range(8):
                x = contribution(seed, agent.rank, NUMEL)
                if agent.rank == 0 and seed == 2:
                    killed.wait()
                agent.allreduce(x, out=x)
                np.testing.assert_array_equal(x, total(seed, 3, NUMEL))
                reached[agent.rank] = seed
            return agent.transport

        reached, outcomes, killed = [-1] * 3, [], threading.Event()
        working = threading.Thread(target=lambda: outcomes.extend(on_all(agents, work)))
        working.start()
        until(lambda: max(reached) > 0)
        served.kill()
        killed.set()
        working.join()
        assert good(outcomes) == ["frames" if not has_standby else "shm"] * 3
        if not has_standby:
            assert served.job("outlives").epoch >= 1
        leave_all(agents)
        until(served.answers)
        until(lambda: served.inside() == served.empty)
    finally:
        served.stop()
        standby.stop()


@pytest.mark.slow
def test_nothing_stays_when_the_control_plane_stops():
    with Served() as served:
        agents = join_all(served.address, 2, job="stays")
        served.controller.stop()
        served.dataplane.stop()
        inside = served.inside()
        assert inside["workers"] == inside["own_addresses"] == inside["groups"] == 0 and not inside["ports"]
        leave_all(agents)


# P4Runtime


@pytest.mark.slow
def test_jobs_by_p4runtime():
    """A switch without a program and with two UDP ports gets the program and the jobs by P4Runtime."""
    pytest.importorskip("p4.v1", reason="needs the package p4runtime")
    from switchml.control.p4.p4runtime import P4RuntimeSwitch

    warm_up()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{probe.getsockname()[1]}"
    links = {port: f"udp:127.0.0.1:{_free_udp_port('127.0.0.1')}" for port in range(2)}
    words = [word for port, link in links.items() for word in ("-i", f"{port}@{link}")]
    command = [sys.executable, "-m", "switchml", "switch", "--thrift-port", "0", "--no-p4", "-L", "off", *words]
    process = subprocess.Popen([*command, "--", "--grpc-server-addr", target])
    dataplane = controller = None
    try:
        with contextlib.closing(socket.socket()) as probe:
            until(lambda: probe.connect_ex(("127.0.0.1", int(target.rpartition(":")[2]))) == 0)
        driver = P4RuntimeSwitch(target, compiled("switchml"))
        dataplane = P4Dataplane(driver, links=links, udp_bind="", window_bytes=udp_window_bytes()).start()
        controller = Controller(dataplane, control_port=0)
        address = "{}:{}".format(*controller.start().control)
        for job in ("one", "two"):
            agents = join_all(address, 2, job=job)
            reduce_all(agents, 9)
            status = next(each for each in client.status(address).jobs if each.name == job)
            assert all(rank.counters["accepted"] == -(-NUMEL // 256) + 1 for rank in status.ranks), "a seal, too"
            leave_all(agents)
            until(lambda: not dataplane._jobs)
            assert driver.has_state() and {entry.table for entry in driver._entries} == {"own_addresses"}
        with pytest.raises(JoinError, match="P4Runtime adds none|no port of the switch is free"):
            join_all(address, 3, job="three")
    finally:
        for part in (controller, dataplane):
            if part is not None:
                part.stop()
        process.kill()
        process.wait()


def test_a_switch_that_is_not_there(tmp_path):
    with pytest.raises(Unreachable, match=f"no switch at thrift://{tmp_path}/none: No such file or directory"):
        connect(f"thrift://{tmp_path}/none")
    with pytest.raises(Unreachable, match="no switch at thrift://127.0.0.1:9: Connection refused"):
        connect("thrift://127.0.0.1:9")
    for address in ("thrift://127.0.0.1", "http://127.0.0.1:80", "abacus"):
        with pytest.raises(ConfigError, match="expected p4, bmv2"):
            connect(address)


@pytest.mark.slow
def test_a_switch_that_runs_another_program():
    process = SwitchProcess([sys.executable, "-m", "switchml", "switch", "--thrift-ip", "127.0.0.1"], PATHS["l3"])
    try:
        with pytest.raises(ConfigError, match="runs another program: expected p4/switchml.p4"):
            process.connect()
    finally:
        process.stop()
