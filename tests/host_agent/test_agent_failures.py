"""All-reduces that fail, late and missing ranks, leaving: what each rank learns, and what is left behind."""

import gc
import logging
import os
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from host_agent.agent import HostAgent
from switchml.errors import CollectiveTimeout, ConfigError, JobError, JoinError, PeerLost, RanksDisagree, SumOverflow
from tests.support.agents import reduce_all
from tests.support.launch import (
    DEADLINE_S,
    LocalAggregator,
    contribution,
    good,
    join_all,
    leave_all,
    on_all,
    total,
    until,
)


def test_equally_large_tensors_do_not_make_each_other_s_rounds_go_again(join):
    """As gradients' buckets in training: two of a size, whose values are of very different magnitude."""
    agents = join(2, wire="int16")
    buckets = [np.full(size, scale, np.float32) for size, scale in [(9000, 1.0), (9000, 1e-6), (700, 1.0), (9000, 1e6)]]

    def train(agent, steps):
        for _ in range(steps):
            for bucket in buckets:
                agent.allreduce(bucket)
        return agent.stats()["repeats"]

    learnt = on_all(agents, lambda agent: train(agent, 3))
    assert min(learnt) > 0, "nothing is known at first"
    assert on_all(agents, lambda agent: train(agent, 5)) == learnt


def test_a_sum_that_does_not_fit(trio):
    """Every rank learns it, with the same message, and the job goes on."""
    for dtype in ("int32", "int64"):
        inputs = [np.zeros(600, dtype) for _ in range(3)]
        inputs[0][[5, 500]] = np.iinfo(dtype).max
        inputs[2][[5, 500]] = 1
        outcomes = on_all(trio, lambda agent, inputs=inputs: agent.allreduce(inputs[agent.rank]))
        assert {type(outcome) for outcome in outcomes} == {SumOverflow}
        assert {str(outcome) for outcome in outcomes} == {f"2 of 600 sums do not fit {dtype}; use a wider dtype"}
        assert isinstance(outcomes[0], OverflowError)
        results = reduce_all(trio, [contribution(15, rank, 600, dtype) for rank in range(3)])
        np.testing.assert_array_equal(results[0], total(15, 3, 600, dtype))


def test_ranks_that_disagree_about_the_dtype(join):
    """Nobody gets a number. Some see the contradiction themselves; the others lose the ranks that did."""
    agents = join(3)
    dtypes = ["float32", "float32", "int32"]
    outcomes = on_all(agents, lambda agent: agent.allreduce(np.ones(1000, dtypes[agent.rank])))
    assert {type(outcome) for outcome in outcomes} <= {RanksDisagree, PeerLost}
    assert any(
        isinstance(outcome, RanksDisagree) and "every rank must make the same calls" in str(outcome)
        for outcome in outcomes
    )
    for outcome in on_all(agents, lambda agent: agent.allreduce(np.ones(3, "float32"))):
        assert isinstance(outcome, JobError)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "call", "name", "chunks", "slot_bytes"),
    [("udp", HostAgent.all_gather, "all-gather", 12, 1024), ("shm", HostAgent.allreduce, "all-reduce", 1, 8192)],
)
def test_a_timeout_names_the_call_and_the_missing_rank(join, transport, call, name, chunks, slot_bytes):
    agents = join(3, transport=transport)
    started = [call(agent, np.ones(1000, "float32"), async_op=True, timeout_s=1.5) for agent in (agents[0], agents[2])]
    for handle in started:
        given = (
            rf"{name} 0 reached its timeout before it was done; it waits for rank 1: 0 of {chunks} chunks in "
            rf"\d+\.\d s, \d+ of \d+ packets sent were retransmissions, \d+ slots of {slot_bytes} bytes$"
        )
        with pytest.raises(CollectiveTimeout, match=given) as caught:
            handle.wait(DEADLINE_S)
        assert caught.value.ranks == (1,) and isinstance(caught.value, TimeoutError)
    for agent in (agents[0], agents[2]):
        with pytest.raises(CollectiveTimeout):  # the job is over for them
            agent.allreduce(np.ones(3, "float32"))
    with pytest.raises(PeerLost):  # and rank 1 learns that they are gone
        until(lambda: call(agents[1], np.ones(1000, "float32"), timeout_s=DEADLINE_S) is None)


