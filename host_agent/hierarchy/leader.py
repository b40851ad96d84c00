"""How the ranks of a host hear from their leader that it has joined the job of the hosts, or what ended it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from host_agent.base import Agent
from host_agent.hierarchy import memory as memories
from host_agent.hierarchy.hosts import Membership
from switchml import errors
from switchml.errors import CollectiveTimeout, ConfigError, JobError, JoinError, PeerLost

_TICK_S = 0.25
"""How often to look whether the job is still on."""


def join_network(join: Callable[[], Agent], memory: memories.HostMemory) -> Agent:
    """The leader's agent in the job of the hosts; the other ranks hear what became of it."""
    try:
        network = join()
    except BaseException as error:
        memory.announce(memories.FAILED, error=type(error).__name__, message=str(error), ranks=[])
        raise
    memory.announce(memories.READY, transport=network.transport, wire=network.wire, takes_sparse=network.takes_sparse)
    return network


def await_leader(membership: Membership, memory: memories.HostMemory, deadline: float) -> None:
    """Until the leader is in the job of the hosts. Raises its error."""
    while memory.state == memories.STARTING:
        heard = memory.rings()
        if memory.state == memories.STARTING:
            memory.wait(heard, _TICK_S)
        membership.check(deadline + 1.0, f"rank {membership.ranks[0]} of this host did not join")
    if memory.state == memories.FAILED:
        raise error_of(memory.facts())


def error_of(facts: dict[str, Any]) -> BaseException:
    """An error that the leader announced."""
    kind = getattr(errors, facts["error"], JoinError)
    if issubclass(kind, (PeerLost, CollectiveTimeout)):
        return kind(facts["message"], tuple(facts["ranks"]))
    return (
        kind(facts["message"]) if issubclass(kind, (JobError, JoinError, ConfigError)) else JobError(facts["message"])
    )
