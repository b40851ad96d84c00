"""Conversion of MAC addresses, which are numbers in this package, to and from text."""

import socket

import psutil

from switchml.errors import ConfigError


def mac_text(mac: int) -> str:
    """Text of a MAC address: `02:00:00:00:00:fe`."""
    return mac.to_bytes(6, "big").hex(":")


def parse_mac(text: str) -> int:
    """Inverse of `mac_text`. Raises ConfigError."""
    parts = text.split(":")
    try:
        if len(parts) != 6 or not all(len(part) in (1, 2) for part in parts):
            raise ValueError
        return int.from_bytes(bytes(int(part, 16) for part in parts), "big")
    except ValueError:
        raise ConfigError(f"{text!r} is not a MAC address: expected six bytes like 02:00:00:00:00:fe") from None


def mac_of(ip: str) -> int:
    """MAC address of the interface of this machine with an IPv4 address; 0 if there is none, or it lacks a MAC address,
    as the loopback interface does."""
    for addresses in psutil.net_if_addrs().values():
        if any(item.family == socket.AF_INET and item.address == ip for item in addresses):
            return next((parse_mac(item.address) for item in addresses if item.family == psutil.AF_LINK), 0)
    return 0
