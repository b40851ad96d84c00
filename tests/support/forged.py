"""Shared by attacks on a job's packets: what an attacker who knows tag and sequence numbers would send."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from host_agent.agent import HostAgent
from switchml.protocol.packet import CODE_INTEGER, CODE_UNKNOWN, CODE_ZERO, CONTRIBUTION, RESULT
from tests.support.launch import DEADLINE_S, contribution, total, until
from tests.support.packets import V2Packet, WaitPacket

NUMEL = 3000
LIE = np.full(256, 666, np.int32)
"""Lanes of no true sum or contribution."""


def next_rounds(agent: HostAgent, slots: int = 64) -> Iterator[int]:
    """Sequence numbers of the rounds that an agent begins next, or waits for."""
    worker = agent.core.worker
    rounds = worker.state.slots["round"]
    for slot in range(min(slots, len(rounds))):
        yield (int(worker.identity["isn"]) + int(rounds[slot]) * len(rounds) + slot) & 0xFFFFFFFF


def forged_results(agent: HostAgent) -> list[bytes]:
    """What would finish every round that an int32 all-reduce begins next, and say that the aggregator waits."""
    packets = []
    for seq in next_rounds(agent):
        packets.append(V2Packet(RESULT, seq, agent.job_tag, CODE_ZERO, 0, CODE_UNKNOWN, LIE).pack())
        packets.append(V2Packet(RESULT, seq, agent.job_tag, CODE_ZERO, 0, CODE_UNKNOWN, LIE, r=True).pack())
        packets.append(WaitPacket(seq, agent.job_tag, (1,)).pack())
    return packets


def forged_contributions(agent: HostAgent) -> list[bytes]:
    """What an agent would contribute to its next rounds if it called an int32 all-reduce of other values."""
    return [
        V2Packet(CONTRIBUTION, seq, agent.job_tag, CODE_ZERO, CODE_INTEGER, CODE_UNKNOWN, LIE).pack()
        for seq in next_rounds(agent)
    ]


def sums_under(agents: list[HostAgent], attack: Callable[[], object], seed: int) -> list[np.ndarray]:
    """What two ranks get from an all-reduce in which `attack()` comes between rank 0's call and rank 1's."""
    handles = [agents[0].allreduce(contribution(seed, 0, NUMEL, "int32"), async_op=True)]
    until(lambda: agents[0].core.worker.window["in_flight"] > 0)
    attack()
    handles.append(agents[1].allreduce(contribution(seed, 1, NUMEL, "int32"), async_op=True))
    return [handle.wait(DEADLINE_S) for handle in handles]


def check_sums(agents: list[HostAgent], attack: Callable[[], object], seed: int) -> None:
    """`sums_under` an attack, which have to be the true ones."""
    for result in sums_under(agents, attack, seed):
        np.testing.assert_array_equal(result, total(seed, 2, NUMEL, "int32"))
