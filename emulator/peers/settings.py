"""What is emulated around the real ranks. Every field is an environment variable, SWITCHML_EMULATED_ and its name in
capitals, so that a script which torchrun starts needs no change.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from emulator import datafile
from emulator.cluster import cluster as clusters
from emulator.cluster.algorithms import ALGORITHMS, HIERARCHIES
from emulator.cluster.innetwork import Streaming
from emulator.ranges import FACTOR, SEED, Range, Ranged, number
from switchml.errors import ConfigError

PREFIX = "SWITCHML_EMULATED_"
WORLD = Range(1, 1_000_000)
CHOICES = {
    "network": ALGORITHMS,
    "hierarchy": HIERARCHIES,
    "clock": ("wall", "virtual"),
    "values": ("own", "noise", "zeros", "recorded"),
    "measure": ("wall", "cpu"),
}
"""Field → what it may be."""


@dataclass(frozen=True, kw_only=True)
class PeerSettings(Ranged):
    """A world of which a few ranks are real."""

    world: int = number(WORLD)
    """How many ranks there are, real and absent."""
    real: tuple[int, ...] = number(Range(0, 999_999), ())
    """Which of them are real; default: the first ones, as many as there are processes."""
    cluster: str = "cpu-10g"
    """A built-in cluster or a TOML file; ranks fill its nodes in their order."""
    network: str = "auto"
    """How all-reduces go: one of `emulator.cluster.algorithms.ALGORITHMS`."""
    hierarchy: str = "auto"
    """Who speaks to the network in them: one of `emulator.cluster.algorithms.HIERARCHIES`."""
    clock: str = "wall"
    """ "wall": a collective takes as long as on the cluster. "virtual": only the rank's own clock says how long."""
    values: str = "own"
    """What an absent rank contributes: as this rank ("own"), with noise, zeros, or what it did in a recorded run."""
    noise: float = number(Range(0, 1e6), 0.1)
    """Standard deviation of that noise over the root mean square of the tensor."""
    recording: str = ""
    """The folder of a recorded run."""
    record: str = ""
    """A folder to record this run into, all ranks of which are real."""
    slow: dict[int, float] = number(FACTOR, factory=dict)
    """Rank → how many times longer it computes."""
    jitter: float = number(Range(0, 100, "[)"), 0.0)
    """Standard deviation of an absent rank's compute time over its mean, drawn anew for each iteration."""
    loss: float = number(Range(0, 0.5), 0.0)
    """Share of packets lost on each link on their way to the aggregating switch and back."""
    slots: int = number(Range(0, 2**40), 0)
    """Of the aggregating switch, for each version; 0: as the cluster says."""
    jobs: int = number(Range(1, 1_000_000), 1)
    """Jobs that share these slots."""
    compute_scale: float = number(FACTOR, 1.0)
    """How many times longer than here all ranks compute."""
    measure: str = "wall"
    """What a virtual clock counts as computing: "wall" time, or "cpu" time of all threads of the process."""
    seed: int = number(SEED, 0)
    report: str = ""
    """A file for the report (JSON) of the first real rank."""
    timeline: str = ""
    """A file for the last iteration in the Trace Event Format."""
    quiet: bool = False
    """Whether to print no report at the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise ConfigError(datafile.unknown(f"{name} of emulated peers", getattr(self, name), known))
        for rank in self.slow:
            if not 0 <= rank < self.world:
                raise ConfigError(f"slow names rank {rank}; the world has ranks 0 to {self.world - 1}")
        if len(set(self.real)) != len(self.real) or not all(0 <= rank < self.world for rank in self.real):
            raise ConfigError(f"real ranks {list(self.real)}; expected different ones of 0 to {self.world - 1}")
        if self.values == "recorded" and not self.recording:
            raise ConfigError('values "recorded" need the folder of a recorded run (recording)')
        if self.network != "switchml" and (self.loss or self.slots or self.jobs != 1):
            raise ConfigError(
                f"loss, slots and jobs concern the aggregating switch, but all-reduces go by {self.network!r}; "
                'expected the network "switchml"'
            )
        Streaming(loss=self.loss, jobs=self.jobs)
        self.machine()

    def machine(self) -> clusters.Cluster:
        """The cluster, with as many slots as asked for."""
        cluster = clusters.load(self.cluster)
        cluster.nodes(self.world)
        if self.slots:
            return dataclasses.replace(cluster, switch=dataclasses.replace(cluster.switch, slots=self.slots))
        return cluster

    def scale_of(self, rank: int) -> float:
        """How many times longer than here `rank` computes."""
        return self.compute_scale * self.slow.get(rank, 1.0)

    def environment(self) -> dict[str, str]:
        """The variables that say the same, without those at their default."""
        values = {item: getattr(self, item.name) for item in dataclasses.fields(self)}
        changed = {item.name: value for item, value in values.items() if value not in (item.default, {})}
        return {PREFIX + name.upper(): _text(value) for name, value in changed.items()}


def from_environment(environment: Mapping[str, str] = os.environ) -> PeerSettings:
    """Raises ConfigError for a variable that is unknown or makes no sense, and where there is no world."""
    fields = {item.name: item for item in dataclasses.fields(PeerSettings)}
    values = {}
    for key, text in environment.items():
        if key.startswith(PREFIX):
            name = key.removeprefix(PREFIX).lower()
            if name not in fields:
                known = [PREFIX + other.upper() for other in fields]
                raise ConfigError(datafile.unknown("environment variable", key, known))
            values[name] = _value(key, str(fields[name].type), text)
    if "world" not in values:
        raise ConfigError(f"{PREFIX}WORLD is not set: how many ranks the emulated world has, such as 64")
    return PeerSettings(**values)


def parse_slow(text: str) -> dict[int, float]:
    """ "3=1.5,7=2": rank 3 takes half as long again, rank 7 twice as long. Raises ConfigError."""
    try:
        pairs = [part.split("=") for part in text.split(",") if part.strip()]
        return {int(rank): float(factor) for rank, factor in pairs}
    except ValueError:
        raise ConfigError(f"slow ranks {text!r}: expected RANK=FACTOR, such as 3=1.5") from None


def _value(key: str, kind: str, text: str) -> Any:
    try:
        if kind == "bool":
            return bool(int(text))
        if kind.startswith("dict"):
            return parse_slow(text)
        if kind.startswith("tuple"):
            return tuple(int(part) for part in text.split(",") if part.strip())
        return {"int": int, "float": float, "str": str}[kind](text)
    except ConfigError:
        raise
    except ValueError:
        expected = {"bool": "0 or 1", "int": "an integer", "float": "a number"}.get(kind, "ranks, such as 0,1")
        raise ConfigError(f"{key} is {text!r}; expected {expected}") from None


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, dict):
        return ",".join(f"{rank}={factor!r}" for rank, factor in value.items())
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
