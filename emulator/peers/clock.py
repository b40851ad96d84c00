"""The clock of a real rank. The script computes between two calls into the process group; `lap` measures that time. In
wall-clock time the clock is the machine's, and waiting sleeps. In virtual time it stands still inside calls and jumps
where the script would have waited.
"""

import time

from switchml.errors import ConfigError


class Clock:
    """A clock that starts at 0. `scale`: the rank's compute time relative to this machine's."""

    def __init__(self, *, is_virtual: bool, scale: float = 1.0, measure: str = "wall", origin_s: float | None = None):
        if scale < 1.0 and not is_virtual:
            raise ConfigError(
                f"a rank that computes {scale:g} times as long as this machine: in wall-clock time nobody is faster "
                "than the machine; use the virtual clock"
            )
        self.is_virtual = is_virtual
        self._scale = scale
        self._read = time.process_time if measure == "cpu" and is_virtual else time.monotonic
        self._origin_s = time.monotonic() if origin_s is None else origin_s
        self._virtual_s = 0.0
        self._mark_s = self._read()

    def now_s(self) -> float:
        """Current time of this clock."""
        if self.is_virtual:
            return self._virtual_s + (self._read() - self._mark_s) * self._scale
        return time.monotonic() - self._origin_s

    @property
    def at_s(self) -> float:
        """Time at the end of the last lap or wait."""
        return self._virtual_s if self.is_virtual else self._mark_s - self._origin_s

    def lap(self) -> float:
        """Advance by the seconds that the rank computed since the last lap, and return them. For a rank slower than
        this machine, wall-clock time sleeps for the difference."""
        now_s = self._read()
        computed_s = (now_s - self._mark_s) * self._scale
        self._mark_s = now_s
        if self.is_virtual:
            self._virtual_s += computed_s
        elif self._scale > 1.0:
            time.sleep(computed_s * (1.0 - 1.0 / self._scale))
            self._mark_s = self._read()
        return computed_s

    def skip(self) -> None:
        """Exclude the time since the last lap from the script's compute time. Wall-clock time passes nevertheless."""
        self._mark_s = self._read()

    def reach(self, at_s: float) -> None:
        """Sleep, or jump, until `at_s`; no effect if that has passed."""
        if self.is_virtual:
            self._virtual_s = max(self._virtual_s, at_s)
        else:
            sleep_until(self._origin_s + at_s)
        self.skip()

    def sleep_until(self, at_s: float) -> None:
        """Sleep until `at_s`, for use by threads other than the script's; in virtual time, return at once."""
        if not self.is_virtual:
            sleep_until(self._origin_s + at_s)


def sleep_until(at_s: float) -> None:
    """Sleep until `time.monotonic()` is `at_s`."""
    while (left_s := at_s - time.monotonic()) > 0:
        time.sleep(left_s)
