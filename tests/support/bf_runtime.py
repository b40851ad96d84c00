"""Enough of BF Runtime's Python client (bfrt_grpc) for p4app-switchML's controller to set up the model of a Tofino.

Tables keep what is written to them, since the controller reads some of it back. Entries and default actions of the
program's tables also go to the model; those for RDMA do not. Entries that the model has can't be taken back.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator, Sequence
from threading import RLock
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.support.tofino_model import Masked, Model

PROGRAM = "pipe."
_PORTS = "$PORT_HDL_INFO"
_PRIORITY = "$MATCH_PRIORITY"


class RpcException(Exception):
    """What the real client raises; nothing here does."""


class KeyTuple:
    def __init__(self, name: str, value: Any = None, mask: Any = None):
        self.name, self.value, self.mask = name, value, mask


class DataTuple:
    def __init__(self, name: str, val: Any = None, **typed: Any):
        self.name, self.val = name, next(iter(typed.values()), val)


class Fields:
    """A key or an entry's data."""

    def __init__(self, tuples: Sequence[Any], action: str = ""):
        self.tuples, self.action = {its.name: its for its in tuples}, action

    def to_dict(self) -> dict[str, Any]:
        return {
            name: {"value": its.value} if isinstance(its, KeyTuple) else its.val for name, its in self.tuples.items()
        }


class Table:
    def __init__(self, name: str, model: Model, lock: RLock):
        self.name, self._model, self._lock = name.removeprefix(PROGRAM), model, lock
        self._is_real = name.startswith(PROGRAM) and "rdma" not in name
        self.entries: list[tuple[Fields, Fields]] = []
        self._last = 0
        nothing = lambda *_: None  # noqa: E731
        self.info = SimpleNamespace(key_field_annotation_add=nothing, data_field_annotation_add=nothing, size=0)

    make_key = make_data = staticmethod(Fields)

    def entry_add(self, target: Any, keys: list[Fields], data: list[Fields]) -> None:
        for key, its in zip(keys, data, strict=True):
            self.entries.append((key, its))
            if self._is_real and not self.name.endswith("$PORT_METADATA"):
                self._write(key, its)

    def _write(self, key: Fields, data: Fields) -> None:
        values: dict[str, int | Masked] = {}
        for name, its in key.tuples.items():
            if name == _PRIORITY:
                assert its.value >= self._last, "an entry that goes before others"
                self._last = its.value
            elif its.mask is None:
                values[name] = _number(its.value)
            else:
                values[name] = _number(its.value), _number(its.mask)
        with self._lock:
            self._model.add(self.name, values, data.action, _numbers(data))

    def default_entry_set(self, target: Any, data: Fields) -> None:
        if self._is_real:
            with self._lock:
                self._model.set_default(self.name, data.action, _numbers(data))

    def entry_get(self, target: Any, keys: Any = None, flags: Any = None) -> Iterator[tuple[Fields, Fields]]:
        if self.name == _PORTS:  # port N/0 of the front panel is port N - 1 of the chip
            return ((Fields([DataTuple("$DEV_PORT", key.tuples["$CONN_ID"].value - 1)]), key) for key in keys)
        return ((data, key) for key, data in list(self.entries))

    def entry_del(self, target: Any, keys: Any = None) -> None:
        assert not (self._is_real and self.entries), f"{self.name}: the model keeps its entries"
        self.entries.clear()

    def entry_mod_inc(self, target: Any, keys: list[Fields], data: list[Fields], flag: Any) -> None:
        """Only multicast groups grow."""
        for key, its in self.entries:
            if key.to_dict() == keys[0].to_dict():
                for name, more in data[0].tuples.items():
                    its.tuples[name].val = [*its.tuples[name].val, *more.val]

    def default_entry_reset(self, target: Any) -> None: ...

    def entry_mod(self, target: Any, keys: Any, data: Any) -> None: ...

    def operations_execute(self, target: Any, operation: str) -> None: ...


class Client:
    """As ClientInterface and as the bfrt_info that it returns."""

    def __init__(self, model: Model, lock: RLock):
        self._model, self._lock = model, lock
        self.tables: dict[str, Table] = {}

    def bind_pipeline_config(self, program: str) -> None: ...

    def bfrt_info_get(self, program: str) -> Client:
        return self

    def table_get(self, name: str) -> Table:
        if name not in self.tables:
            self.tables[name] = Table(name, self._model, self._lock)
        return self.tables[name]


def install(client: Client) -> None:
    """Be `bfrt_grpc` in this process."""
    module, calls = ModuleType("bfrt_grpc.client"), ModuleType("bfrt_grpc.bfruntime_pb2")
    module.__dict__.update(
        Target=lambda *args, **options: None,
        ClientInterface=lambda *args, **options: client,
        KeyTuple=KeyTuple,
        DataTuple=DataTuple,
        BfruntimeRpcException=RpcException,
        BfruntimeReadWriteRpcException=RpcException,
        BfruntimeForwardingRpcException=RpcException,
    )
    calls.__dict__["TableModIncFlag"] = SimpleNamespace(MOD_INC_ADD=0, MOD_INC_DELETE=1)
    parent = ModuleType("bfrt_grpc")
    parent.__dict__.update(client=module, bfruntime_pb2=calls)
    sys.modules |= {"bfrt_grpc": parent, module.__name__: module, calls.__name__: calls}


def _numbers(data: Fields) -> dict[str, int]:
    return {name: _number(its.val) for name, its in data.tuples.items()}


def _number(value: Any) -> int:
    """Of a number, a MAC address or an IPv4 address."""
    if not isinstance(value, str):
        return int(value)
    return int(value.replace(":", ""), 16) if ":" in value else int(ipaddress.IPv4Address(value))
