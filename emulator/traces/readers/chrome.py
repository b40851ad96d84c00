"""Chrome's JSON trace format, read in blocks, so that files may have any size; plain or gzipped. Kineto, dPRO and
others write an array of events, or an object with that array under "traceEvents" and other fields.
"""

import codecs
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from emulator.traces.readers.progress import WATCHER
from switchml.errors import TraceError
from switchml.files import UNPACKED_BYTES, check_has_end, too_large, unpacked_limit

BLOCK_BYTES = 4 << 20
_LARGEST_BYTES = 16 << 20
"""Maximum size of an event, and of the other fields."""

_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
"""Boundary between two events. If it matches inside an event, the part before it does not decode, and an earlier one is
tried."""
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_MALFORMED = re.compile(r"malformed: .* \(byte (\d+)\)")
_UNPAIRED = re.compile("[\udc80-\udcff]")
_NOT_A_NUMBER = re.compile(rb"(?<=[:,\[])(\s*)[-+]?(?:nan|inf(?:inity)?)(?=\s*[,\]}])", re.IGNORECASE)


def open_plain(path: Path, unpacked_bytes: int = UNPACKED_BYTES) -> io.BufferedReader:
    """Open `path` for reading, decompressed if necessary. Data beyond `unpacked_bytes` and far beyond the file's size
    (`switchml.files.unpacked_limit`) raises TraceError when it is read."""
    check_has_end(path, TraceError, pipes=False)
    try:
        file = path.open("rb")
    except OSError as error:
        raise TraceError(f"can't read {path}: {error.strerror}") from None
    if file.peek(2)[:2] == b"\x1f\x8b":
        return io.BufferedReader(_Unpacked(file, path, unpacked_bytes))
    return file


class _Unpacked(io.RawIOBase):
    """Decompressed data of the gzip file `packed`, within its limit."""

    def __init__(self, packed: BinaryIO, path: Path, unpacked_bytes: int) -> None:
        self.packed, self._path, self._least = packed, path, unpacked_bytes
        self._gzip = gzip.GzipFile(fileobj=packed)
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # read1 returns the available data before gzip detects truncation.
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
    """A trace file. Iterate `batches()`, each a list of events decoded as `event_type`; afterwards `header` has the
    other fields. `salvage`: of a file that is truncated, or malformed from some byte on, use the events before that,
    and report it in `broken`."""

    def __init__(
        self, path: Path, event_type: Any = dict, *, salvage: bool = False, array: str = "traceEvents"
    ) -> None:
        """array: the name of the array of events in the file's object."""
        self.path = path
        self._array = array
        self._array_begins = re.compile(rb'"%s"\s*:\s*\[' % array.encode())
        self.header: dict[str, Any] = {}
        self.broken = ""
        self.events = 0
        self._salvage = salvage
        self._decoder = msgspec.json.Decoder(list[event_type])
        self._buffer = b""
        self._offset = 0  # of the buffer's first byte in the (decompressed) file
        self._ended = False
        self._fault = ""  # reason why no more can be read
        self._malformed = NOWHERE  # position of malformed JSON in the buffer
        self._is_bare = False
        """Whether the array has no object around it; then its end may be missing, by the format's definition."""

    def batches(self) -> Iterator[list[Any]]:
        """Yield lists of events in file order. Raises TraceError if the file is no such trace, or truncated."""
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
            while not self.broken and (more := self._read()):
                tail.append(more)
                if self._array_begins.search(b"".join(tail[-2:])):
                    break
                self._check_size(len(head) + sum(map(len, tail)), "what stands beside its events")
        self.header = self._decode_header(head, b"".join(tail))

    def _read(self, size: int = BLOCK_BYTES) -> bytes:
        """Return the next `size` bytes; fewer or b"" at the end. Data that gzip can't decompress counts as the end of
        the file."""
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
        """Read up to the first event; return the text before the array."""
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
        """Read more and return whether there was any. The buffer at least doubles, so that searching takes linear time
        even for long events."""
        more = self._read(max(BLOCK_BYTES, len(self._buffer)))
        self._buffer += more
        return bool(more)

    def _check_size(self, size: int, what: str) -> None:
        if size > _LARGEST_BYTES:
            raise TraceError(too_large(f"{self.path}: {what}", _LARGEST_BYTES))

    def _next_batch(self) -> tuple[list[Any], bool]:
        """Return some events, and whether they were the last."""
        while True:
            has_more = self._read_more()
            for end in _last_boundaries(self._buffer):
                decoded = self._decode(self._buffer[:end])
                if decoded is not None:
                    return decoded
                if self._malformed != NOWHERE:
                    return self._before_fault(), True
            self._check_size(len(self._buffer), f"event {self.events + 1}")
            if not has_more:
                return self._last_batch()

    def _last_batch(self) -> tuple[list[Any], bool]:
        """Return the remaining events at the end of the file."""
        batch, closed = self._decode(self._buffer) or ([], False)
        if self._malformed != NOWHERE:
            return self._before_fault(), True
        if not closed and not (self._is_bare and not self._buffer.strip(b" \t\r\n,")):
            self._break(f"it breaks off in event {self.events + len(batch) + 1}")
            self._buffer = b""
        return batch, True

    def _before_fault(self) -> list[Any]:
        """Return the events before the malformed position in the buffer."""
        while not _BOUNDARY.search(self._buffer, self._malformed) and self._read_more():
            self._check_size(len(self._buffer), f"event {self.events + 1}")
        text, at = self._buffer, self._malformed
        batch: list[Any] = []
        for end in _last_boundaries(text[:at]):
            self._malformed = NOWHERE
            if (decoded := self._decode(text[:end])) is not None:
                batch = decoded[0]
                break
        number = self.events + len(batch) + 1
        self._break(f"event {number}: {why_malformed(text, at)}", self._offset - len(text) + len(self._buffer) + at)
        self._buffer = b""
        return batch

    def _break(self, what: str, at: int | None = None) -> None:
        """Record the fault, and raise TraceError unless salvaging. `at`: position of malformed JSON; None: truncated at
        the end of the buffer."""
        end = self._offset + len(self._buffer)
        if not self.broken and at is None:
            self.broken = f"{self.path} is truncated: {what}, at byte {end:,} of its JSON"
        self.broken = self.broken or f"{self.path} is broken at byte {at:,} of its JSON: {what}"
        if not self._salvage:
            raise TraceError(f"{self.broken}; --salvage takes what is before that")

    def _decode(self, text: bytes) -> tuple[list[Any], bool] | None:
        """Remove the events in `text` from the buffer; return them, and whether the array closes; None if it ends
        inside an event."""
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
                    self._malformed = self._place(text, inside)
                    return None
            except UnicodeDecodeError:
                text = _UNPAIRED.sub("?", text.decode(errors="surrogateescape")).encode()
            else:
                self._advance(size)
                return batch, closed
        return None

    def _place(self, text: bytes, inside: bytes) -> int:
        """Return the malformed position in `text`, whose events are `inside`; NOWHERE if it merely ends inside an
        event."""
        try:
            self._decoder.decode(b"[" + inside)  # without the end that was added
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if malformed := _MALFORMED.search(str(error)):
                return len(text) - len(text.lstrip()) + int(malformed[1]) - 1
        return NOWHERE

    def _decode_header(self, head: bytes, tail: bytes) -> dict[str, Any]:
        if self._is_bare and tail.strip(b" \t\r\n,\0"):
            self._break(SECOND_TRACE, self._offset)
        if self.broken or not head:
            tail = b"}"
        text = _NOT_A_NUMBER.sub(_zero, (head or b"{") + b'"%s": []' % self._array.encode() + tail)
        try:
            header = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if trailing := _TRAILING.search(str(error)):
                more = len(text) - int(trailing[1]) + 1  # from the first byte after the object on
                self._break(SECOND_TRACE, self._offset + len(tail) - more)
                text = text[: len(text) - more]
            else:
                if tail.strip() and self._ended:
                    self._break(f"it breaks off after its events ({error})")
                text = head + b'"%s": []}' % self._array.encode()
            header = msgspec.json.decode(text)
        header.pop(self._array, None)
        return header


