"""Collectives other than the sum all-reduce: conversion of a rank's call into a request to its agent (docs/protocol.md,
section 11).

All-gathers and broadcasts move bytes unchanged. Minima, maxima and bitwise operations are encoded as unsigned integers
in the order of the values: a maximum of complements is the minimum, an "or" of complements the "and". Sums are sent as
in an all-reduce. `CollectivesMixin` has the methods that every agent offers.
"""

import abc
import ctypes
import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from host_agent import tensors
from host_agent.calls import RAW, Handle, OnDone, Request, words
from host_agent.signatures import Signature
from switchml.errors import ConfigError, UnsupportedTensor
from switchml.protocol import collectives as schemes
from switchml.protocol.collectives import Collective
from switchml.protocol.packet import OP_MAX32, OP_MAX64, OP_OR, OP_SUM, OP_XOR, REACH_ALL
from switchml.protocol.sizes import EXACT
from switchml.runtime.memory import u8_at

SUMS = ("sum", "mean")
BITS = ("band", "bor", "bxor")
OPS = (*SUMS, "min", "max", *BITS)
"""Reduction operations. Minima and maxima are NaN where any value is; bitwise operations accept integers and bool."""
KINDS = ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "barrier")
NOT_HERE = "expected protocol 2, at a software aggregator or a P4 switch"


@dataclass(frozen=True)
class CollectiveCall:
    """One rank's call of a collective: `numel` elements of `dtype` (a name known to NumPy or torch) of `item` bytes
    each, at address `source`, with the result at `target`. `numel` counts one rank's share in a reduce-scatter (whose
    source has a share for each rank) and an all-gather (whose target has). `note`: a further property that must be
    equal on all ranks (signatures.py)."""

    kind: str
    source: int
    target: int
    numel: int
    dtype: str = "uint8"
    item: int = 1
    op: str = "sum"
    root: int = 0
    note: str = ""

    @property
    def signature(self) -> Signature:
        """Properties of the call that must be equal on all ranks."""
        return Signature(self.kind, self.numel, self.dtype, self.op, self.root, self.note)

    @property
    def nbytes(self) -> int:
        return self.numel * self.item


def request_of(
    collective: CollectiveCall,
    rank: int,
    world_size: int,
    wire: str,
    on_done: OnDone,
    by_hosts: bool = False,
    only_sums: bool = False,
    **options: Any,
) -> Request:
    """Build the request for `collective` on rank `rank` of a job with this wire. `by_hosts`: ranks of a host add up
    first; integers are then summed for all ranks, each of which extracts its part, and half precision is summed in
    float32. `only_sums`: the aggregator supports no other op. `options`: passed to the request. Raises ConfigError for
    an op or a root that does not exist, UnsupportedTensor for a dtype that does not support the op."""
    if collective.kind not in KINDS or not 0 <= collective.root < world_size:
        raise ConfigError(
            f"{collective.kind} with root {collective.root}: expected one of {', '.join(KINDS)}, and 0 to "
            f"{world_size - 1}"
        )
    n, share = world_size, collective.nbytes
    options["called"] = collective.signature
    if collective.kind == "barrier":
        return Request(0, 0, 0, RAW, "sum", on_done, collective=schemes.barrier(), **options)
    if collective.kind == "broadcast":
        if rank == collective.root and collective.source != collective.target:
            ctypes.memmove(collective.target, collective.source, share)
        source = collective.target if rank != collective.root else collective.source
        scheme = schemes.broadcast(collective.root, collective.item)
        return Request(source, collective.target, share, RAW, "sum", on_done, collective=scheme, **options)
    if collective.kind == "all_gather":
        return _gather(collective, rank, n, on_done, options)
    if collective.op not in OPS:
        raise ConfigError(f"op {collective.op!r}: expected one of {', '.join(OPS)}")
    if collective.op not in SUMS:
        return _codes(collective, rank, n, only_sums, on_done, options)
    # Whether an exact sum needs further rounds depends on its digits, so all ranks must receive them: it runs as an
    # all-reduce, of which each rank extracts its part.
    is_float = collective.dtype.startswith(("float", "bfloat"))
    to_all = wire == EXACT if is_float else by_hosts
    return _sums(collective, rank, n, to_all, by_hosts, on_done, options)


def _gather(collective: CollectiveCall, rank: int, n: int, on_done: OnDone, options: dict[str, Any]) -> Request:
    source, own, share = collective.source, collective.target + rank * collective.nbytes, collective.nbytes
    if source != own:
        ctypes.memmove(own, source, share)  # like a bytes object, it copies overlapping memory correctly
    scheme = schemes.all_gather(n, share, collective.item)
    return Request(own, collective.target, share, RAW, "sum", on_done, collective=scheme, **options)


