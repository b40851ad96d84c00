"""Numbers as P4Runtime writes them: big-endian bytes without leading zeros, one byte at least (section 8.4); and errors."""

from __future__ import annotations

import grpc

from emulator.bmv2.values import mask
from switchml.errors import ControlError, SwitchMLError

Code = grpc.StatusCode


class Refused(SwitchMLError):
    """A request that can't be done: `code` is gRPC's."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def invalid(message: str) -> Refused:
    return Refused(Code.INVALID_ARGUMENT, message)


def not_found(message: str) -> Refused:
    return Refused(Code.NOT_FOUND, message)


CODES = {
    "TABLE_FULL": Code.RESOURCE_EXHAUSTED,
    "DUPLICATE_ENTRY": Code.ALREADY_EXISTS,
    "INVALID_HANDLE": Code.NOT_FOUND,
    "EXPIRED_HANDLE": Code.NOT_FOUND,
    "INVALID_MBR_HANDLE": Code.NOT_FOUND,
    "INVALID_GRP_HANDLE": Code.NOT_FOUND,
    "INVALID_MGRP_HANDLE": Code.NOT_FOUND,
    "SESSION_NOT_FOUND": Code.NOT_FOUND,
    "MBR_STILL_USED": Code.FAILED_PRECONDITION,
    "GRP_STILL_USED": Code.FAILED_PRECONDITION,
    "DEFAULT_ACTION_IS_CONST": Code.PERMISSION_DENIED,
    "DEFAULT_ENTRY_IS_CONST": Code.PERMISSION_DENIED,
    "IMMUTABLE_TABLE_ENTRIES": Code.PERMISSION_DENIED,
    "INVALID_INDEX": Code.OUT_OF_RANGE,
}
"""gRPC's code for BMv2's; all others are INVALID_ARGUMENT."""


def code_of(error: SwitchMLError) -> grpc.StatusCode:
    """gRPC's code for an error."""
    if isinstance(error, Refused):
        return error.code
    return CODES.get(error.code, Code.INVALID_ARGUMENT) if isinstance(error, ControlError) else Code.INTERNAL


def decode(data: bytes, width: int, what: str) -> int:
    """A number of at most `width` bits."""
    value = int.from_bytes(data, "big")
    if not data:
        raise invalid(f"{what}: the value is missing")
    if value > mask(width):
        raise Refused(Code.OUT_OF_RANGE, f"{what}: {value:#x} does not fit {width} bits")
    return value


def encode(value: int) -> bytes:
    """The shortest form."""
    return value.to_bytes(max((value.bit_length() + 7) // 8, 1), "big")
