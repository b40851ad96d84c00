"""Sources made of others' objects: data sets with items, several sources side by side."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from host_agent.loading.sources.base import Source, Traffic, size_of
from switchml.errors import ConfigError


class Items:
    """A map-style data set, as torch's `Dataset`: `__getitem__` and `__len__`, and `__getitems__` where it has that."""

    def __init__(self, dataset: Any, reads_at_once: int = 4):
        self._dataset = dataset
        self._pool = ThreadPoolExecutor(reads_at_once, "switchml-items")
        self.traffic = Traffic()

    def __len__(self) -> int:
        return len(self._dataset)

    def __repr__(self) -> str:
        return type(self._dataset).__name__

    def read(self, indices: Sequence[int]) -> list[Any]:
        """Samples, or in place of one what was raised (`Source.read`)."""
        if hasattr(self._dataset, "__getitems__"):
            samples = list(self._dataset.__getitems__(list(indices)))
        else:
            samples = list(self._pool.map(self._one, indices))
        self.traffic.add(len(samples), sum(size_of(each) for each in samples if not isinstance(each, Exception)))
        return samples

    def _one(self, index: int) -> Any:
        try:
            return self._dataset[index]
        except Exception as error:  # named with the sample by who reads
            return error


class Columns:
    """Sample i is the tuple of the sources' samples i, as of images and labels. Raises ConfigError where their lengths
    differ."""

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
        """Of all columns."""
        return sum(sample_bytes(each) for each in self._sources)

    @property
    def traffics(self) -> list[Traffic]:
        """Of the columns."""
        return [traffic for each in self._sources for traffic in traffics(each)]

    def read(self, indices: Sequence[int]) -> list[Any]:
        """Tuples, or what kept one of their parts from being read (`Source.read`)."""
        rows = zip(*(each.read(indices) for each in self._sources), strict=True)
        return [next((part for part in row if isinstance(part, Exception)), row) for row in rows]


def traffics(source: Source) -> list[Traffic]:
    """What counts a source's reads; empty for one that counts none."""
    if hasattr(source, "traffics"):
        return list(source.traffics)
    return [source.traffic] if hasattr(source, "traffic") else []


def sample_bytes(source: Source) -> int:
    """Of the largest sample: as the source says, else of the first one."""
    known = getattr(source, "sample_bytes", None)
    return int(known) if known is not None else size_of(source.read([0])[0])


def as_source(dataset: Any) -> Source:
    """`dataset` if it has `read(indices)`, else its items. Raises ConfigError if it has neither, or no length."""
    if not hasattr(dataset, "__len__"):
        raise ConfigError(f"{type(dataset).__name__} has no length: a plan needs to know how many samples there are")
    if callable(getattr(dataset, "read", None)):
        source: Source = dataset
        return source
    if not hasattr(dataset, "__getitem__"):
        raise ConfigError(f"{type(dataset).__name__} has neither read(indices) nor items")
    return Items(dataset)
