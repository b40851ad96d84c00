"""Clocks of hosts, with different offsets and rates. Agents see only their host's clock; the true time is known only to
the simulation.
"""

import random
from dataclasses import dataclass

_MILLION = 1_000_000
_OFFSETS_S = (0.0, 1.0, 3600.0, 1e6)
"""Largest offsets between clocks: monotonic clocks count from a machine's boot."""
_RATES_PPM = (0, 20, 200, 50_000)
"""Largest rate errors: a quartz is off by up to 200 ppm when it is hot or old; the last value exceeds
any real clock."""


@dataclass(frozen=True)
class Clock:
    """A clock that shows `offset_ns` at true time 0, and gains `gain_ppm` parts per million. Times in ns."""

    offset_ns: int = 0
    gain_ppm: int = 0

    def to_local(self, true_ns: int) -> int:
        """Time shown at a true time."""
        return true_ns + self.offset_ns + true_ns * self.gain_ppm // _MILLION

    def to_true(self, shown_ns: int) -> int:
        """The first true time at which it shows at least this time."""
        return -(-(shown_ns - self.offset_ns) * _MILLION // (_MILLION + self.gain_ppm))

    def true_duration(self, shown_ns: int) -> int:
        """True duration of a shown duration."""
        return -(-shown_ns * _MILLION // (_MILLION + self.gain_ppm))


TRUE = Clock()


def draw_clocks(seed: int, hosts: int) -> tuple[Clock, ...]:
    """Draw the clocks of a seed's hosts."""
    chooser = random.Random(f"clocks {seed}")
    most_s, most_ppm = chooser.choice(_OFFSETS_S), chooser.choice(_RATES_PPM)
    return tuple(
        Clock(chooser.randint(0, int(most_s * 1e9)), chooser.randint(-most_ppm, most_ppm)) for _ in range(hosts)
    )
