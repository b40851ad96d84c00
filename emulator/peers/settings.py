"""Configuration of an emulated world. Every field is an environment variable, SWITCHML_EMULATED_ and its name in
capitals, so that a script started by torchrun needs no change.
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
"""Field → allowed values."""


@dataclass(frozen=True, kw_only=True)
class PeerSettings(Ranged):
    """A world with only a few real ranks."""

    world: int = number(WORLD)
    """World size: real and absent ranks."""
    real: tuple[int, ...] = number(Range(0, 999_999), ())
    """Numbers of the real ranks; default: the first ones, one per process."""
    cluster: str = "cpu-10g"
    """A built-in cluster or a TOML file; ranks fill its nodes in order."""
    network: str = "auto"
    """All-reduce algorithm: one of `emulator.cluster.algorithms.ALGORITHMS`."""
    hierarchy: str = "auto"
    """Hierarchy of all-reduces: one of `emulator.cluster.algorithms.HIERARCHIES`."""
    clock: str = "wall"
    """"wall": a collective blocks as long as on the cluster. "virtual": only the rank's own clock advances."""
    values: str = "own"
    """Values contributed by absent ranks: this rank's ("own"), the same with noise, zeros, or those of a recorded run.
    """
    noise: float = number(Range(0, 1e6), 0.1)
    """Standard deviation of that noise relative to the root mean square of the tensor."""
    recording: str = ""
    """Folder of a recorded run."""
    record: str = ""
    """Folder to record this run into; all of its ranks must be real."""
    slow: dict[int, float] = number(FACTOR, factory=dict)
    """Rank → factor on its compute time."""
    jitter: float = number(Range(0, 100, "[)"), 0.0)
    """Standard deviation of an absent rank's compute time relative to its mean, drawn for each iteration."""
    loss: float = number(Range(0, 0.5), 0.0)
    """Packet loss rate of each link to and from the aggregating switch."""
    slots: int = number(Range(0, 2**40), 0)
    """Slots of the aggregating switch, for each version; 0: the cluster's."""
    jobs: int = number(Range(1, 1_000_000), 1)
    """Number of jobs that share these slots."""
    compute_scale: float = number(FACTOR, 1.0)
    """Factor on all ranks' compute time relative to this machine."""
    measure: str = "wall"
    """Time that a virtual clock counts as compute: "wall" time, or "cpu" time of all threads of the process."""
    seed: int = number(SEED, 0)
    report: str = ""
    """File for the report (JSON) of the first real rank."""
    timeline: str = ""
    """File for the last iteration in the Trace Event Format."""
    quiet: bool = False
    """Whether to omit the printed report at the end."""

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
        """Return the cluster, with the configured number of slots."""
        cluster = clusters.load(self.cluster)
        cluster.nodes(self.world)
        if self.slots:
            return dataclasses.replace(cluster, switch=dataclasses.replace(cluster.switch, slots=self.slots))
        return cluster

    def scale_of(self, rank: int) -> float:
        """Return the factor on the compute time of `rank` relative to this machine."""
        return self.compute_scale * self.slow.get(rank, 1.0)

    def environment(self) -> dict[str, str]:
        """Return the equivalent environment variables, without defaults."""
        values = {item: getattr(self, item.name) for item in dataclasses.fields(self)}
        changed = {item.name: value for item, value in values.items() if value not in (item.default, {})}
        return {PREFIX + name.upper(): _text(value) for name, value in changed.items()}


def from_environment(environment: Mapping[str, str] = os.environ) -> PeerSettings:
    """Read the settings from environment variables. Raises ConfigError for an unknown variable or invalid value, and if
    no world size is set."""
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
    """Parse slow ranks: "3=1.5,7=2" makes rank 3 take half as long again, rank 7 twice as long. Raises ConfigError."""
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
