"""Change: compressed gradients. They pay if 1/B > 1/(ratio B) + 1/T, with the network's rate B and the codec's rate T.
A rank's codec and its all-reduces alternate, as in host_agent/pytorch/comm_hooks.py.
"""

import dataclasses

import numpy as np

from emulator.jobs.workload.graph import Collective, Kind
from emulator.traces.joined import Joined
from emulator.traces.network import Network, TransferCost
from emulator.traces.whatif.codec_costs import CodecCost
from emulator.traces.whatif.edits import after, before, with_transfer_seconds
from emulator.traces.whatif.links import repeated_rounds_s
from emulator.traces.whatif.network import network_of, world_size
from emulator.traces.whatif.serial import one_at_a_time
from emulator.traces.whatif.transfers import all_reduces, changed_s, transfer_bytes, transfer_s


def codec(joined: Joined, cost: CodecCost, name: str = "codec") -> Joined:
    """Compress every all-reduce with a codec."""
    joined = one_at_a_time(joined)
    network, ranks = network_of(joined), world_size(joined)
    dense = network.transfer(ranks)
    transfers = all_reduces(joined)
    size = transfer_bytes(joined)[transfers]
    was_s = dense.seconds(size) + repeated_rounds_s(joined, network)[transfers]
    transfer = compressed(dense, network, ranks, cost)
    now_s = transfer.seconds(size) + transfer.repeats_s(size)
    seconds = changed_s(transfer_s(joined.costs)[transfers], was_s, now_s)
    joined = compress(joined, transfers, seconds, size / cost.bytes_per_s, name)
    return dataclasses.replace(joined, network=network)


def compressed(dense: TransferCost, network: Network, ranks: int, cost: CodecCost) -> TransferCost:
    """Return the network cost of an all-reduce with a codec, per uncompressed bytes, without the codec's compute;
    `dense`: without a codec. Payloads that must be gathered cross a link n - 1 times, and a switch can't add them up.
    """
    if cost.gathers:
        fixed_s, per_byte_s = network.line(ranks, Collective.ALL_GATHER)  # of the gathered data of all ranks
        return TransferCost(cost.rounds * fixed_s, 1 / (ranks * per_byte_s) / cost.wire_share)
    repeated = network.transfer(ranks, cost.lanes)
    return TransferCost(
        dense.fixed_s * cost.rounds,
        dense.bytes_per_s / cost.wire_share,
        repeat_share=repeated.repeat_share,
        guessed_bytes=repeated.guessed_bytes / cost.wire_share,
    )


def compress(
    joined: Joined, transfers: np.ndarray, seconds: np.ndarray, codec_s: np.ndarray, name: str = "codec"
) -> Joined:
    """Set the duration of all-reduces `transfers` to `seconds`; codecs run for `codec_s`, half before, half after.
    float64 (n,) both."""
    joined = with_transfer_seconds(joined, transfers, seconds)
    half_s = np.zeros(len(joined.graph.transfers))
    half_s[transfers] = codec_s / 2
    member = joined.graph.ops.transfer
    ops = np.flatnonzero(np.append(half_s, 0.0)[member] > 0)  # the last entry: ops in no collective
    if not len(ops):
        return joined
    spent_s = half_s[member[ops]]
    joined = before(joined, ops, name, Kind.CODEC, spent_s)
    return after(joined, ops + 1 + np.arange(len(ops)), name, Kind.CODEC, spent_s)
