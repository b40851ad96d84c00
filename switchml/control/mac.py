"""MAC addresses, which are numbers here, as people write them."""

from switchml.errors import ConfigError


def mac_text(mac: int) -> str:
    """`02:00:00:00:00:fe`."""
    return mac.to_bytes(6, "big").hex(":")


def parse_mac(text: str) -> int:
    """The reverse of `mac_text`. Raises ConfigError."""
    parts = text.split(":")
    try:
        if len(parts) != 6 or not all(len(part) in (1, 2) for part in parts):
            raise ValueError
        return int.from_bytes(bytes(int(part, 16) for part in parts), "big")
    except ValueError:
        raise ConfigError(f"{text!r} is no MAC address: expected six bytes like 02:00:00:00:00:fe") from None