@pytest.mark.slow
def test_a_call_can_be_late_while_others_finish(join):
    """The clock is looked at even if something is done every few milliseconds."""
    agents = join(2)
    one = np.ones(1, "float32")
    earlier = [agents[0].allreduce(one, async_op=True) for _ in range(1000)]
    late = agents[0].allreduce(one, async_op=True, timeout_s=0.5)
    for _ in range(1000):
        agents[1].allreduce(one, async_op=True)
        if late.is_done():
            break
        time.sleep(0.002)
    given = (
        r"all-reduce 1000 reached its timeout before it was done(; it waits for rank 1)?: "
        r"(0 of 1 chunks in \d+\.\d s, .*|it has not begun, as earlier ones are under way)$"
    )
    with pytest.raises(CollectiveTimeout, match=given):
        late.wait(DEADLINE_S)
    assert (earlier[0].wait(DEADLINE_S) == 2).all()
    with pytest.raises(CollectiveTimeout):  # the limit passed while earlier calls were being finished, and was seen
        earlier[-1].wait(DEADLINE_S)


@pytest.mark.slow
@pytest.mark.parametrize(("slots", "payload_bytes"), [(2, 256), (512, 256)])
def test_a_bad_network_delays_sums_but_does_not_stop_them(slots, payload_bytes):
    """Of all packets 10 % are lost, 10 % reordered and 10 % duplicated; each round then takes some milliseconds. A
    time-out says how far the all-reduce got, at which pace, and that packets went again."""
    with LocalAggregator(loss_rate=0.1, reorder_rate=0.1, duplicate_rate=0.1) as bad:
        agents = join_all(bad.address, 2, job="bad", transport="udp", slots=slots, payload_bytes=payload_bytes)
        results = reduce_all(agents, [contribution(5, rank, 20_000) for rank in range(2)])
        np.testing.assert_array_equal(results[0], total(5, 2, 20_000))
        large = np.zeros(20_000_000, np.float32)
        errors = on_all(agents, lambda agent: agent.allreduce(large, timeout_s=1.0))
        leave_all(agents)
    late = [error for error in errors if isinstance(error, CollectiveTimeout)]
    assert late and all(isinstance(error, CollectiveTimeout | PeerLost) for error in errors)
    for error in late:
        told = re.search(
            r"before it was done(?:; it waits for rank \d)?: ([\d,]+) of 312,500 chunks in \d+\.\d s "
            r"\(all would take ([\d,]+\.\d) s\), ([\d,]+) of ([\d,]+) packets sent were retransmissions, "
            rf"{slots} slots of {payload_bytes} bytes$",
            str(error),
        )
        done, whole_s, resent, sent = (float(number.replace(",", "")) for number in told.groups())
        assert 0 < done < 312_500 and whole_s > 1 and 0.02 < resent / sent < 0.98


@pytest.mark.slow
def test_a_stall_is_logged_with_the_ranks_it_waits_for(join, caplog):
    agents = join(3, job="stalled")
    with caplog.at_level(logging.WARNING, "host_agent"):
        handle = agents[1].allreduce(np.ones(1000, "float32"), async_op=True)
        until(lambda: "has waited" in caplog.text)
    assert "job 'stalled' rank 1: all-reduce 0 has waited 1 s for rank 0, 2" in caplog.text
    for rank in (0, 2):
        agents[rank].allreduce(np.ones(1000, "float32"), async_op=True)
    assert (handle.wait(DEADLINE_S) == 3).all()


