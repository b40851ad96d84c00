"""One point of the space that is searched: what each pass shall do. The defaults are the job as it was traced."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from switchml.errors import ConfigError

PLACEMENTS = ("", "ring", "ps", "switchml")
"""Who adds up gradients: as traced, the ranks in a ring, one server, the switch (or the software aggregator)."""
PRECISIONS = ("", "half")


@dataclass(frozen=True)
class Setting:
    """What all passes shall do. Each field is one pass's; hashable, so that nothing is evaluated twice."""

    buckets: tuple[int, ...] = ()
    """Caps in bytes as DDP's: bucket i closes once it holds caps[i], the last cap repeats. Empty: as traced."""
    placement: str = ""
    codec: tuple[str, ...] = ()
    """Of each bucket, the last repeats; "" is none. As in docs/codecs.md, such as topk:ratio=0.01."""
    priority: bool = False
    """Buckets that are waited for first are reduced first."""
    precision: str = ""
    recompute: bool = False
    fuse: bool = False
    """Small ops that follow each other become one."""
    accumulate: int = 1
    """Micro-batches for each all-reduce."""
    batch: float = 1.0
    """Times as many samples."""

    def __post_init__(self) -> None:
        if any(cap <= 0 for cap in self.buckets):
            raise ConfigError(f"bucket caps {list(self.buckets)}: expected bytes above 0")
        for name, known in (("placement", PLACEMENTS), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; there are {', '.join(filter(None, known))}")
        if self.accumulate < 1 or not self.batch > 0:
            raise ConfigError(
                f"{self.accumulate} micro-batches of {self.batch:g} times the batch: expected at least 1, above 0"
            )

    @property
    def samples(self) -> float:
        """How many times as many samples an iteration takes as the traced one."""
        return self.accumulate * self.batch

    def changed(self) -> dict[str, object]:
        """Field → value where it is not as traced."""
        default = Setting()
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != getattr(default, field.name)
        }

    def codec_of(self, bucket: int) -> str:
        """Codec of a bucket."""
        return self.codec[min(bucket, len(self.codec) - 1)] if self.codec else ""


TRACED = Setting()
