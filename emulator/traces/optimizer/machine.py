"""Properties of the machine that passes need but a trace does not contain: costs of other all-reduce algorithms, costs
of codecs, memory size. The default is derived from the trace, as described by `assumptions`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from emulator.traces.joined import Joined
from emulator.traces.network import Network, TransferCost
from emulator.traces.whatif import codec
from emulator.traces.whatif import network as networks
from emulator.traces.whatif.codec_costs import CodecCost
from emulator.traces.whatif.gradients import gradients
from emulator.traces.whatif.transfers import MIN_FIXED_S, fit
from switchml.errors import ConfigError, GraphError
from switchml.units import time_text

BACKEND_OF = {"ring": "gloo", "switchml": "switchml"}
"""All-reduce algorithm → backend name for `init_process_group`; the trace's own backend is kept."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of one rank, in bytes."""

    limit: float = 0.0
    """0: unlimited."""
    activations: float = 0.0
    """Activations of the traced batch at the end of its forward pass."""
    optimizer: float = 4.0
    """Bytes of optimizer state per parameter: 0 for SGD, 4 with momentum, 8 for Adam, all float32."""


@dataclass(frozen=True)
class Machine:
    """Machine on which the job runs."""

    network: Network
    """Network fitted to the trace's own all-reduces."""
    traced: TransferCost
    """Cost of the traced all-reduces."""
    ranks: int
    """Number of ranks in an all-reduce."""
    hierarchy: str = "auto"
    """Hierarchy of all-reduces with another than the traced algorithm: one of
    `emulator.cluster.algorithms.HIERARCHIES`."""
    codecs: dict[str, CodecCost] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    half_speed: float = 0.0
    """Speed of host ops in half precision relative to the traced one (of kernels: whatif/accelerator.py); 0: the same.
    """
    launch_s: float = 5e-6
    """Overhead of starting an op."""
    uncertainty_s: float = 0.0
    """Possible excess of an untraced all-reduce over the estimate of `transfer`."""

    @classmethod
    def of(
        cls, joined: Joined, *, link_bps: float | None = None, uncertainty_s: float | None = None, **known
    ) -> Machine:
        """Derive the machine from the trace's own communication. `link_bps`: bandwidth of each host's link, if known;
        `uncertainty_s`: by default the variation of all-reduces between iterations; `known`: other fields. Raises
        GraphError if there is no communication, ConfigError for links slower than measured."""
        graph, transfers = joined.graph, gradients(joined).transfers
        ranks = int(graph.groups.size[graph.transfers.group[transfers[0]]])
        network = networks.fit(joined, link_bps)
        most = network.transfer(ranks).bytes_per_s if link_bps else np.inf
        traced = fit(joined, transfers, most)
        if uncertainty_s is None:
            uncertainty_s = max(joined.scatter_s, min(traced.fixed_s, MIN_FIXED_S))
        return cls(network, traced, ranks, uncertainty_s=uncertainty_s, **known)

    @property
    def traced_allreduce(self) -> str:
        """The traced all-reduce algorithm."""
        return self.network.algorithm

    def network_of(self, allreduce: str) -> Network:
        """Return the network with another all-reduce algorithm."""
        if allreduce in ("", self.traced_allreduce):
            return self.network
        return dataclasses.replace(self.network, algorithm=allreduce, hierarchy=self.hierarchy)

    def transfer(self, allreduce: str) -> TransferCost:
        """Return the cost of an all-reduce with this algorithm."""
        network = self.network_of(allreduce)
        return self.traced if network is self.network else network.transfer(self.ranks)

    def codec(self, spec: str) -> CodecCost:
        """Return the cost of a codec. Raises ConfigError for one without a measurement."""
        if spec not in self.codecs:
            raise ConfigError(f"no costs of codec {spec!r}; known: {', '.join(self.codecs) or 'none'}")
        return self.codecs[spec]

    def compressed(self, allreduce: str, spec: str) -> TransferCost:
        """Return the network cost of an all-reduce with a codec, per uncompressed bytes, without the codec's
        compute."""
        dense = self.transfer(allreduce)
        if not spec:
            return dense
        return codec.compressed(dense, self.network_of(allreduce), self.ranks, self.codec(spec))

    def assumptions(self) -> list[str]:
        """Return the assumptions, for reports."""
        network = self.network
        return [
            f"an all-reduce takes {self.traced}, as fitted to those of the trace, and "
            f"{time_text(self.uncertainty_s)} more at worst",
            network.link_text,
            *dict.fromkeys(line for line in (self.traced.assumed, *network.assumptions) if line),
        ]

    def repeated_rounds(self, allreduce: str, specs: Iterable[str]) -> list[str]:
        """Return the assumptions about repeated rounds, for reports."""
        shares = {self.codec(spec).lanes if spec else "int32" for spec in specs or [""]}
        placed = self.network_of(allreduce)
        basis = "as in the trace" if self.network.repeat_factor is not None else "as in other jobs"
        return [
            f"the aggregator's exponents are guessed wrong for {share:.0%} of an all-reduce's first chunks in {lanes} "
            f"lanes, {basis}"
            for lanes in sorted(shares)
            if (share := placed.transfer(self.ranks, lanes).repeat_share)
        ]

    def states_bytes(self, joined: Joined) -> float:
        """Return the bytes of weights, gradients and optimizer states of one rank, float32."""
        try:
            parameters = float(np.sum(gradients(joined).bytes)) / 4
        except GraphError:
            return 0.0
        return parameters * (8 + self.memory.optimizer)
