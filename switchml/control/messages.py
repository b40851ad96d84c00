"""Conversion of v2.proto's messages to and from plain data, for both ends of a control connection."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from switchml.control import v2_pb2
from switchml.control.dataplane import Address, Link
from switchml.control.membership import Part, Peer, Resumption


def fields(message: Message) -> dict[str, Any]:
    """A message's fields by name. Addresses become (IPv4, port), repeated fields tuples, maps sorted dicts, and a
    message that is not set None."""
    return {field.name: _plain(message, field) for field in message.DESCRIPTOR.fields}


def _plain(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is None:
        return value if isinstance(value, (str, bytes, int, float)) else tuple(value)
    if isinstance(value, Mapping):
        return dict(sorted(value.items()))
    if isinstance(value, Message):
        return _record(value) if message.HasField(field.name) else None
    return tuple(_record(item) for item in value)


def _record(message: Message) -> Any:
    match message:
        case v2_pb2.Address():
            return message.ip, message.port
        case v2_pb2.Link():
            return Link(**fields(message))
        case v2_pb2.Peer():
            return Peer(**fields(message))
        case v2_pb2.Part():
            return Part(**fields(message))
        case v2_pb2.Resumption():
            return Resumption(**fields(message))
    return fields(message)


def address(plain: Address) -> v2_pb2.Address:
    """(IPv4, port) as a message."""
    return v2_pb2.Address(ip=plain[0], port=plain[1])
