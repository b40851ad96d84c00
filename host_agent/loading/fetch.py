"""Samples read from a source, with retries: what came is kept, and only what failed is read again."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from host_agent.loading.sources.base import Source, SourceChanged
from switchml.errors import ConfigError, LoadingError

FINAL = (SourceChanged, FileNotFoundError, PermissionError, ConfigError)
"""Reading again does not help."""


@dataclass(frozen=True)
class Retries:
    """How long a sample is tried: `attempts` times, waiting `back_off_s` after the first, twice as long each time."""

    attempts: int = 6
    back_off_s: float = 0.1
    """With 6 attempts 3.1 s in all."""
    most_s: float = 10.0
    """The longest wait."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.back_off_s < 0:
            raise ConfigError(f"{self.attempts} attempts, {self.back_off_s} s apart; expected at least 1, and 0 s")


class Fetcher:
    """Reads from `source`. `retried` counts samples that were read again."""

    def __init__(self, source: Source, retries: Retries):
        self._source, self._retries = source, retries
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.retried = 0

    def stop(self) -> None:
        """Wait for nothing any more: reads under way fail."""
        self._stop.set()

    def fetch(self, samples: Sequence[int]) -> dict[int, Any]:
        """Sample → what it is, or the LoadingError that says why it could not be read."""
        found: dict[int, Any] = {}
        left = list(samples)
        for attempt in range(self._retries.attempts):
            is_last = attempt + 1 == self._retries.attempts
            failed: dict[int, Exception] = {}
            # A source that raises fails all of its samples: the last attempt is one by one, to find out which do.
            for group in [[each] for each in left] if is_last and attempt else [left]:
                for sample, value in zip(group, self._read(group), strict=True):
                    (failed if isinstance(value, Exception) else found)[sample] = value
            final = {sample: why for sample, why in failed.items() if is_last or isinstance(why, FINAL)}
            found |= {sample: self._error(sample, why, attempt + 1) for sample, why in final.items()}
            left = [sample for sample in failed if sample not in final]
            if not left or self._stop.is_set():
                break
            with self._lock:
                self.retried += len(left)
            self._stop.wait(min(self._retries.back_off_s * 2**attempt, self._retries.most_s))
        return found | {sample: LoadingError(f"sample {sample}: the loader was closed", (sample,)) for sample in left}

    def _read(self, group: list[int]) -> list[Any]:
        """The samples of `group`, or exceptions in their places."""
        if not group:
            return []
        try:
            samples = list(self._source.read(group))
        except Exception as error:  # whatever a data set raises is told with the sample's number
            return [error] * len(group)
        if len(samples) != len(group):
            return [EOFError(f"{len(samples)} samples came; expected {len(group)}")] * len(group)
        return samples

    def _error(self, sample: int, why: Exception, attempts: int) -> LoadingError:
        times = f"tried {attempts} times" if attempts > 1 else "tried once"
        error = LoadingError(
            f"sample {sample} of {self._source!r}: {str(why) or type(why).__name__} ({times})", (sample,)
        )
        error.__cause__ = why
        return error
