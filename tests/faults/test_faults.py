"""What goes wrong in the field: ranks and aggregators killed.

Ranks that are killed are processes (launch.Rank), and so is the aggregator. A job beside the one that suffers runs in
this process: it must never notice. Deadlines are long because machines that run tests are slow; in practice all of this
takes a moment.
"""

from __future__ import annotations

import pytest

from tests.support.launch import (
    until,
)
from tests.support.under_attack import BIG, join_ranks, send_all, wait_for_traffic

# The first test may have to wait for two compilations, one of an aggregator and one of a rank.
PEER_TIMEOUT_S = 10
"""The default: by then the survivors must know. A broken connection tells them at once."""


# Ranks


def test_a_killed_rank_is_named_and_its_slots_come_free(ranks, aggregator, bystander):
    beside = bystander(aggregator)
    for victim, transport in ((1, "udp"), (0, "shm")):
        trio = ranks(3)
        join_ranks(trio, aggregator.address, "victims", transport=transport)
        slots = aggregator.job("victims").slots
        assert slots in (2048, 4096)  # the second with two parts
        assert aggregator.status().dataplane.slots_allocated == 4096 + slots  # 4096 of the bystander
        for rank in trio:
            rank.send("endless", numel=BIG)
        wait_for_traffic(aggregator, "victims")
        trio[victim].kill()
        for rank in (rank for rank in trio if rank is not trio[victim]):
            answer = rank.next(PEER_TIMEOUT_S)
            assert (answer["error"], answer["ranks"]) == ("PeerLost", [victim]), answer
            assert f"rank {victim} " in answer["message"]
        until(lambda: aggregator.status().dataplane.slots_allocated == 4096)  # the bystander's
        failed = aggregator.job("victims")
        assert failed.state == "failed" and [r.state for r in failed.ranks].count("lost") == 1
        beside.more()
    # The name is free, and the survivors can go on with a newcomer.
    trio = ranks(3)
    join_ranks(trio, aggregator.address, "victims")
    assert len({answer["sha256"] for answer in send_all(trio, "reduce", seed=1, numel=50_000)}) == 1
    send_all(trio, "leave")


# Aggregators


@pytest.mark.parametrize("transport", ["udp", "shm"])
def test_a_killed_aggregator_and_its_successor(ranks, start, transport):
    aggregator = start()
    trio = ranks(3)
    join_ranks(trio, aggregator.address, "survivors", transport=transport)
    for rank in trio:
        rank.send("endless", numel=BIG)
    wait_for_traffic(aggregator, "survivors")
    aggregator.kill()
    for rank in trio:  # `endless` has checked every sum up to here: a wrong one would be an AssertionError
        answer = rank.next(PEER_TIMEOUT_S)
        assert answer["error"] == "AggregatorLost", answer
        assert aggregator.address in answer["message"]

    successor = start(control_port=aggregator.control_port, data_port=aggregator.data_address[1])
    assert successor.address == aggregator.address and successor.data_address == aggregator.data_address
    assert [answer["error"] for answer in send_all(trio, "reduce", seed=1, numel=10)] == ["AggregatorLost"] * 3
    join_ranks(trio, successor.address, "survivors")
    assert len({answer["sha256"] for answer in send_all(trio, "reduce", seed=2, numel=100_000)}) == 1
    send_all(trio, "leave")
