"""Sources built from other objects: map-style data sets, and several sources in parallel."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from host_agent.loading.sources.base import Source, Traffic, size_of
from switchml.errors import ConfigError


class Items:
    """Source of a map-style data set, such as torch's `Dataset`: with `__getitem__` and `__len__`, and optionally
    `__getitems__`."""

    def __init__(self, dataset: Any, reads_at_once: int = 4):
        self._dataset = dataset
        self._pool = ThreadPoolExecutor(reads_at_once, "switchml-items")
        self.traffic = Traffic()

    def __len__(self) -> int:
        return len(self._dataset)

    def __repr__(self) -> str:
        return type(self._dataset).__name__

    def read(self, indices: Sequence[int]) -> list[Any]:
        """Samples, or exceptions in place of samples that could not be read (`Source.read`)."""
        if hasattr(self._dataset, "__getitems__"):
            samples = list(self._dataset.__getitems__(list(indices)))
        else:
            samples = list(self._pool.map(self._one, indices))
        self.traffic.add(len(samples), sum(size_of(each) for each in samples if not isinstance(each, Exception)))
        return samples

    def _one(self, index: int) -> Any:
        try:
            return self._dataset[index]
        except Exception as error:  # reported by the reader with the sample's number
            return error


class Columns:
    """Source whose sample i is the tuple of the sources' samples i, such as images and labels. Raises ConfigError if
    their lengths differ."""

    def __init__(self, *sources: Source):
        lengths = [len(each) for each in sources]
        if not sources or len(set(lengths)) > 1:
            raise ConfigError(f"sources of {lengths} samples side by side; expected equally many")
        self._sources = sources

    def __len__(self) -> int:
        return len(self._sources[0])

    def __repr__(self) -> str:
        return ", ".join(map(repr, self._sources))

    @property
    def sample_bytes(self) -> int:
        """Size of a sample over all columns."""
        return sum(sample_bytes(each) for each in self._sources)

    @property
    def traffics(self) -> list[Traffic]:
        """Traffic counters of the columns."""
        return [traffic for each in self._sources for traffic in traffics(each)]

    def read(self, indices: Sequence[int]) -> list[Any]:
        """Tuples, or the exception of the first part that could not be read (`Source.read`)."""
        rows = zip(*(each.read(indices) for each in self._sources), strict=True)
        return [next((part for part in row if isinstance(part, Exception)), row) for row in rows]


def traffics(source: Source) -> list[Traffic]:
    """Traffic counters of a source; empty if it has none."""
    if hasattr(source, "traffics"):
        return list(source.traffics)
    return [source.traffic] if hasattr(source, "traffic") else []


def sample_bytes(source: Source) -> int:
    """Size of the largest sample according to the source, else of the first sample."""
    known = getattr(source, "sample_bytes", None)
    return int(known) if known is not None else size_of(source.read([0])[0])


def as_source(dataset: Any) -> Source:
    """`dataset` itself if it has `read(indices)`, else a source of its items. Raises ConfigError if it has neither, or
    no length."""
    if not hasattr(dataset, "__len__"):
        raise ConfigError(f"{type(dataset).__name__} has no length: a plan needs to know how many samples there are")
    if callable(getattr(dataset, "read", None)):
        source: Source = dataset
        return source
    if not hasattr(dataset, "__getitem__"):
        raise ConfigError(f"{type(dataset).__name__} has neither read(indices) nor items")
    return Items(dataset)
