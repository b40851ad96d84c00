"""Frames that a worker makes itself: their headers, also after a packet of another length was built behind them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from switchml.net import frames

ENDS = frames.Ends(0x020000000001, "10.0.0.1", 4791, 0x020000000002, "10.0.0.254", 48864)


@given(st.lists(st.integers(0, 1040), min_size=1, max_size=4))
def test_headers_fit_what_is_behind_them(lengths):
    """As scapy writes them, which computes lengths and checksum anew."""
    row = np.zeros(frames.HEADER_BYTES + 1040, np.uint8)
    row[: frames.HEADER_BYTES] = np.frombuffer(frames.headers(ENDS, 1040), np.uint8)
    for length in lengths:
        frames.fit(row.ctypes.data, frames.HEADER_BYTES + length)
        expected = (
            Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01")
            / IP(src=ENDS.ip, dst=ENDS.switch_ip, id=0, flags="DF", ttl=64)
            / UDP(sport=ENDS.port, dport=ENDS.switch_port, chksum=0)
            / bytes(length)
        )
        assert row[: frames.HEADER_BYTES + length].tobytes() == bytes(expected)
