"""Connection of torch.distributed's ranks to each other's buffers, if these are faster than storage."""

import secrets
import statistics
import time
from typing import Any

from host_agent.loading.peers import TcpPeers, own_address
from host_agent.loading.sources.base import Source
from switchml.errors import ConfigError

PROBES = 3


def quick_peers(source: Source, rank: int, world_size: int) -> TcpPeers | None:
    """Connect to the other ranks if fetching a sample from them is faster than from storage, in the median over ranks;
    returns None otherwise. Collective: all ranks of the default group call it, and all get the same answer."""
    import torch.distributed as dist

    if not dist.is_initialized() or dist.get_world_size() != world_size:
        raise ConfigError(
            f"peers='auto' with {world_size} ranks needs torch.distributed of as many, initialized; or give peers=None"
        )
    group = dist.new_group(backend="gloo")

    def exchange(value: Any) -> list[Any]:
        found: list[Any] = [None] * world_size
        dist.all_gather_object(found, value, group=group)
        return found

    key = exchange(secrets.token_bytes(32))[0]
    peers = TcpPeers(exchange, key, own_address())
    storage_s, sample = [], None
    for number in range(PROBES):
        started = time.perf_counter()
        sample = source.read([(rank * PROBES + number) * 7919 % len(source)])[0]
        storage_s.append(time.perf_counter() - started)
    if isinstance(sample, Exception):
        sample = None
    peers.lend(-1, {0: sample})
    exchange(None)
    peer_s = [peers.round_trip_s((rank + 1) % world_size) for _ in range(PROBES + 1)][1:]
    answers = exchange((min(storage_s), min(peer_s)))
    dist.destroy_process_group(group)
    if statistics.median(peer for _, peer in answers) < statistics.median(stored for stored, _ in answers):
        return peers
    peers.close()
    return None