def test_a_peer_that_leaves_does_not_take_finished_work_along():
    """The first to be done leaves at once. The others have lost some results by then, and get them all the same."""
    with LocalAggregator(loss_rate=0.1) as lossy:
        for _ in range(4):
            agents = join_all(lossy.address, 3, job="hasty")
            arrays = [contribution(16, rank, 50_000) for rank in range(3)]

            def work(agent, arrays=arrays):
                with agent:
                    return agent.allreduce(arrays[agent.rank])

            for result in good(on_all(agents, work)):
                np.testing.assert_array_equal(result, total(16, 3, 50_000))


def test_leaving_with_calls_under_way(join):
    agents = join(2)
    memory = np.ones(1_000_000, "float32")
    handles = [agents[0].allreduce(memory, out=memory, async_op=True) for _ in range(5)]
    agents[0].leave()
    memory[:] = 7
    for handle in handles:
        with pytest.raises(JobError, match="rank 0 left job"):
            handle.wait(DEADLINE_S)
    with pytest.raises(JobError, match="rank 0 left job"):
        agents[0].allreduce(np.ones(3, "float32"))
    agents[0].leave()
    assert (memory == 7).all()  # nobody writes there any more


def test_abort_fails_what_is_under_way_and_what_comes(join):
    agents = join(2)
    handle = agents[0].allreduce(np.ones(10, "float32"), async_op=True)
    agents[0].abort(JobError("enough"))
    for call in (lambda: handle.wait(DEADLINE_S), lambda: agents[0].allreduce(np.ones(1, "float32"))):
        with pytest.raises(JobError, match="enough"):
            call()


def test_a_context_manager_leaves(aggregator):
    with (
        pytest.raises(RuntimeError, match="the caller's own"),
        HostAgent.join(aggregator.address, job="x", rank=0, world_size=1) as agent,
    ):
        raise RuntimeError("the caller's own")
    with pytest.raises(JobError):
        agent.allreduce(np.ones(1, "float32"))


@pytest.mark.slow
def test_nothing_is_left_behind(aggregator):
    def once() -> None:
        agents = join_all(aggregator.address, 2, job="brief")
        reduce_all(agents, [np.ones(3000, "float32")] * 2)
        leave_all(agents)
        for rank in range(2):  # joins that fail
            with pytest.raises((JoinError, ConfigError)):
                HostAgent.join(aggregator.address, job="x", rank=rank, world_size=1, payload_bytes=7)

    def left() -> tuple[int, int, list[str]]:
        gc.collect()
        memory = Path("/proc/self/maps").read_text().count("switchml-job")
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith("switchml")]
        return len(os.listdir("/proc/self/fd")), memory, sorted(names)

    once()  # gRPC keeps some threads and descriptors of its own for good
    before = left()
    for _ in range(5):
        once()
    until(lambda: left() <= before)


@pytest.mark.parametrize("options", [{}, {"hierarchy": "node:one"}], ids=["agent", "hierarchy"])
def test_an_error_of_ours_in_an_agent_s_thread(join, options, caplog):
    """Nobody waits for a thread that is gone: neither its own callers nor the other ranks."""
    agents = join(2, **options)
    good(on_all(agents, lambda agent: agent.allreduce(np.ones(10, np.float32))))

    def fail(*_):
        raise SystemError("planted")

    if options:
        agents[0]._check_progress = fail
    else:
        agents[0].core.finish_turn = fail
    with caplog.at_level(logging.ERROR, "host_agent"):
        x = np.ones(100_000, np.float32)
        handle = agents[0].allreduce(x, async_op=True)
        with pytest.raises(JobError, match=r"rank 0 failed: SystemError\('planted'\)"):
            handle.wait(DEADLINE_S)
    with pytest.raises(PeerLost):
        for _ in range(2):  # rank 0 may have sent all of the first before its thread failed
            agents[1].allreduce(x, timeout_s=DEADLINE_S)
    assert "planted" in caplog.text
