"""Chakra's file format: messages (chakra.proto), each preceded by its length as a varint. Lengths are parsed here
because `google.protobuf.proto.parse_length_prefixed` needs protobuf 5.28, reads up to 2^64 bytes of a damaged file, and
does not report where a file is truncated.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from emulator.jobs.workload.graph import Collective
from emulator.traces.readers.chakra import chakra_pb2 as pb
from emulator.traces.readers.chrome import open_plain
from switchml.errors import TraceError
from switchml.output_files import whole_file

VERSION = "1.0.0"

COLLECTIVE_TYPES = {
    Collective.ALL_REDUCE: pb.ALL_REDUCE,
    Collective.REDUCE_SCATTER: pb.REDUCE_SCATTER,
    Collective.ALL_GATHER: pb.ALL_GATHER,
    Collective.ALL_TO_ALL: pb.ALL_TO_ALL,
    Collective.BROADCAST: pb.BROADCAST,
    Collective.REDUCE: pb.REDUCE,
    Collective.BARRIER: pb.BARRIER,
}
GROUPS = "## process_group:init ##"
"""Name of the node with the communicators, as in torch's execution traces and read by ASTRA-sim."""
INTEGERS = ("what", "lane", "parent", "collective", "group", "sequence", "peer", "gradient")
FLOATS = ("start_s", "duration_s", "bytes")
"""Columns of Events, in the order of `switchml.event` and `switchml.times`."""

_LARGEST_BYTES = 1 << 26
"""Maximum size of a message."""
_UNPACKED_BYTES = 2 << 20
"""Decompression limit of files of any compression ratio. A node of eight bytes takes 300 in memory, so it is lower than
elsewhere."""


def is_chakra(start: bytes) -> bool:
    """Return whether the beginning of a file is that of a Chakra trace: a GlobalMetadata with a version or
    attributes."""
    from google.protobuf.message import DecodeError

    length, at = _varint(start)
    if length < 2 or len(start) < at + length or start[at] not in (0x0A, 0x12):
        return False
    head = pb.GlobalMetadata()
    try:
        head.ParseFromString(start[at : at + length])
    except DecodeError:
        return False
    return head.version[:1].isdigit() if head.version else any(one.name for one in head.attr)


def write_messages(path: Path, messages: Iterable[Any]) -> None:
    """Write protobuf messages, the metadata first."""
    with whole_file(path) as part, part.open("wb") as file:
        for message in messages:
            data = message.SerializeToString()
            file.write(_encoded(len(data)) + data)


def read_messages(path: Path) -> Iterator[Any]:
    """Yield the GlobalMetadata, then each Node. Raises TraceError if the file is truncated or of another kind."""
    from google.protobuf.message import DecodeError

    with open_plain(path, _UNPACKED_BYTES) as file:
        kind: type[Any] = pb.GlobalMetadata
        at = number = 0
        while (length := _read_length(file, path, at)) is not None:
            data = file.read(length[0])
            at += length[1] + len(data)
            if len(data) < length[0]:
                raise TraceError(f"{path} is truncated: it breaks off in message {number}, at byte {at:,}")
            if not data:
                raise TraceError(f"{path} is not a Chakra trace: message {number}, at byte {at:,}, is empty")
            message = kind()
            try:
                message.ParseFromString(data)
            except DecodeError as error:
                raise TraceError(
                    f"{path} is not a Chakra trace: message {number}, up to byte {at:,}: {error}"
                ) from None
            yield message
            kind, number = pb.Node, number + 1


def attributes(message: Any) -> dict[str, Any]:
    """Return name → value of a message's attributes; lists as lists."""
    values = {}
    for attribute in message.attr:
        field = attribute.WhichOneof("value")
        if field is not None:
            value = getattr(attribute, field)
            values[attribute.name] = list(value.values) if field.endswith("_list") else value
    return values


def attribute(name: str, value: Any) -> Any:
    """Return an attribute as written by Chakra's own tools: integers as int64_val, floats as double_val."""
    fields = {bool: "bool_val", int: "int64_val", float: "double_val", str: "string_val"}
    if type(value) in fields:
        return pb.Attribute(name=name, **{fields[type(value)]: value})
    if value and isinstance(value[0], float):
        return pb.Attribute(name=name, double_list=pb.Doubles(values=value))
    return pb.Attribute(name=name, int64_list=pb.Int64s(values=value))


def _varint(data: bytes) -> tuple[int, int]:
    """Return the number at the beginning of `data`, and its size in bytes; (0, 0) if there is none."""
    value = 0
    for place, byte in enumerate(data[:10]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, place + 1
    return 0, 0


def _encoded(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _read_length(file: BinaryIO, path: Path, at: int) -> tuple[int, int] | None:
    """Return the next message's length and the size of that length; None at the end of the file."""
    data = b""
    while not data or data[-1] >= 0x80:
        byte = file.read(1)
        if not byte and not data:
            return None
        data += byte
        if not byte or len(data) > 5:
            raise TraceError(f"{path} is not a Chakra trace, or a broken one: no message begins at byte {at:,}")
    length = _varint(data)
    if length[0] > _LARGEST_BYTES:
        raise TraceError(f"{path} is not a Chakra trace: a message of {length[0]:,} bytes at byte {at:,}")
    return length
