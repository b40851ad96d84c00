"""How long threads look for packets before they sleep: not beside somebody who computes."""

import numpy as np

from switchml.net import libc


def test_a_core_that_somebody_else_computes_on():
    """What looks like a yield of two milliseconds ends yields for a while; then they may be tried again."""
    spin_after, clock = np.zeros(1, np.int64), np.zeros(8, np.int64)
    now = libc.now_ns(clock)
    assert libc.may_spin(spin_after, now)
    libc.yield_with_backoff(spin_after, now - 2_000_000, clock)
    assert spin_after[0] > now and not libc.may_spin(spin_after, libc.now_ns(clock))
    assert libc.may_spin(spin_after, int(spin_after[0]))
