"""Joins that somebody has recorded where there is no TLS, and sends again beside the job that they began."""

import grpc
import numpy as np

from switchml.control import client, rpc, v2_pb2
from switchml.control.channel import PEER_TIMEOUT_S, open_channel
from tests.attacks.conftest import Attempts
from tests.support.launch import LocalAggregator, contribution, join_all, leave_all, on_all, total

NUMEL = 20_000


def test_replayed_joins_change_nothing(attempts: Attempts):
    aggregator = LocalAggregator()
    agents = join_all(aggregator.address, 2, job="recorded", secret="read on the way")
    recorded = [agent._session._request.SerializeToString() for agent in agents]
    refusals = set()
    count = attempts.scaled(100)
    with open_channel(aggregator.address, PEER_TIMEOUT_S, None) as channel:
        jobs = rpc.client(channel, client.JOBS)
        for seed in range(count):
            request = v2_pb2.JoinRequest.FromString(recorded[seed % 2])
            try:
                refusals.add(str(list(jobs.Join(request, timeout=30))))
            except grpc.RpcError as error:
                refusals.add(error.code().name)
            results = on_all(agents, lambda agent, seed=seed: agent.allreduce(contribution(seed, agent.rank, NUMEL)))
            for result in results:
                np.testing.assert_array_equal(result, total(seed, 2, NUMEL))
    assert len(refusals) == 1 and refusals <= {"ALREADY_EXISTS", "FAILED_PRECONDITION", "PERMISSION_DENIED"}, refusals
    leave_all(agents)
    aggregator.stop()
    attempts.record("replayed joins of a running job", count)
