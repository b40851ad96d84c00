"""Ports that are files: interface X reads X_in.pcap and writes X_out.pcap (simple_switch's --use-files).

As there, each input is opened when its port is added, which waits for a writer where it is a named pipe; reading starts
some seconds later, with the first frame of every file; and the file whose next frame has the earliest time comes next.
The times have no other effect: there are no pauses between frames.
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
    """`wait_s`: seconds between `start` and the first frame. `on_error` is called with an error in a file, from the
    thread that reads."""

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
            next_frames: dict[int, Captured] = {}
            for number in list(self._readers):
                self._advance(number, next_frames)
            while next_frames:
                number = min(next_frames, key=lambda key: next_frames[key].time_ns)
                take([(number, next_frames[number].data)])
                self._advance(number, next_frames)
        except ConfigError as error:
            log.critical("%s", error)
            if self.on_error is not None:
                self.on_error(error)

    def _advance(self, number: int, next_frames: dict[int, Captured]) -> None:
        """Wait for a port's next frame; at the end of its file there is none."""
        next_frames.pop(number, None)
        captured = self._readers[number].read()
        if captured is not None:
            next_frames[number] = captured

    def send(self, frames: Frames) -> None:
        for number, data in frames:
            if number in self._writers:
                self._writers[number].write(data)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        for writer in self._writers.values():
            writer.close()
