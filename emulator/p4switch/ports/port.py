"""The interface of a switch's ports of any kind."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from switchml.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from switchml.net.packet_io import Batch

Frames = Iterable[tuple[int, bytes]]
"""(port, frame) pairs."""

Take = Callable[[Frames], None]
TakeBatch = Callable[["Batch", int, Callable[["np.ndarray"], None]], None]
"""Called with (batch, n, send): processes the first n frames of the batch, and calls `send` with Records of outgoing
frames (packet_path.engine)."""


@dataclass(frozen=True)
class PortInfo:
    """Description of one port. `extra`: further data that BMv2 reports: the files that a port reads and writes."""

    number: int
    interface: str
    is_up: bool = True
    extra: dict[str, str] = field(default_factory=dict)


def parse_interface(text: str) -> tuple[int, str]:
    """(port, interface) of `PORT@INTERFACE`. Raises ConfigError."""
    number, at, interface = text.strip().partition("@")
    if not at or not interface or not number.strip().isdigit():
        raise ConfigError(f"{text!r} is not a port: expected PORT@INTERFACE, like 1@veth1 or 1@udp:127.0.0.1:5001")
    return int(number), interface


class Ports(ABC):
    """A set of ports. All methods are thread-safe; all but `send` raise ConfigError for operations that are not
    possible."""

    @abstractmethod
    def add(self, number: int, interface: str, pcap_dir: str | None = None) -> None:
        """Attach an interface. `pcap_dir`: folder for captures of its frames, if any."""

    @abstractmethod
    def remove(self, number: int) -> None:
        """Detach a port."""

    @abstractmethod
    def show(self) -> list[PortInfo]:
        """All ports, ordered by number."""

    @abstractmethod
    def start(self, take: Take, take_batch: TakeBatch) -> None:
        """Call one of the two with received frames, from one thread at a time, until `close`: `take_batch` for frames
        in arrays."""

    @abstractmethod
    def send(self, frames: Frames) -> None:
        """Send frames; those for missing ports are dropped."""

    @abstractmethod
    def close(self) -> None:
        """Detach all ports."""
