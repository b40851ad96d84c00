"""The clocks of hosts, which start at different times and run at different rates. Agents see their host's alone; only
the simulation knows the true time.
"""

import random
from dataclasses import dataclass

_MILLION = 1_000_000
_OFFSETS_S = (0.0, 1.0, 3600.0, 1e6)
"""Monotonic clocks count from a machine's start."""
_RATES_PPM = (0, 20, 200, 50_000)
"""A quartz is off by up to 200 millionths when it is hot or old; the last one is none."""


@dataclass(frozen=True)
class Clock:
    """Shows `offset_ns` more than the true time when that is 0, and gains `gain_ppm` millionths. Times in ns."""

    offset_ns: int = 0
    gain_ppm: int = 0

    def show(self, true_ns: int) -> int:
        """What it shows at a true time."""
        return true_ns + self.offset_ns + true_ns * self.gain_ppm // _MILLION

    def when(self, shown_ns: int) -> int:
        """The first true time at which it shows so much, or more."""
        return -(-(shown_ns - self.offset_ns) * _MILLION // (_MILLION + self.gain_ppm))

    def lasts(self, shown_ns: int) -> int:
        """How long it truly takes until it shows so much more."""
        return -(-shown_ns * _MILLION // (_MILLION + self.gain_ppm))


TRUE = Clock()


def draw_clocks(seed: int, hosts: int) -> tuple[Clock, ...]:
    """The clocks of a seed's hosts."""
    chooser = random.Random(f"clocks {seed}")
    most_s, most_ppm = chooser.choice(_OFFSETS_S), chooser.choice(_RATES_PPM)
    return tuple(
        Clock(chooser.randint(0, int(most_s * 1e9)), chooser.randint(-most_ppm, most_ppm)) for _ in range(hosts)
    )
