"""File ports: interface X reads X_in.pcap and writes X_out.pcap (simple_switch's --use-files).

As in simple_switch, each input is opened when its port is added, which waits for a writer if it is a named pipe;
reading starts some seconds later, with the first frame of every file; and frames are processed in the order of their
timestamps across files. The timestamps have no other effect: there are no pauses between frames.
"""

import threading
import time
from collections.abc import Callable

from emulator.p4switch.ports.pcap import Captured, PcapReader, PcapWriter
from emulator.p4switch.ports.port import Frames, PortInfo, Ports, Take, TakeBatch
from switchml import logs
from switchml.errors import ConfigError

log = logs.of("switchml.bmv2")

IN_PCAP, OUT_PCAP = "in_pcap", "out_pcap"
"""Keys in PortInfo.extra."""


class FilePorts(Ports):
    """Ports that read and write pcap files. `wait_s`: time between `start` and the first frame. `on_error` is called,
    by the reading thread, with errors."""

    def __init__(self, wait_s: float, on_error: Callable[[ConfigError], None] | None = None) -> None:
        self.wait_s = wait_s
        self.on_error = on_error
        self._ports: dict[int, tuple[PortInfo, PcapReader, PcapWriter]] = {}

    def add(self, number: int, interface: str, pcap_dir: str | None = None) -> None:
        if number in self._ports:
            raise ConfigError(f"port {number} exists already: {self._ports[number][0].interface}")
        files = {IN_PCAP: f"{interface}_in.pcap", OUT_PCAP: f"{interface}_out.pcap"}
        info = PortInfo(number, interface, extra=files)
        self._ports[number] = info, PcapReader(files[IN_PCAP]), PcapWriter(files[OUT_PCAP])

    def remove(self, number: int) -> None:
        raise ConfigError("a port that reads a file can't be removed")

    def show(self) -> list[PortInfo]:
        return [self._ports[number][0] for number in sorted(self._ports)]

    def start(self, take: Take, take_batch: TakeBatch) -> None:
        threading.Thread(target=self._read_all, args=(take,), name="pcap-reader", daemon=True).start()

    def _read_all(self, take: Take) -> None:
        try:
            time.sleep(self.wait_s)
            next_frames: dict[int, Captured] = {}
            for number in list(self._ports):
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
        """Wait for a port's next frame; at the end of its file the port is removed from `next_frames`."""
        next_frames.pop(number, None)
        captured = self._ports[number][1].read()
        if captured is not None:
            next_frames[number] = captured

    def send(self, frames: Frames) -> None:
        for number, data in frames:
            if number in self._ports:
                self._ports[number][2].write(data)

    def close(self) -> None:
        for _, reader, writer in self._ports.values():
            reader.close()
            writer.close()
