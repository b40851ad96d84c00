"""Ports that nothing uses, for programs that take none from the kernel themselves."""

import socket


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    """A port of the loopback interface that is free now. `kind`: SOCK_STREAM (TCP) or SOCK_DGRAM (UDP)."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
