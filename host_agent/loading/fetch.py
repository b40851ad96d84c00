"""Reading samples from a source with retries: only the failed ones are read again."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from host_agent.loading.sources.base import Source, SourceChanged
from switchml.errors import ConfigError, LoadingError

FINAL = (SourceChanged, FileNotFoundError, PermissionError, ConfigError)
"""Errors for which a retry does not help."""


@dataclass(frozen=True)
class Retries:
    """Retry policy: `attempts` per sample, with a pause of `back_off_s` after the first, doubled each time."""

    attempts: int = 6
    back_off_s: float = 0.1
    """First pause in seconds; 6 attempts take 3.1 s in total."""
    most_s: float = 10.0
    """Maximum pause in seconds."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.back_off_s < 0:
            raise ConfigError(f"{self.attempts} attempts, {self.back_off_s} s apart; expected at least 1, and 0 s")


class Fetcher:
    """Reads samples from `source`. `retried` counts samples that were read again."""

    def __init__(self, source: Source, retries: Retries):
        self._source, self._retries = source, retries
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.retried = 0

    def stop(self) -> None:
        """Stop waiting: reads in progress fail."""
        self._stop.set()

    def fetch(self, samples: Sequence[int]) -> dict[int, Any]:
        """Read samples: sample → its value, or the LoadingError that describes why it could not be read."""
        found: dict[int, Any] = {}
        left = list(samples)
        for attempt in range(self._retries.attempts):
            is_last = attempt + 1 == self._retries.attempts
            failed: dict[int, Exception] = {}
            # A source that raises fails all of its samples: the last attempt is one by one, to find the ones that fail.
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
        """Samples of `group`, or exceptions in their place."""
        if not group:
            return []
        try:
            samples = list(self._source.read(group))
        except Exception as error:  # any exception of a data set is reported with the sample's number
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
