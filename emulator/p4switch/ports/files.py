"""Ports that are files: interface X reads X_in.pcap and writes X_out.pcap (simple_switch's --use-files).

As there, each input is opened when its port is added, which waits for a writer where it is a named pipe; reading starts
some seconds later, with the first frame of every file; and of the frames at hand the one with the earliest time comes
next. The times say nothing else: there are no pauses between frames.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from emulator.p4switch.ports.pcap import Captured, PcapReader, PcapWriter
from emulator.p4switch.ports.port import Frames, PortInfo, Ports, Take, TakeBatch
from switchml.errors import ConfigError

log = logging.getLogger("switchml.bmv2")

IN_PCAP, OUT_PCAP = "in_pcap", "out_pcap"
"""Names in PortInfo.extra."""


class FilePorts(Ports):
    """`wait_s`: seconds between `start` and the first frame. `on_error` is called with what went wrong in a file, from
    the thread that reads."""

    def __init__(self, wait_s: float, on_error: Callable[[ConfigError], None] | None = None) -> None:
        self.wait_s = wait_s
        self.on_error = on_error
        self._readers: dict[int, PcapReader] = {}
        self._writers: dict[int, PcapWriter] = {}
        self._info: dict[int, PortInfo] = {}

    def add(self, number: int, interface: str, pcap_dir: str | None = None) -> None:
        if number in self._info:
            raise ConfigError(f"port {number} exists already: {self._info[number].interface}")
        paths = f"{interface}_in.pcap", f"{interface}_out.pcap"
        self._readers[number] = PcapReader(paths[0])
        self._writers[number] = PcapWriter(paths[1])
        extra = dict(zip((IN_PCAP, OUT_PCAP), paths, strict=True))
        self._info[number] = PortInfo(number, interface, extra=extra)

    def remove(self, number: int) -> None:
        raise ConfigError("a port that reads a file can't be removed")

    def show(self) -> list[PortInfo]:
        return [self._info[number] for number in sorted(self._info)]

    def start(self, take: Take, take_batch: TakeBatch | None = None) -> None:
        threading.Thread(target=self._read_all, args=(take,), name="pcap-reader", daemon=True).start()

    def _read_all(self, take: Take) -> None:
        try:
            time.sleep(self.wait_s)
            at_hand: dict[int, Captured] = {}
            for number in list(self._readers):
                self._advance(number, at_hand)
            while at_hand:
                number = min(at_hand, key=lambda key: at_hand[key].time_ns)
                take([(number, at_hand[number].data)])
                self._advance(number, at_hand)
        except ConfigError as error:
            log.critical("%s", error)
            if self.on_error is not None:
                self.on_error(error)

    def _advance(self, number: int, at_hand: dict[int, Captured]) -> None:
        """Wait for a port's next frame; nothing is at hand any more at the end of its file."""
        at_hand.pop(number, None)
        captured = self._readers[number].read()
        if captured is not None:
            at_hand[number] = captured

    def send(self, frames: Frames) -> None:
        for number, data in frames:
            if number in self._writers:
                self._writers[number].write(data)

    def close(self) -> None:
        for file in (*self._readers.values(), *self._writers.values()):
            file.close()
