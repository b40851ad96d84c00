"""What goes wrong in the field: ranks are killed. Aggregators are in tests/host_agent/test_failover.py.

Ranks are processes (launch.Rank), and so is the aggregator. A job beside the one that suffers runs in
this process: it must never notice. Deadlines are long because machines that run tests are slow; in practice all of this
takes a moment.
"""

from __future__ import annotations

from tests.support.launch import until
from tests.support.under_attack import BIG, join_ranks, send_all, wait_for_traffic

PEER_TIMEOUT_S = 10
"""The default: by then the survivors must know. A broken connection tells them at once."""


def test_a_killed_rank_is_named_and_its_slots_come_free(ranks, aggregator, bystander):
    beside = bystander(aggregator)
    bystanders = aggregator.status().dataplane.slots_allocated
    for victim, transport in ((1, "udp"), (0, "shm")):
        trio = ranks(3)
        join_ranks(trio, aggregator.address, "victims", transport=transport)
        slots = aggregator.job("victims").slots
        assert aggregator.status().dataplane.slots_allocated == bystanders + slots > bystanders > 0
        for rank in trio:
            rank.send("endless", numel=BIG)
        wait_for_traffic(aggregator, "victims")
        trio[victim].kill()
        for rank in (rank for rank in trio if rank is not trio[victim]):
            answer = rank.next(PEER_TIMEOUT_S)
            assert (answer["error"], answer["ranks"]) == ("PeerLost", [victim]), answer
            assert f"rank {victim} " in answer["message"]
        until(lambda: aggregator.status().dataplane.slots_allocated == bystanders)
        failed = aggregator.job("victims")
        assert failed.state == "failed" and [r.state for r in failed.ranks].count("lost") == 1
        beside.more()
    # The name is free, and the survivors can go on with a newcomer.
    trio = ranks(3)
    join_ranks(trio, aggregator.address, "victims")
    assert len({answer["sha256"] for answer in send_all(trio, "reduce", seed=1, numel=50_000)}) == 1
    send_all(trio, "leave")
