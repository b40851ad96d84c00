"""What passes must know that a trace of one run does not say: what all-reduces would cost elsewhere, what codecs take,
how much memory there is. Where nobody says, it is derived from the trace, and `assumptions` says how.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from emulator.optimizer.codec_costs import CodecCost
from emulator.optimizer.networks import over_link
from emulator.trace.buckets import gradients
from emulator.trace.joined import Joined
from emulator.trace.transfers import Transfer, fit
from switchml.errors import ConfigError, GraphError

PLACEMENT_OF_BACKEND = {"gloo": "ring", "nccl": "ring", "mpi": "ring", "switchml": "switchml"}


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What decides how much fits. Bytes of one rank."""

    limit: float = 0.0
    """0: nobody asks."""
    activations: float = 0.0
    """Of the traced batch, at the end of its forward pass."""
    optimizer: float = 4.0
    """Bytes of optimizer state a parameter: 0 for SGD, 4 with momentum, 8 for Adam, all float32."""


@dataclass(frozen=True)
class Machine:
    """The job's surroundings. `link_bps`: of each host's link, 0 where unknown. `ranks`: of the job."""

    traced: Transfer
    """What the trace's own all-reduces cost."""
    traced_placement: str
    ranks: int
    link_bps: float = 0.0
    codecs: dict[str, CodecCost] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    half_speed: float = 0.0
    """How many times as fast ops on the host are in half precision; 0: no difference. Kernels of an accelerator follow
    passes/precision.py."""
    launch_s: float = 5e-6
    """What starting one op costs besides its work."""

    @classmethod
    def of(cls, joined: Joined, *, backend: str = "", **known) -> Machine:
        """Of the trace's own communication; `known`: other fields. Raises GraphError where it has none."""
        names = {trace.backend for trace in joined.traces} - {""}
        backend = backend or (names.pop() if len(names) == 1 else "")
        ranks = int(joined.graph.groups.size[joined.graph.meetings.group[gradients(joined).meetings[0]]])
        traced = fit(joined, gradients(joined).meetings)
        return cls(traced, PLACEMENT_OF_BACKEND.get(backend, "ring"), ranks, **known)

    @cached_property
    def link_bytes_per_s(self) -> float:
        """Of each host's link each way: as told, or as the traced all-reduces use it."""
        if self.link_bps:
            return self.link_bps / 8
        return self.traced.bytes_per_s * crossings(self.traced_placement, self.ranks)

    @cached_property
    def _transfers(self) -> dict[str, Transfer]:
        return {"": self.traced, self.traced_placement: self.traced}

    def transfer(self, placement: str) -> Transfer:
        """What an all-reduce costs there."""
        if placement not in self._transfers:
            self._transfers[placement] = over_link(placement, self.link_bytes_per_s, self.ranks)
        return self._transfers[placement]

    def codec(self, spec: str) -> CodecCost:
        """What a codec takes. Raises ConfigError for one that nobody has measured."""
        if spec not in self.codecs:
            raise ConfigError(f"nothing says what codec {spec!r} takes; known: {', '.join(self.codecs) or 'none'}")
        return self.codecs[spec]

    def compressed(self, placement: str, spec: str) -> Transfer:
        """What an all-reduce of uncompressed bytes costs on the wire with a codec, computing it left out. Payloads
        that must be gathered cross a link n - 1 times, and a switch can't add them up."""
        dense = self.transfer(placement)
        if not spec:
            return dense
        codec = self.codec(spec)
        if codec.gathers:
            rate = self.link_bytes_per_s / max(self.ranks - 1, 1)
            fixed = self.transfer("ring").fixed_s if self.traced_placement == "ring" else dense.fixed_s
        else:
            rate, fixed = dense.bytes_per_s, dense.fixed_s
        return Transfer(fixed * codec.rounds, rate / codec.wire_share)

    def assumptions(self) -> list[str]:
        """For reports."""
        said = [
            f"an all-reduce takes {self.traced.fixed_s * 1e3:.2f} ms and its bytes at "
            f"{self.traced.bytes_per_s / 1e6:.4g} MB/s, as fitted to those of the trace"
        ]
        if self.traced.assumed:
            said.append(self.traced.assumed)
        if not self.link_bps:
            said.append(
                f"links of {self.link_bytes_per_s * 8 / 1e6:.4g} Mbit/s, from the rate of the traced "
                f"{self.traced_placement} (--link says otherwise)"
            )
        return said

    def states_bytes(self, joined: Joined) -> float:
        """Weights, gradients and optimizer states of one rank, float32."""
        try:
            parameters = float(np.sum(gradients(joined).bytes)) / 4
        except GraphError:
            return 0.0
        return parameters * (8 + self.memory.optimizer)


def crossings(placement: str, ranks: int) -> float:
    """How often an all-reduced byte crosses the busiest link one way: a ring's 2 (n - 1) / n, once through a switch,
    n times at a server."""
    return {"ring": 2 * (ranks - 1) / ranks, "switchml": 1.0, "ps": float(ranks)}[placement] if ranks > 1 else 1.0