def _scheme(collective: CollectiveCall, n: int, item: int, op: int, mark: int = 0) -> Collective:
    """Aggregation scheme of a reduction of elements of `item` bytes."""
    if collective.kind == "reduce_scatter":
        return schemes.reduce_scatter(n, collective.numel * item, op, mark)
    return schemes.reduce(collective.root, op, mark) if collective.kind == "reduce" else schemes.all_reduce(op, mark)


def _sums(
    collective: CollectiveCall, rank: int, n: int, to_all: bool, widens: bool, on_done: OnDone, options: dict[str, Any]
) -> Request:
    if collective.dtype not in tensors.ITEM_BYTES:
        raise UnsupportedTensor(f"dtype {collective.dtype}: sums expect one of {', '.join(tensors.ITEM_BYTES)}")
    scattered = collective.kind == "reduce_scatter"
    size, first = (collective.numel * n, rank * collective.numel) if scattered else (collective.numel, 0)
    is_root = scattered or collective.kind == "all_reduce" or rank == collective.root
    source, target = collective.source, collective.target if is_root else collective.source
    request = Request(source, target, collective.numel, collective.dtype, collective.op, on_done, **options)
    if collective.kind == "all_reduce":
        return request
    if to_all:
        whole = u8_at(source, size * collective.item).copy()
        part = whole[first * collective.item :][: collective.nbytes]
        done = (
            _then(on_done, lambda: ctypes.memmove(target, part.ctypes.data, collective.nbytes)) if is_root else on_done
        )
        at = whole.ctypes.data
        return dataclasses.replace(request, source=at, target=at, numel=size, on_done=done, keep=(request.keep, whole))
    if widens and collective.dtype in tensors.HALVES:
        values = tensors.widen_at(source, size, collective.dtype)
        part32 = values[first : first + collective.numel]
        done = _then(on_done, lambda: tensors.narrow_at(part32, target, collective.dtype)) if is_root else on_done
        whole_at, part_at = values.ctypes.data, part32.ctypes.data
        request = dataclasses.replace(
            request, source=whole_at, target=part_at, dtype="float32", on_done=done, keep=(request.keep, values)
        )
        return dataclasses.replace(request, collective=_scheme(collective, n, 4, OP_SUM))
    end, aligned = source + size * collective.item, source + first * collective.item
    if is_root and source - collective.nbytes < target < end and target != aligned:
        copy = u8_at(source, size * collective.item).copy()  # the result would overwrite unread input
        request = dataclasses.replace(request, source=copy.ctypes.data, keep=(request.keep, copy))
    return dataclasses.replace(request, collective=_scheme(collective, n, collective.item, OP_SUM))


def _codes(
    collective: CollectiveCall, rank: int, n: int, only_sums: bool, on_done: OnDone, options: dict[str, Any]
) -> Request:
    """Build a reduction of unsigned integers in a copy: order-preserving codes of the values, or the values'
    own bits."""
    is_scattered = collective.kind == "reduce_scatter"
    codes = encode(collective, collective.numel * (n if is_scattered else 1))
    first = rank * collective.numel if is_scattered else 0
    own = slice(first, first + collective.numel)

    def done(part: Callable[[], np.ndarray]) -> OnDone:
        gets_part = collective.kind != "reduce" or rank == collective.root
        return _then(on_done, lambda: decode(collective, part())) if gets_part else on_done

    if only_sums:  # all codes go to every rank, which reduces its part
        ranks = np.empty((n, codes.size), codes.dtype)
        reduce = {"band": np.bitwise_or, "bor": np.bitwise_or, "bxor": np.bitwise_xor}.get(collective.op, np.maximum)
        options["keep"] = (options.get("keep"), codes, ranks)
        gather = CollectiveCall("all_gather", codes.ctypes.data, ranks.ctypes.data, codes.size, item=codes.itemsize)
        return _gather(gather, rank, n, done(lambda: reduce.reduce(ranks[:, own])), options)
    op = {"band": OP_OR, "bor": OP_OR, "bxor": OP_XOR}.get(collective.op, OP_MAX64 if codes.itemsize == 8 else OP_MAX32)
    part = codes[own]
    options["keep"] = (options.get("keep"), codes)
    scheme = _scheme(collective, n, codes.itemsize, op, collective.item)
    at = codes.ctypes.data, part.ctypes.data
    return Request(*at, part.nbytes, RAW, "sum", done(lambda: part), collective=scheme, **options)


