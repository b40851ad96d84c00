"""What passes must know that a trace of one run does not say: what all-reduces would cost elsewhere, what codecs take,
how much memory there is. The default is derived from the trace, and `assumptions` says how.
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
from emulator.traces.whatif.transfers import LEAST_FIXED_S, fit
from switchml.errors import ConfigError, GraphError
from switchml.units import time_text

BACKEND_OF = {"ring": "gloo", "switchml": "switchml"}
"""All-reduce algorithm → what `init_process_group` calls it; a trace's own backend stays what it is."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What decides how much fits. Bytes of one rank."""

    limit: float = 0.0
    """0: none."""
    activations: float = 0.0
    """Of the traced batch, at the end of its forward pass."""
    optimizer: float = 4.0
    """Bytes of optimizer state a parameter: 0 for SGD, 4 with momentum, 8 for Adam, all float32."""


@dataclass(frozen=True)
class Machine:
    """The job's surroundings."""

    network: Network
    """As fitted to the trace's own all-reduces."""
    traced: TransferCost
    """What these cost."""
    ranks: int
    """That all-reduce together."""
    hierarchy: str = "auto"
    """Of all-reduces by another algorithm than the traced: one of `emulator.cluster.algorithms.HIERARCHIES`."""
    codecs: dict[str, CodecCost] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    half_speed: float = 0.0
    """How many times as fast ops on the host are in half precision (of kernels: whatif/accelerator.py); 0: the same."""
    launch_s: float = 5e-6
    """What starting one op costs besides its work."""
    uncertainty_s: float = 0.0
    """By how much an all-reduce that was never traced may take longer than its `transfer` says."""

    @classmethod
    def of(
        cls, joined: Joined, *, link_bps: float | None = None, uncertainty_s: float | None = None, **known
    ) -> Machine:
        """Of the trace's own communication; `link_bps`: of each host's link, where it is known; `uncertainty_s`: by
        default what all-reduces differ by from iteration to iteration; `known`: other fields. Raises GraphError where
        there is no communication, ConfigError for links slower than what was measured."""
        graph, transfers = joined.graph, gradients(joined).transfers
        ranks = int(graph.groups.size[graph.transfers.group[transfers[0]]])
        network = networks.fit(joined, link_bps)
        most = network.transfer(ranks).bytes_per_s if link_bps else np.inf
        traced = fit(joined, transfers, most)
        if uncertainty_s is None:
            uncertainty_s = max(joined.scatter_s, min(traced.fixed_s, LEAST_FIXED_S))
        return cls(network, traced, ranks, uncertainty_s=uncertainty_s, **known)

    @property
    def traced_allreduce(self) -> str:
        """The traced all-reduce algorithm."""
        return self.network.algorithm

    def network_of(self, allreduce: str) -> Network:
        """The network with another all-reduce algorithm."""
        if allreduce in ("", self.traced_allreduce):
            return self.network
        return dataclasses.replace(self.network, algorithm=allreduce, hierarchy=self.hierarchy)

    def transfer(self, allreduce: str) -> TransferCost:
        """What an all-reduce costs there."""
        network = self.network_of(allreduce)
        return self.traced if network is self.network else network.transfer(self.ranks)

    def codec(self, spec: str) -> CodecCost:
        """What a codec takes. Raises ConfigError for one without a measurement."""
        if spec not in self.codecs:
            raise ConfigError(f"nothing says what codec {spec!r} takes; known: {', '.join(self.codecs) or 'none'}")
        return self.codecs[spec]

    def compressed(self, allreduce: str, spec: str) -> TransferCost:
        """What an all-reduce of uncompressed bytes costs on the wire with a codec, computing it left out."""
        dense = self.transfer(allreduce)
        if not spec:
            return dense
        return codec.compressed(dense, self.network_of(allreduce), self.ranks, self.codec(spec))

    def assumptions(self) -> list[str]:
        """For reports."""
        network = self.network
        return [
            f"an all-reduce takes {self.traced}, as fitted to those of the trace, and "
            f"{time_text(self.uncertainty_s)} more at worst",
            network.link_text,
            *dict.fromkeys(line for line in (self.traced.assumed, *network.assumptions) if line),
        ]

    def repeated_rounds(self, allreduce: str, specs: Iterable[str]) -> list[str]:
        """What is assumed of repeated rounds, for reports."""
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
        """Weights, gradients and optimizer states of one rank, float32."""
        try:
            parameters = float(np.sum(gradients(joined).bytes)) / 4
        except GraphError:
            return 0.0
        return parameters * (8 + self.memory.optimizer)
