"""Names in traces: collectives of c10d and NCCL, data types, and message sizes as defined by `Collective`."""

import math
import re
from typing import Any

from emulator.jobs.workload.graph import Collective

_COLLECTIVES = {
    "allreduce": Collective.ALL_REDUCE,
    "reducescatter": Collective.REDUCE_SCATTER,
    "allgather": Collective.ALL_GATHER,
    "gather": Collective.ALL_GATHER,  # to one rank only; Collective has no such operation
    "alltoall": Collective.ALL_TO_ALL,
    "broadcast": Collective.BROADCAST,
    "scatter": Collective.BROADCAST,
    "reduce": Collective.REDUCE,
    "barrier": Collective.BARRIER,
    "send": Collective.P2P,
    "recv": Collective.P2P,
}

_ENDING = re.compile(r"(sparse|base|oop|v|single|intotensor|tensor|coalesced|anysource)+$")

ITEM_BYTES = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2,
    "int": 4, "int32": 4, "long": 8, "longint": 8, "int64": 8, "longlong": 8, "short": 2, "int16": 2, "shortint": 2,
    "byte": 1, "unsignedchar": 1, "uint8": 1, "char": 1, "signedchar": 1, "int8": 1, "bool": 1,
    "complexfloat": 8, "complexdouble": 16, "float8e4m3fn": 1, "float8e5m2": 1,
    "uint16": 2, "uint32": 4, "uint64": 8, "uint64t": 8, "uint32t": 4, "uint16t": 2,
}  # fmt: skip


def collective_of(name: str) -> Collective:
    """Return the collective for c10d's or NCCL's name (`_allgather_base`, `ReduceScatter`); NONE for others, such as
    `wait`."""
    plain = re.sub(r"[^a-z]", "", name.lower())
    return _COLLECTIVES.get(plain, _COLLECTIVES.get(_ENDING.sub("", plain), Collective.NONE))


def item_bytes(dtype: str) -> int:
    """Return the bytes per element of a profiler's type name (`float`, `c10::BFloat16`, `Long`); 0 if unknown."""
    return ITEM_BYTES.get(re.sub(r"c10::|[^a-z0-9]", "", dtype.lower()), 0)


def count(shape: Any) -> int:
    """Return the elements of a tensor or a list of tensors; 0 for an empty shape, which profilers also write for
    non-tensors."""
    if not isinstance(shape, list) or not shape:
        return 0
    if isinstance(shape[0], list):
        return sum(count(one) for one in shape)
    return math.prod(size for size in shape if isinstance(size, int) and size >= 0)


def whole(value: Any, default: int = 0) -> int:
    """Convert a number that profilers may have written as text; `default` if it is none."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return default


def message_bytes(collective: Collective, sent_bytes: float, received_bytes: float, ranks: int) -> float:
    """Convert a rank's input and output bytes (0: unknown) to bytes as defined by `Collective`."""
    if collective == Collective.BARRIER:
        return 0.0
    if collective == Collective.ALL_GATHER:
        return max(received_bytes, sent_bytes) if received_bytes > sent_bytes else sent_bytes * ranks
    if collective == Collective.REDUCE_SCATTER:
        return sent_bytes or received_bytes * ranks
    return sent_bytes or received_bytes
