"""Programs a switch that runs p4/switchml.p4 over P4Runtime: switchml's switch with `--grpc-server-addr`, and
simple_switch_grpc.

The program is also loaded into the switch, unless it runs already. IDs of tables, fields and actions come from its
p4info. P4Runtime does not list ports, and BMv2's own server does not support registers: the caller passes the ports.
"""

import queue
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import text_format

from switchml.control import rpc
from switchml.control.p4.driver import TABLES, Driver, Layout, Unreachable
from switchml.control.p4.tables import Changes, Entry, Group
from switchml.control.p4runtime_protos import SERVICE, info, v1
from switchml.errors import ConfigError, ControlError

CONNECT_S = 2.0
TIMEOUT_S = 30.0
"""Timeout in seconds of one answer of the switch, such as loading a program."""
BATCH = 256
"""Number of updates or reads in one message."""
_UNREACHABLE_CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class P4RuntimeSwitch(Driver):
    """A switch at `target` (HOST:PORT) that is to run `program` (the path of a BMv2 JSON, with its p4info next to it).
    Raises Unreachable if nothing answers there, ConfigError if it has another controller or refuses the program."""

    def __init__(self, target: str, program: Path, device_id: int = 0):
        super().__init__(f"p4runtime://{target}")
        self._target, self._device_id = target, device_id
        self._json = program.read_bytes()
        self._p4info = text_format.Parse(program.with_suffix(".p4info.txtpb").read_text(), info.P4Info())
        layout = Layout(self._json.decode("utf-8-sig"), self.where)
        self.rows, self.payloads = layout.rows, layout.payloads
        self.collectives, self.only_sums, self.ends_early = layout.collectives, layout.only_sums, layout.ends_early
        self._ids = {
            (kind, item.preamble.name): item.preamble.id
            for kind in ("tables", "actions", "counters", "registers")
            for item in getattr(self._p4info, kind)
        }
        self._channel: grpc.Channel | None = None
        self._groups: set[int] = set()
        self._has_registers = True
        self._to_switch: queue.SimpleQueue[Any] | None = None
        self.reconnect()

    # The connection

    def reconnect(self) -> None:
        self.close()
        self._channel = grpc.insecure_channel(
            self._target, [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]
        )
        try:
            grpc.channel_ready_future(self._channel).result(CONNECT_S)
        except grpc.FutureTimeoutError as error:
            self.close()
            raise Unreachable(f"no switch at {self.where}: no connection within {CONNECT_S:g} s") from error
        self._calls = rpc.client(self._channel, SERVICE)
        # It must be larger than that of an earlier controller.
        self._election_id = v1.Uint128(high=0, low=time.time_ns())
        self._to_switch = queue.SimpleQueue()
        update = v1.MasterArbitrationUpdate(device_id=self._device_id, election_id=self._election_id)
        self._to_switch.put(v1.StreamMessageRequest(arbitration=update))
        self._stream = self._calls.StreamChannel(iter(self._to_switch.get, None))
        try:
            answer = next(self._stream)
        except (grpc.RpcError, StopIteration) as error:
            self.close()
            raise Unreachable(f"no switch at {self.where}: {_words(error)}") from error
        if answer.arbitration.status.code:
            self.close()
            raise ConfigError(f"the switch at {self.where} has another controller: {answer.arbitration.status.message}")
        if not self._runs_our_program():
            request = v1.SetForwardingPipelineConfigRequest(
                device_id=self._device_id, election_id=self._election_id, action="VERIFY_AND_COMMIT"
            )
            request.config.p4info.CopyFrom(self._p4info)
            request.config.p4_device_config = self._json
            self._call("SetForwardingPipelineConfig", request)

    def close(self) -> None:
        if self._channel is not None:
            if self._to_switch is not None:
                self._to_switch.put(None)
            self._channel.close()
            self._channel = None

    def reset(self) -> None:
        self._entries.clear()
        self._groups.clear()
        old = [v1.Update(type="DELETE", entity=entity) for name in TABLES for entity in self._table(name)]
        for update in old:
            update.entity.table_entry.ClearField("action")
        pre = v1.PacketReplicationEngineEntry(multicast_group_entry=v1.MulticastGroupEntry())
        old += [
            v1.Update(type="DELETE", entity=entity)
            for entity in self._read([v1.Entity(packet_replication_engine_entry=pre)])
        ]
        self._write(old)

    # State

    def apply(self, changes: Changes) -> None:
        updates = [
            v1.Update(type="MODIFY", entity=self._counter_entity(cells.name, index, v1.CounterData()))
            for cells in changes.counters
            for index in range(cells.start, cells.end)
        ]
        for group in changes.groups:
            kind = "MODIFY" if group.group in self._groups else "INSERT"
            updates.append(v1.Update(type=kind, entity=self._group_entity(group)))
        updates += [v1.Update(type="INSERT", entity=self._table_entity(entry)) for entry in changes.entries]
        self._groups.update(group.group for group in changes.groups)
        self._entries.update(dict.fromkeys(changes.entries))
        try:
            self._write(updates)
        except ControlError:
            with suppress(ControlError):
                self.undo(changes)
            raise

    def undo(self, changes: Changes) -> None:
        entries = [entry for entry in changes.entries if entry in self._entries]
        groups = [group for group in changes.groups if group.group in self._groups]
        for entry in entries:
            del self._entries[entry]
        self._groups.difference_update(group.group for group in groups)
        self._write(
            [v1.Update(type="DELETE", entity=self._table_entity(entry)) for entry in entries]
            + [v1.Update(type="DELETE", entity=self._group_entity(Group(group.group, ()))) for group in groups]
        )

    def _table_sizes(self) -> list[int]:
        return [len(self._table(name)) for name in TABLES]

    def read_counter(self, name: str, start: int, end: int) -> list[tuple[int, int]]:
        cells = [
            entity.counter_entry.data
            for entity in self._read([self._counter_entity(name, index) for index in range(start, end)])
        ]
        return [(cell.packet_count, cell.byte_count) for cell in cells]

    def read_register(self, name: str, start: int, end: int) -> list[int] | None:
        if not self._has_registers:
            return None
        number = self._ids["registers", name]
        cells = [
            v1.Entity(register_entry=v1.RegisterEntry(register_id=number, index=v1.Index(index=index)))
            for index in range(start, end)
        ]
        try:
            values = self._read(cells)
        except ControlError as error:
            if error.code != grpc.StatusCode.UNIMPLEMENTED.name:
                raise
            self._has_registers = False
            return None
        return [int.from_bytes(entity.register_entry.data.bitstring, "big") for entity in values]

    # Internal

    def _call(self, name: str, request: Any) -> Any:
        if self._channel is None:
            raise Unreachable(f"no connection to the switch at {self.where}")
        try:
            answer = getattr(self._calls, name)(request, timeout=TIMEOUT_S)
            return list(answer) if name == "Read" else answer
        except grpc.RpcError as error:
            if error.code() in _UNREACHABLE_CODES:
                self.close()
                raise Unreachable(f"the switch at {self.where} does not answer: {_words(error)}") from error
            raise ControlError("P4Runtime", error.code().name, f"{name}: {_words(error)}") from error

    def _runs_our_program(self) -> bool:
        request = v1.GetForwardingPipelineConfigRequest(device_id=self._device_id, response_type="ALL")
        try:
            return bool(self._call("GetForwardingPipelineConfig", request).config.p4info == self._p4info)
        except ControlError:
            return False  # it runs no program

    def _write(self, updates: Sequence[Any]) -> None:
        for start in range(0, len(updates), BATCH):
            request = v1.WriteRequest(
                device_id=self._device_id, election_id=self._election_id, updates=updates[start : start + BATCH]
            )
            self._call("Write", request)

    def _read(self, patterns: Sequence[Any]) -> list[Any]:
        """The entities selected by `patterns`, which are entities with unset fields."""
        entities: list[Any] = []
        for start in range(0, len(patterns), BATCH):
            request = v1.ReadRequest(device_id=self._device_id, entities=patterns[start : start + BATCH])
            entities += [entity for answer in self._call("Read", request) for entity in answer.entities]
        return entities

    def _table(self, name: str) -> list[Any]:
        """The entries of a table except for its default entry; empty if the program lacks the table."""
        if ("tables", name) not in self._ids:
            return []
        entities = self._read([v1.Entity(table_entry=v1.TableEntry(table_id=self._ids["tables", name]))])
        return [entity for entity in entities if not entity.table_entry.is_default_action]

    def _table_entity(self, entry: Entry) -> Any:
        message = v1.TableEntry(table_id=self._ids["tables", entry.table])
        for number, value in enumerate(entry.key, 1):
            message.match.add(field_id=number).exact.value = _short(value)
        action = message.action.action
        action.action_id = self._ids["actions", entry.action]
        for number, value in enumerate(entry.params, 1):
            action.params.add(param_id=number, value=_short(value))
        return v1.Entity(table_entry=message)

    def _group_entity(self, group: Group) -> Any:
        message = v1.MulticastGroupEntry(multicast_group_id=group.group)
        for rid, port in group.copies:
            message.replicas.add(egress_port=port, instance=rid)
        return v1.Entity(packet_replication_engine_entry=v1.PacketReplicationEngineEntry(multicast_group_entry=message))

    def _counter_entity(self, name: str, index: int, data: Any = None) -> Any:
        message = v1.CounterEntry(counter_id=self._ids["counters", name], index=v1.Index(index=index))
        if data is not None:
            message.data.CopyFrom(data)
        return v1.Entity(counter_entry=message)


def _short(value: int) -> bytes:
    """P4Runtime's canonical encoding: the minimum number of bytes."""
    return value.to_bytes(max((value.bit_length() + 7) // 8, 1), "big")


def _words(error: BaseException) -> str:
    details: Iterable[str] | None = getattr(error, "details", lambda: None)()
    return str(details or error or type(error).__name__)
