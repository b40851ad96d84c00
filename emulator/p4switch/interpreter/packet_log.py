"""The packet log: the processing steps of each packet, as lines of the switch's log in simple_switch's wording, and as
data in a JSON file."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

from emulator.p4switch.logs import LEVELS, TRACE
from switchml import logs, output_files
from switchml.errors import ConfigError

log = logs.of("switchml.bmv2")

_NAMES = {number: name for name, number in LEVELS.items()}


class PacketLog:
    """Writes events to the log, and to the file `path` if given: a JSON array with one object per line, valid after
    each event. Raises ConfigError if that file can't be written."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.n_packets = 0
        self._file = None
        if path is not None:
            output_files.check(path, {".json": ""})
            try:
                self._file = open(path, "wb", buffering=0)  # noqa: SIM115 (open until the process ends)
                self._file.write(b"[\n]\n")
                self._file.seek(2)
            except OSError as error:
                raise ConfigError(f"--trace-packet {path}: {error.strerror or error}") from error

    def new_packet(self) -> PacketTrace:
        """Trace of the next received packet."""
        self.n_packets += 1
        return PacketTrace(self, self.n_packets - 1, 0, [0])

    def write(self, level: int, trace: PacketTrace, event: str, source: str, text: str, data: dict[str, Any]) -> None:
        if log.isEnabledFor(level):
            log.log(level, "[%d.%d] [cxt 0] %s%s", trace.packet, trace.copy, f"{source} " if source else "", text)
        if self._file is not None:
            row = {
                "time_us": time.time_ns() // 1000, "packet": trace.packet, "copy": trace.copy, "level": _NAMES[level],
                "event": event, **data, **({"source": source} if source else {}), "text": text,
            }  # fmt: skip
            self._append(json.dumps(row).encode())

    def _append(self, row: bytes) -> None:
        """Write a row over the closing bracket, followed by a new one."""
        assert self._file is not None
        at = self._file.tell()
        row = (b",\n" if at > 2 else b"") + row
        try:
            self._file.write(row + b"\n]\n")
            self._file.seek(at + len(row))
        except OSError as error:
            self._file = None
            log.error("--trace-packet: the file ends here: %s", error.strerror)


class PacketTrace:
    """One packet's part of the log. As in BMv2, a packet has a number, and each copy of it a second number."""

    def __init__(self, packet_log: PacketLog, packet: int, copy: int, last_copy: list[int]) -> None:
        self.log = packet_log
        self.packet = packet
        self.copy = copy
        self._last_copy = last_copy

    def new_copy(self) -> PacketTrace:
        """Trace of another copy of the packet."""
        self._last_copy[0] += 1
        return PacketTrace(self.log, self.packet, self._last_copy[0], self._last_copy)

    def debug(self, event: str, text: str, **data: Any) -> None:
        """Log an event by its name, with its text and data; `error` and `trace` log at other levels."""
        self.log.write(logging.DEBUG, self, event, "", text, data)

    def error(self, event: str, text: str, **data: Any) -> None:
        self.log.write(logging.ERROR, self, event, "", text, data)

    def trace(self, event: str, text: str, source: str = "", **data: Any) -> None:
        """`source`: position in the P4 program, "file.p4(12)"."""
        self.log.write(TRACE, self, event, source, text, data)
