"""Chrome's JSON trace format, a block at a time, so files may have any size; gzipped or not. Kineto, dPRO and others
write an array of events, or an object with that array under "traceEvents" and more beside it.
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
"""Of one event, and of what stands beside the events."""

_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
"""Between two events. Where one is inside an event, what is before it does not decode, and an earlier one is tried."""
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_MALFORMED = re.compile(r"malformed: .* \(byte (\d+)\)")
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
    the events. `salvage`: of a file that breaks off, or is no JSON from some byte on, take the events before that, and
    say so in `broken`."""

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
        self._malformed = NOWHERE  # place in the buffer at which it is no JSON
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
            while not self.broken and (more := self._read()):
                tail.append(more)
                if self._array_begins.search(b"".join(tail[-2:])):
                    break
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
        """Whether there was more. The buffer at least doubles: searching takes linear time however long an event is."""
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
                if self._malformed != NOWHERE:
                    return self._before_fault(), True
            self._check_size(len(self._buffer), f"event {self.events + 1}")
            if not has_more:
                return self._last_batch()

    def _last_batch(self) -> tuple[list[Any], bool]:
        """What is left at the end of the file."""
        batch, closed = self._decode(self._buffer) or ([], False)
        if self._malformed != NOWHERE:
            return self._before_fault(), True
        if not closed and not (self._is_bare and not self._buffer.strip(b" \t\r\n,")):
            self._break(f"it breaks off in event {self.events + len(batch) + 1}")
            self._buffer = b""
        return batch, True

    def _before_fault(self) -> list[Any]:
        """The events before the place at which the buffer is no JSON."""
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
        """`at`: the byte at which it is no JSON; None: it ends where the buffer does, too early."""
        end = self._offset + len(self._buffer)
        if not self.broken and at is None:
            self.broken = f"{self.path} is truncated: {what}, at byte {end:,} of its JSON"
        self.broken = self.broken or f"{self.path} is broken at byte {at:,} of its JSON: {what}"
        if not self._salvage:
            raise TraceError(f"{self.broken}; --salvage takes what is before that")

    def _decode(self, text: bytes) -> tuple[list[Any], bool] | None:
        """The events in `text`, taken off the buffer, and whether the array closes; None if it ends inside an event."""
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
        """Where `text`, of which the events are `inside`, is no JSON; NOWHERE where it only ends inside an event."""
        try:
            self._decoder.decode(b"[" + inside)  # without the end that it did not have
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
    """What is wrong with `text`, which is no JSON from byte `at` on."""
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
    """Whether what is around byte `at` has what an event has, once."""
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
