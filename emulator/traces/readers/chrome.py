"""Chrome's JSON trace format, a block at a time: the events of a file of any size, in memory of one block. Kineto, dPRO
and many others write it: an array of events, or an object with that array under "traceEvents" and more beside it. Files
may be compressed with gzip.
"""

from __future__ import annotations

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from emulator.traces.readers.progress import WATCHER
from switchml.errors import TraceError
from switchml.files import UNPACKED_BYTES, check_has_end, too_large, unpacked_limit

BLOCK_BYTES = 4 << 20
_LARGEST_BYTES = 16 << 20
"""Of one event, and of what stands beside the events."""

_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
"""Between two events. Inside one it may stand too; then what is before it does not decode, and an earlier one is
tried."""
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_UNPAIRED = re.compile("[\udc80-\udcff]")
_NOT_A_NUMBER = re.compile(rb"(?<=[:,\[])(\s*)[-+]?(?:nan|inf(?:inity)?)(?=\s*[,\]}])", re.IGNORECASE)


def open_plain(path: Path, unpacked_bytes: int = UNPACKED_BYTES) -> io.BufferedReader:
    """`path` for reading, unpacked where it is compressed. What unpacks to more than `unpacked_bytes` and much more
    than its size (`switchml.files.unpacked_limit`) raises TraceError when that is read."""
    check_has_end(path, TraceError, pipes=False)
    try:
        file = path.open("rb")
    except OSError as error:
        raise TraceError(f"can't read {path}: {error.strerror}") from None
    if file.peek(2)[:2] == b"\x1f\x8b":
        return io.BufferedReader(_Unpacked(file, path, unpacked_bytes))
    return file


class _Unpacked(io.RawIOBase):
    """What the gzip file `packed` unpacks to, within its limit."""

    def __init__(self, packed: BinaryIO, path: Path, unpacked_bytes: int) -> None:
        self.packed, self._path, self._least = packed, path, unpacked_bytes
        self._gzip = gzip.GzipFile(fileobj=packed)
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # read1 returns what there is before gzip notices that more should be.
        data = self._gzip.read1(len(buffer))
        self._count += len(data)
        if self._count > (limit := unpacked_limit(self.packed.tell(), self._least)):
            raise TraceError(too_large(self._path, limit, f"unpacks {self.packed.tell():,} bytes to"))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self.packed.close()
        super().close()