def encode(collective: CollectiveCall, size: int) -> np.ndarray:
    """Encode `size` elements at the collective's source as unsigned integers, on which the op (for "min" and "band",
    its counterpart on complements) gives the encoded result; codes for minima and maxima are big-endian uint32 or
    uint64. Raises UnsupportedTensor."""
    data = u8_at(collective.source, size * collective.item)
    if collective.op in BITS:
        if collective.dtype.startswith(("float", "bfloat", "complex")):
            raise UnsupportedTensor(f"dtype {collective.dtype}: {collective.op} expects integers or bool")
        bits = data.view(f"u{collective.item}")
        return ~bits if collective.op == "band" else bits.copy()
    values = _values(data, collective.dtype)
    if values.dtype.kind == "f":
        wide = values.view(f"u{values.itemsize}")
        top = wide.dtype.type(1 << (8 * values.itemsize - 1))
        codes = np.where(wide & top, ~wide, wide | top)
    else:
        is_wide = values.dtype.itemsize == 8
        codes = values.astype(np.uint64 if is_wide else np.uint32)
        if values.dtype.kind == "i":
            codes ^= codes.dtype.type(1 << (63 if is_wide else 31))
    if collective.op == "min":
        codes = ~codes
    if values.dtype.kind == "f":
        codes[np.isnan(values)] = ~codes.dtype.type(0)
    return codes.astype(codes.dtype.newbyteorder(">"))


def decode(collective: CollectiveCall, codes: np.ndarray) -> None:
    """Decode the integers of `encode` and write the values to the collective's target."""
    target = u8_at(collective.target, codes.size * collective.item)
    if collective.op in BITS:
        target[:] = (~codes if collective.op == "band" else codes).view(np.uint8)
        return
    codes = codes.astype(codes.dtype.newbyteorder("="))
    top = codes.dtype.type(1 << (8 * codes.itemsize - 1))
    nothing = codes == ~codes.dtype.type(0)
    if collective.op == "min":
        codes = ~codes
    if not collective.dtype.startswith(("float", "bfloat")):
        dtype = np.dtype("uint8" if collective.dtype == "bool" else collective.dtype)
        if dtype.kind == "i":
            codes = (codes ^ top).view(f"i{codes.itemsize}")
        target[:] = codes.astype(dtype).view(np.uint8)
        return
    values = np.where(codes & top, codes ^ top, ~codes).view(f"f{codes.itemsize}")
    values[nothing] = np.nan
    if collective.dtype in tensors.HALVES:
        tensors.narrow_at(values, collective.target, collective.dtype)
    else:
        target[:] = values.view(np.uint8)


