"""Jobs at an aggregator whose slots are best-effort: the same results as anywhere, over a network that loses, repeats
and reorders, and with fewer slots than rounds under way."""

import numpy as np
import pytest

from switchml.errors import ConfigError, JoinError
from tests.support.launch import DEADLINE_S, LocalAggregator, good, join_all, leave_all, on_all, until

_NUMEL = 40_000


@pytest.fixture(params=[{"shared_slots": 512}, {"shared_slots": 16, "loss_rate": 0.02, "reorder_rate": 0.02}])
def aggregator(request):
    running = LocalAggregator(duplicate_rate=request.param.get("loss_rate", 0.0), seed=3, **request.param)
    yield running
    running.stop()


def _values(job, rank):
    return np.random.default_rng((job, rank)).integers(-1000, 1000, _NUMEL).astype(np.float32)


def test_two_jobs_get_exact_results(aggregator):
    jobs = [join_all(aggregator.address, 3, job=f"job {job}") for job in range(2)]

    def reduce(agent, job):
        sparse = np.where(np.arange(_NUMEL) % 4096 < 256, _values(job, agent.rank), 0).astype(np.float32)
        return [
            *(agent.allreduce(_values(job, agent.rank)) for _ in range(3)),
            agent.allreduce(sparse, sparse=True),
            agent.allreduce(_values(job, agent.rank), "max"),
        ]

    try:
        pairs = [(agent, job) for job, agents in enumerate(jobs) for agent in agents]
        for (_, job), results in zip(pairs, good(on_all(pairs, lambda pair: reduce(*pair))), strict=True):
            each = np.array([_values(job, rank) for rank in range(3)])
            total = each.sum(0)
            for result in results[:3]:
                assert np.array_equal(result, total)
            assert np.array_equal(results[3], np.where(np.arange(_NUMEL) % 4096 < 256, total, 0))
            assert np.array_equal(results[4], each.max(0))
        counts = aggregator.dataplane.shared_counts()
        assert counts["summed"] and counts["ended"] and counts["other"]
        # 16 rounds under way never find 16 slots by hash; in many slots only two jobs at a time may meet.
        assert counts["taken"] or len(aggregator.dataplane._front.shared.slots) > 16
    finally:
        for agents in jobs:
            leave_all(agents)
    until(lambda: not aggregator.dataplane._front.shared.slots["key"].any(), DEADLINE_S)


def test_what_it_lacks_it_refuses(aggregator):
    with pytest.raises((ConfigError, JoinError), match="deadline"):
        join_all(aggregator.address, 1, job="late", deadline_s=1.0)
    with pytest.raises((ConfigError, JoinError), match="authenticat"):
        join_all(aggregator.address, 1, job="signed", authenticate=True)