class ChromeFile:
    """Iterate `batches()`, each a list of events as `event_type` decodes them; then `header` has what stands beside
    the events. `salvage`: of a file that breaks off, take the events before the break, and say so in `broken`."""

    def __init__(
        self, path: Path, event_type: Any = dict, *, salvage: bool = False, array: str = "traceEvents"
    ) -> None:
        """array: the name under which the events stand in the file's object."""
        self.path = path
        self._array = array
        self._array_begins = re.compile(rb'"%s"\s*:\s*\[' % array.encode())
        self.header: dict[str, Any] = {}
        self.broken = ""
        self.events = 0
        self._salvage = salvage
        self._decoder = msgspec.json.Decoder(list[event_type])
        self._buffer = b""
        self._offset = 0  # of the buffer's first byte in the (unpacked) file
        self._ended = False
        self._fault = ""  # why no more can be read, once that is so
        self._is_bare = False
        """An array without an object around it; then its end may be missing, by the format's definition."""

    def batches(self) -> Iterator[list[Any]]:
        """Lists of events in the order of the file. TraceError where the file is no such trace, or breaks off."""
        with open_plain(self.path) as file:
            self._file, self._size = file, self.path.stat().st_size
            self._read_more()
            if self._buffer.startswith(codecs.BOM_UTF8):
                self._advance(len(codecs.BOM_UTF8))
            head = self._find_array()
            while True:
                batch, closed = self._next_batch()
                self.events += len(batch)
                if batch:
                    yield batch
                if closed:
                    break
            tail = [self._buffer]
            while more := self._read():
                tail.append(more)
                self._check_size(len(head) + sum(map(len, tail)), "what stands beside its events")
        self.header = self._decode_header(head, b"".join(tail))

    def _read(self, size: int = BLOCK_BYTES) -> bytes:
        """The next `size` bytes; fewer or b"" at the end. What gzip can't unpack counts as the end of the file."""
        if self._ended:
            return b""
        parts, missing = [], size
        try:
            while not self._fault and missing > 0 and (part := self._file.read1(missing)):
                parts.append(part)
                missing -= len(part)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self._fault = f"its compressed data breaks off ({error})"
        block = b"".join(parts)
        self._ended = not block
        if self._ended and self._fault:
            self._break(self._fault)
        if (say := WATCHER.get()) is not None:
            raw = getattr(self._file.raw, "packed", self._file)
            say(self.path, self._size if self._ended else min(raw.tell(), self._size - 1), self._size)
        return block

    def _find_array(self) -> bytes:
        """Read as far as the first event; returns what stands before the array."""
        while not (match := self._array_begins.search(self._buffer)):
            if self._buffer.lstrip()[:1] == b"[":
                at = self._buffer.index(b"[") + 1
                head, self._is_bare = b"", True
                break
            self._check_size(len(self._buffer), "what stands before its events")
            if not self._read_more():
                raise TraceError(f'{self.path} is no trace, or breaks off before its events: it has no "{self._array}"')
        else:
            at, head = match.end(), self._buffer[: match.start()]
        self._advance(at)
        return head

    def _advance(self, count: int) -> None:
        self._offset += count
        self._buffer = self._buffer[count:]

    def _read_more(self) -> bool:
        """Whether there was more. The buffer at least doubles, so that however long one event is, all that is searched
        and decoded in vain is a few times the file."""
        more = self._read(max(BLOCK_BYTES, len(self._buffer)))
        self._buffer += more
        return bool(more)

    def _check_size(self, size: int, what: str) -> None:
        if size > _LARGEST_BYTES:
            raise TraceError(too_large(f"{self.path}: {what}", _LARGEST_BYTES))

    def _next_batch(self) -> tuple[list[Any], bool]:
        """Some events, and whether they were the last."""
        while True:
            has_more = self._read_more()
            for end in _last_boundaries(self._buffer):
                decoded = self._decode(self._buffer[:end])
                if decoded is not None:
                    return decoded
            self._check_size(len(self._buffer), f"event {self.events + 1}")
            if not has_more:
                return self._last_batch()

    def _last_batch(self) -> tuple[list[Any], bool]:
        """What is left at the end of the file."""
        batch, closed = self._decode(self._buffer) or ([], False)
        if not closed and not (self._is_bare and not self._buffer.strip(b" \t\r\n,")):
            self._break(f"it breaks off in event {self.events + len(batch) + 1}")
            self._buffer = b""
        return batch, True

    def _break(self, what: str) -> None:
        at = self._offset + len(self._buffer)
        self.broken = self.broken or f"{self.path} is truncated: {what}, at byte {at:,} of its JSON"
        if not self._salvage:
            raise TraceError(f"{self.broken}; --salvage takes what is before that")

    def _decode(self, text: bytes) -> tuple[list[Any], bool] | None:
        """The events in `text`, whose bytes then leave the buffer, and whether the array closes in it; None where
        `text` ends inside an event."""
        size, closed = len(text), False
        for _ in range(4):
            inside = text.strip().removesuffix(b",")
            try:
                batch = self._decoder.decode(b"[" + inside + b"]")
            except msgspec.ValidationError as error:
                where = f"{self.path}, after byte {self._offset:,}"
                raise TraceError(f"{where}: an event is not as expected: {error}") from None
            except RecursionError:
                raise TraceError(f"{self.path}, after byte {self._offset:,}: it is nested too deeply") from None
            except msgspec.DecodeError as error:
                if trailing := _TRAILING.search(str(error)):
                    array = inside[: int(trailing[1]) - 2].rstrip()  # without the [ and the first byte after the ]
                    size, closed = len(text) - len(text.lstrip()) + len(array), True
                    text = array.removesuffix(b"]")
                elif "truncated" in str(error):
                    return None
                elif (cleaned := _NOT_A_NUMBER.sub(_zero, text)) != text:
                    text = cleaned
                else:
                    return None
            except UnicodeDecodeError:
                text = _UNPAIRED.sub("?", text.decode(errors="surrogateescape")).encode()
            else:
                self._advance(size)
                return batch, closed
        return None

    def _decode_header(self, head: bytes, tail: bytes) -> dict[str, Any]:
        if self.broken or not head:
            tail = b"}"
        text = _NOT_A_NUMBER.sub(_zero, (head or b"{") + b'"%s": []' % self._array.encode() + tail)
        try:
            header = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if tail.strip() and self._ended:
                self._break(f"it breaks off after its events ({error})")
            header = msgspec.json.decode(head + b'"%s": []}' % self._array.encode())
        header.pop(self._array, None)
        return header


def _zero(match: re.Match[bytes]) -> bytes:
    """For a number that JSON can't say, such as the occupancy of a kernel on no processor; as long as before."""
    return b"0".rjust(len(match[0]))


def _last_boundaries(buffer: bytes) -> list[int]:
    """Where events may end, from the last such place in `buffer` backwards; a few."""
    reach = 1 << 16
    while True:
        start = max(0, len(buffer) - reach)
        ends = [match.end() for match in _BOUNDARY.finditer(buffer, start)]
        if ends or start == 0:
            return ends[:-9:-1]
        reach *= 8