def _values(data: np.ndarray, dtype: str) -> np.ndarray:
    if dtype in tensors.HALVES:
        return tensors.widen_at(data.ctypes.data, data.size // 2, dtype)
    if dtype.startswith("complex"):
        raise UnsupportedTensor(f"dtype {dtype}: minima and maxima expect real numbers")
    return data.view("uint8" if dtype == "bool" else dtype)


def _then(on_done: OnDone, step: Callable[[], object]) -> OnDone:
    """Callback that runs `step` before `on_done`, unless there was an error."""

    def done(error: BaseException | None) -> None:
        if error is None:
            step()
        on_done(error)

    return done


class CollectivesMixin(abc.ABC):
    """The collectives of an agent, on NumPy arrays. Every rank must make the same calls in the same order, including
    all-reduces. All raise what `allreduce` raises, and ConfigError if the aggregator supports sums for all ranks only
    (`takes_collectives`). With `async_op` they return a Handle, whose `wait()` returns the result. An `out` must be
    C-contiguous, and may overlap `x` only by being in place."""

    rank: int
    world_size: int
    wire: str
    takes_collectives: bool
    """Whether the aggregator supports collectives other than sums for all ranks."""
    only_sums = False
    """Whether the aggregator supports only sums and means. Other ops are then an all-gather that each rank reduces."""
    by_hosts = False
    """The argument of `request_of`: whether ranks of a host add up first."""

    @abc.abstractmethod
    def submit(self, request: Request) -> None: ...

    def submit_collective(
        self, collective: CollectiveCall, on_done: OnDone, *, timeout_s: float | None = None, keep: object = None
    ) -> None:
        """Queue a collective on memory addresses, as `allreduce_address`. Raises ConfigError, UnsupportedTensor."""
        if not self.takes_collectives:
            raise ConfigError(f"{collective.kind}: this aggregator supports only sums over all ranks; {NOT_HERE}")
        who, how = (self.rank, self.world_size, self.wire), (self.by_hosts, self.only_sums)
        self.submit(request_of(collective, *who, on_done, *how, timeout_s=timeout_s, keep=keep))

    def agree(self, signature: Signature, on_done: OnDone, *, timeout_s: float | None = None) -> None:
        """Queue a barrier that checks that all ranks called it with the same signature; for operations that bypass this
        agent. Raises ConfigError."""
        if not self.takes_collectives:
            raise ConfigError(f"{signature}: this aggregator supports only sums over all ranks; {NOT_HERE}")
        seal = signature.seal(REACH_ALL)
        self.submit(Request(0, 0, 0, RAW, "sum", on_done, timeout_s, collective=seal, called=signature))

    def reduce_scatter(
        self, x: Any, op: str = "sum", async_op: bool = False, out: Any = None, timeout_s: float | None = None
    ) -> Any:
        """Reduce the ranks' arrays by `op` and return this rank's part: the first axis of `x` is a multiple of
        world_size, and that of the result is shorter by that factor."""
        x = np.ascontiguousarray(x)
        if x.ndim == 0 or x.shape[0] % self.world_size:
            raise ConfigError(f"reduce_scatter of shape {x.shape}: expected a multiple of {self.world_size} in front")
        out = _result(out, (x.shape[0] // self.world_size, *x.shape[1:]), x.dtype)
        return self._call("reduce_scatter", x, out, out.size, op, 0, async_op, timeout_s, out)

    def all_gather(self, x: Any, async_op: bool = False, out: Any = None, timeout_s: float | None = None) -> Any:
        """Concatenate the ranks' arrays, of equal shape and any dtype, along the first axis in rank order."""
        x = np.asarray(x)
        x = np.ascontiguousarray(x.reshape(x.shape or (1,)))
        out = _result(out, (x.shape[0] * self.world_size, *x.shape[1:]), x.dtype)
        return self._call("all_gather", x, out, x.size, "sum", 0, async_op, timeout_s, out)

    def broadcast(
        self, x: Any, root: int = 0, async_op: bool = False, out: Any = None, timeout_s: float | None = None
    ) -> Any:
        """Return the root's array, of any dtype; `x` must have its shape and dtype on the other ranks."""
        x = np.ascontiguousarray(x)
        out = _result(out, x.shape, x.dtype)
        return self._call("broadcast", x, out, x.size, "sum", root, async_op, timeout_s, out)

    def reduce(
        self,
        x: Any,
        root: int = 0,
        op: str = "sum",
        async_op: bool = False,
        out: Any = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Reduce the ranks' arrays by `op` at the root; returns None on the other ranks, where `out` is unchanged."""
        x = np.ascontiguousarray(x)
        if self.rank != root:
            return self._call("reduce", x, x, x.size, op, root, async_op, timeout_s, None)
        out = _result(out, x.shape, x.dtype)
        return self._call("reduce", x, out, x.size, op, root, async_op, timeout_s, out)

    def barrier(self, timeout_s: float | None = None) -> None:
        """Wait until all ranks have called `barrier`."""
        handle = Handle("barrier")
        self._run_collective(CollectiveCall("barrier", 0, 0, 0), handle, False, None, timeout_s, None)

    def _call(
        self, kind: str, x: Any, out: Any, numel: int, op: str, root: int, async_op: bool, timeout_s: Any, result: Any
    ) -> Any:
        if x.dtype.hasobject or not x.dtype.isnative:
            raise UnsupportedTensor(f"dtype {x.dtype}: expected one of plain values in native byte order")
        handle = Handle(words(kind))
        collective = CollectiveCall(kind, x.ctypes.data, out.ctypes.data, numel, _name(x.dtype), x.itemsize, op, root)
        return self._run_collective(collective, handle, async_op, result, timeout_s, (x, out))

    def _run_collective(
        self,
        collective: CollectiveCall,
        handle: Handle,
        async_op: bool,
        result: Any,
        timeout_s: float | None,
        keep: Any,
    ) -> Any:
        done = functools.partial(handle.finish, result=result)
        submit = functools.partial(self.submit_collective, collective, done, timeout_s=timeout_s, keep=keep)
        return self._carry_out(submit, handle, async_op)

    def _carry_out(self, submit: Callable[[], None], handle: Handle, async_op: bool) -> Any:
        """Run `submit`, which queues a call that completes `handle`; return the handle if `async_op`, else the
        result."""
        submit()
        return handle if async_op else handle.wait()


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    return str(dtype.name)


def _result(out: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    if out is None:
        return np.empty(shape, dtype)
    if not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != dtype:
        raise UnsupportedTensor(f"out: expected an array of shape {shape} and dtype {dtype}")
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise UnsupportedTensor("out: expected a writeable C-contiguous array (omit it to get a new one)")
    return out
