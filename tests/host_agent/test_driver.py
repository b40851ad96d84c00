"""Callers that wait drive their agent themselves, and its thread does everything else: calls that nobody waits for,
those that an interrupted caller leaves, and the end of the job."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from host_agent.driver import DriverLock
from switchml.errors import JobError


def drivers_of(agents, monkeypatch):
    """The threads that move these agents' packets from now on."""
    seen = []
    for agent in agents:
        turn = agent._turn

        def watched(turn=turn):
            seen.append(threading.current_thread())
            return turn()

        monkeypatch.setattr(agent, "_turn", watched)
    return seen


def settle(agents):
    """Their threads rest after this."""
    with ThreadPoolExecutor(len(agents)) as pool:
        for _ in range(2):
            list(pool.map(lambda agent: agent.barrier(), agents))


@pytest.mark.parametrize("transport", ["shm", "udp"])
def test_a_caller_that_waits_does_it_alone(join, transport, monkeypatch):
    agents = join(2, transport=transport, slots=64)
    settle(agents)
    seen = drivers_of(agents, monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        for step in range(20):
            sums = list(pool.map(lambda agent, step=step: agent.allreduce(np.full(300, step)), agents))
            assert all((each == 2 * step).all() for each in sums)
    assert seen and not {agent._thread for agent in agents} & set(seen)


def test_the_thread_takes_calls_that_nobody_waits_for(join, monkeypatch):
    agents = join(2)
    settle(agents)
    seen = drivers_of(agents, monkeypatch)
    handles = [agent.allreduce(np.ones(300), async_op=True) for agent in agents]
    assert all((handle.wait() == 2).all() for handle in handles)
    assert set(seen) == {agent._thread for agent in agents}


def test_calls_of_many_threads_and_kinds(join):
    """One thread waits for each call while another queues calls for which nobody waits."""
    agents, rounds = join(2), 200
    order = [threading.Barrier(2), threading.Barrier(2)]

    def waits(rank):
        for step in range(rounds):
            order[rank].wait()
            assert (agents[rank].allreduce(np.full(64, step)) == 2 * step).all()
            order[rank].wait()

    def queues(rank):
        handles = []
        for step in range(rounds):
            order[rank].wait()
            order[rank].wait()
            handles.append(agents[rank].allreduce(np.full(64, -step), async_op=True))
        for step, handle in enumerate(handles):
            assert (handle.wait() == -2 * step).all()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(run, rank) for rank in range(2) for run in (waits, queues)]:
            future.result(60)


def test_an_interrupted_caller_leaves_the_call_to_the_thread(join):
    agents = join(2)
    settle(agents)
    result = np.zeros(300)
    interrupt = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        agents[0].allreduce(np.ones(300), out=result)  # the other rank is not there
    interrupt.join()
    assert (agents[1].allreduce(np.ones(300)) == 2).all()
    agents[0].allreduce(np.ones(1), async_op=True)
    agents[1].allreduce(np.ones(1))
    assert (result == 2).all()


def test_the_end_of_a_job_wakes_a_thread_that_rests(join):
    agents = join(2)
    settle(agents)
    agents[0].abort(JobError("enough"))
    agents[0]._thread.join(100)
    assert not agents[0]._thread.is_alive()
    with pytest.raises(JobError, match="enough"):
        agents[0].allreduce(np.ones(3))


def test_whoever_brings_something_is_heard():
    """`wake` between a look at what is to do and the rest that follows is not lost."""
    turns, work, done = DriverLock(), [], []

    def thread():
        while len(done) < 5000:
            turns.rest(lambda: not work)
            while work:
                done.append(work.pop())

    running = threading.Thread(target=thread)
    running.start()
    for step in range(5000):
        if step % 3 == 0 and turns.take():
            turns.give_back(lambda: not work)
        work.append(step)
        turns.wake()
    running.join(100)
    assert not running.is_alive() and sorted(done) == list(range(5000))
    turns.close()
