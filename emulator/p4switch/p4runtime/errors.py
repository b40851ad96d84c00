"""Errors: P4Runtime's canonical codes (those of gRPC), and their mapping from the state's own errors."""

from dataclasses import dataclass

import grpc

from switchml.control.p4runtime_protos import Status, v1
from switchml.errors import ControlError, SwitchMLError

OPERATION = "P4Runtime"
OK = 0
INSERT: int = v1.Update.INSERT
MODIFY: int = v1.Update.MODIFY
DELETE: int = v1.Update.DELETE

_CODES = {
    "ALREADY_EXISTS": ("DUPLICATE_ENTRY",),
    "FAILED_PRECONDITION": ("MBR_STILL_USED", "GRP_STILL_USED", "EMPTY_GRP"),
    "NOT_FOUND": (
        "INVALID_HANDLE", "EXPIRED_HANDLE", "INVALID_MBR_HANDLE", "INVALID_GRP_HANDLE", "INVALID_MGRP_HANDLE",
        "SESSION_NOT_FOUND",
    ),
    "OUT_OF_RANGE": ("INVALID_INDEX",),
    "PERMISSION_DENIED": ("IMMUTABLE_TABLE_ENTRIES", "DEFAULT_ACTION_IS_CONST", "DEFAULT_ENTRY_IS_CONST"),
    "RESOURCE_EXHAUSTED": ("TABLE_FULL",),
}  # fmt: skip
"""Canonical codes → codes of the state's errors; all others map to INVALID_ARGUMENT."""


def rpc_error(code: str, message: str) -> ControlError:
    """Create an error with the canonical code `code`."""
    return ControlError(OPERATION, code, message)


def check_presence(kind: int, is_there: bool, what: str) -> None:
    """Reject an insert of an existing object, and a modify or delete of a missing one."""
    if kind == INSERT and is_there:
        raise rpc_error("ALREADY_EXISTS", f"{what} exists already")
    if kind != INSERT and not is_there:
        raise rpc_error("NOT_FOUND", f"there is no {what}")


def status_code(error: SwitchMLError) -> grpc.StatusCode:
    """Canonical code of an error."""
    if isinstance(error, ControlError) and error.operation == OPERATION:
        return grpc.StatusCode[error.code]
    code = getattr(error, "code", "")
    return grpc.StatusCode[next((name for name, codes in _CODES.items() if code in codes), "INVALID_ARGUMENT")]


@dataclass(frozen=True)
class BatchStatus(grpc.Status):
    """An implementation of grpc's Status with details."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


def batch_status(errors: list[SwitchMLError | None]) -> BatchStatus:
    """Status of a call with failed updates, from the outcomes of all updates in order: UNKNOWN, with a p4.v1.Error for
    each (section "Error Reporting" of the Write RPC)."""
    failed = [f"update {number}: {error}" for number, error in enumerate(errors) if error is not None]
    text = failed[0] if len(failed) == 1 else f"{len(failed)} updates failed; {failed[0]}"
    status = Status(code=grpc.StatusCode.UNKNOWN.value[0], message=text)
    for error in errors:
        code = OK if error is None else status_code(error).value[0]
        status.details.add().Pack(v1.Error(canonical_code=code, message=str(error or "")))
    trailer = ("grpc-status-details-bin", status.SerializeToString())
    return BatchStatus(grpc.StatusCode.UNKNOWN, text, (trailer,))