def why_malformed(text: bytes, at: int) -> str:
    """Return why `text` is malformed at byte `at`."""
    if not _is_one_event(text, at) or _NEXT_LINE.match(text, at):
        return SECOND_WRITER
    if text[at : at + 1] < b" " and _STRING_OPEN.search(text, max(0, at - _LOOK_BACK), at):
        return f"a string has the control character 0x{text[at]:02x}"
    if b"\\" in text[max(0, at - 2) : at]:
        return "a string has a backslash that escapes nothing"
    if _VALUE_CLOSED.search(text, max(0, at - _LOOK_BACK), at) and _VALUE_ENDS.match(text, at):
        return "a string has a quotation mark without a backslash"
    return SECOND_WRITER


def _is_one_event(text: bytes, at: int) -> bool:
    """Return whether the text around byte `at` has the keys of an event, once each."""
    begins = max((match.end() for match in _BOUNDARY.finditer(text, max(0, at - _LOOK_BACK), at)), default=0)
    after = _BOUNDARY.search(text, at)
    counts = Counter(match[1] for match in _KEY.finditer(text, begins, after.start() if after else len(text)))
    return counts.keys() in (set(), {b"name"}) or (set(counts) >= _KEYS and max(counts[key] for key in _KEYS) == 1)


_KEYS = {b"ph", b"pid", b"ts"}
_KEY = re.compile(rb'"(ph|pid|ts|name)"\s*:')
SECOND_WRITER = "it breaks off and other text goes on, as where several ranks write to one file"
SECOND_TRACE = "another trace follows the first, as where several ranks write to one file"
NOWHERE = -1
_LOOK_BACK = 1 << 12
_STRING_OPEN = re.compile(rb'[:,{\[]\s*"[^"\n]*\Z')
_VALUE_CLOSED = re.compile(rb':\s*"[^"\n]*"\s*\Z')
_NEXT_LINE = re.compile(rb'\n\s*("[^"\n]*"\s*:|[{}\]])')
_VALUE_ENDS = re.compile(rb'[^\n]*?"\s*(,\s*"|\})')
"""An open string and a closed value before a fault; after it, a trace's next line, and the value's intended end."""


def _zero(match: re.Match[bytes]) -> bytes:
    """Replace a number that JSON can't represent, such as the occupancy of a kernel on no processor, by 0 of equal
    length."""
    return b"0".rjust(len(match[0]))


def _last_boundaries(buffer: bytes) -> list[int]:
    """Return possible ends of events, from the last in `buffer` backwards; a few."""
    reach = 1 << 16
    while True:
        start = max(0, len(buffer) - reach)
        ends = [match.end() for match in _BOUNDARY.finditer(buffer, start)]
        if ends or start == 0:
            return ends[:-9:-1]
        reach *= 8
