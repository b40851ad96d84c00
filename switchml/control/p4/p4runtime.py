"""Programs a switch that runs p4/switchml.p4 over P4Runtime: our switch with `--grpc-server-addr`, and
simple_switch_grpc.

The program is put into the switch, too, unless it runs already. Numbers of tables, fields and actions come from its
p4info. P4Runtime shows no ports, and of real BMv2 no registers: who uses this says which ports there are.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import text_format

from switchml.control.p4.driver import AttachedPort, Layout, Unreachable
from switchml.control.p4.tables import Changes, Entry, Group
from switchml.control.p4runtime_protos import METHODS, SERVICE, class_of, info, v1
from switchml.errors import ConfigError, ControlError

CONNECT_S = 2.0
TIMEOUT_S = 30.0
"""How long the switch may take for one answer; putting a program in is one."""
BATCH = 256
"""Updates or questions in one message."""
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_TABLES = ("own_addresses", "workers", "workers_v1", "receivers", "loss_in", "loss_out")


class P4RuntimeSwitch:
    """A switch at `target` (HOST:PORT) that is to run `program` (the path of a BMv2 JSON; its p4info beside it). Raises
    Unreachable if nobody answers there, ConfigError if it takes another controller's word or not the program. Not
    thread-safe."""

    def __init__(self, target: str, program: Path, device_id: int = 0):
        self.where = f"p4runtime://{target}"
        self._target, self._device_id = target, device_id
        self._json = program.read_bytes()
        self._p4info = text_format.Parse(program.with_suffix(".p4info.txtpb").read_text(), info.P4Info())
        layout = Layout(self._json.decode(), self.where)
        self.rows, self.payloads = layout.rows, layout.payloads
        self._ids = {
            (kind, item.preamble.name): item.preamble.id
            for kind in ("tables", "actions", "counters", "registers")
            for item in getattr(self._p4info, kind)
        }
        self._channel: grpc.Channel | None = None
        self._entries: set[Entry] = set()
        self._groups: set[int] = set()
        self._has_registers = True
        self._to_switch: queue.SimpleQueue[Any] | None = None
        self.reconnect()

    # The connection

    def reconnect(self) -> None:
        """Call again after Unreachable, and become the switch's controller. Raises as making one does."""
        self.close()
        self._channel = grpc.insecure_channel(
            self._target, [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]
        )
        try:
            grpc.channel_ready_future(self._channel).result(CONNECT_S)
        except grpc.FutureTimeoutError as error:
            self.close()
            raise Unreachable(f"no switch at {self.where}: no connection within {CONNECT_S:g} s") from error
        self._methods = {method.name: self._method(method) for method in METHODS}
        # What counts is that it is larger than that of a controller that was there before.
        self._election_id = v1.Uint128(high=0, low=time.time_ns())
        self._to_switch = queue.SimpleQueue()
        update = v1.MasterArbitrationUpdate(device_id=self._device_id, election_id=self._election_id)
        self._to_switch.put(v1.StreamMessageRequest(arbitration=update))
        self._stream = self._methods["StreamChannel"](iter(self._to_switch.get, None))
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
        """Hang up; what is in the switch stays there."""
        if self._channel is not None:
            if self._to_switch is not None:
                self._to_switch.put(None)
            self._channel.close()
            self._channel = None

    def reset(self) -> None:
        """Take out whatever is in the switch, also what an earlier controller left: a switch has one controller."""
        self._entries.clear()
        self._groups.clear()
        old = [
            v1.Update(type="DELETE", entity=entity)
            for name in _TABLES
            for entity in self._read([v1.Entity(table_entry=v1.TableEntry(table_id=self._ids["tables", name]))])
            if not entity.table_entry.is_default_action
        ]
        for update in old:
            update.entity.table_entry.ClearField("action")
        pre = v1.PacketReplicationEngineEntry(multicast_group_entry=v1.MulticastGroupEntry())
        old += [
            v1.Update(type="DELETE", entity=entity)
            for entity in self._read([v1.Entity(packet_replication_engine_entry=pre)])
        ]
        self._write(old)

    # What is in it

    def apply(self, changes: Changes) -> None:
        """Zero the cells, make the groups, add the entries. Raises Unreachable; ControlError if the switch refuses,
        and then nothing of `changes` stays."""
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
        self._entries.update(changes.entries)
        try:
            self._write(updates)
        except ControlError:
            with suppress(ControlError):
                self.undo(changes)
            raise

    def undo(self, changes: Changes) -> None:
        """Take entries and groups out; what is not there is passed over. Raises Unreachable, ControlError."""
        entries = [entry for entry in changes.entries if entry in self._entries]
        groups = [group for group in changes.groups if group.group in self._groups]
        self._entries.difference_update(entries)
        self._groups.difference_update(group.group for group in groups)
        self._write(
            [v1.Update(type="DELETE", entity=self._table_entity(entry)) for entry in entries]
            + [v1.Update(type="DELETE", entity=self._group_entity(Group(group.group, ()))) for group in groups]
        )

    def has_state(self) -> bool:
        """Whether what was put in is still there. Raises Unreachable."""
        held = {name: 0 for name in _TABLES}
        for entry in self._entries:
            held[entry.table] += 1
        return all(
            held[name]
            == sum(
                not entity.table_entry.is_default_action
                for entity in self._read([v1.Entity(table_entry=v1.TableEntry(table_id=self._ids["tables", name]))])
            )
            for name in _TABLES
        )

    def read_counter(self, name: str, start: int, end: int) -> list[tuple[int, int]]:
        """(packets, bytes) of cells `start` to `end - 1`. Raises Unreachable."""
        found = self._read([self._counter_entity(name, index) for index in range(start, end)])
        return [(entity.counter_entry.data.packet_count, entity.counter_entry.data.byte_count) for entity in found]

    def read_register(self, name: str, start: int, end: int) -> list[int] | None:
        """Cells `start` to `end - 1`; None from a switch that does not show them. Raises Unreachable."""
        if not self._has_registers:
            return None
        number = self._ids["registers", name]
        wanted = [
            v1.Entity(register_entry=v1.RegisterEntry(register_id=number, index=v1.Index(index=index)))
            for index in range(start, end)
        ]
        try:
            found = self._read(wanted)
        except ControlError as error:
            if error.code != grpc.StatusCode.UNIMPLEMENTED.name:
                raise
            self._has_registers = False
            return None
        return [int.from_bytes(entity.register_entry.data.bitstring, "big") for entity in found]

    # Ports

    def ports(self) -> Sequence[AttachedPort] | None:
        return None

    def add_port(self, number: int, interface: str) -> None:
        raise ControlError("DevMgr", "ERROR", f"port {number} on {interface}: P4Runtime adds none; name one by --link")

    def remove_port(self, number: int) -> None:
        """There is none that `add_port` attached."""

    # Inside

    def _method(self, method: Any) -> Any:
        kinds = ("unary", "stream")
        make = getattr(self._channel, f"{kinds[method.client_streaming]}_{kinds[method.server_streaming]}")
        return make(
            f"/{SERVICE}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=class_of(method.output_type).FromString,
        )

    def _call(self, name: str, request: Any) -> Any:
        if self._channel is None:
            raise Unreachable(f"no connection to the switch at {self.where}")
        try:
            answer = self._methods[name](request, timeout=TIMEOUT_S)
            return list(answer) if name == "Read" else answer
        except grpc.RpcError as error:
            if error.code() in _GONE:
                self.close()
                raise Unreachable(f"the switch at {self.where} does not answer: {_words(error)}") from error
            raise ControlError("P4Runtime", error.code().name, f"{name}: {_words(error)}") from error

    def _runs_our_program(self) -> bool:
        request = v1.GetForwardingPipelineConfigRequest(device_id=self._device_id, response_type="ALL")
        try:
            return self._call("GetForwardingPipelineConfig", request).config.p4info == self._p4info
        except ControlError:
            return False  # it runs none

    def _write(self, updates: Sequence[Any]) -> None:
        for start in range(0, len(updates), BATCH):
            request = v1.WriteRequest(
                device_id=self._device_id, election_id=self._election_id, updates=updates[start : start + BATCH]
            )
            self._call("Write", request)

    def _read(self, wanted: Sequence[Any]) -> list[Any]:
        found: list[Any] = []
        for start in range(0, len(wanted), BATCH):
            request = v1.ReadRequest(device_id=self._device_id, entities=wanted[start : start + BATCH])
            found += [entity for answer in self._call("Read", request) for entity in answer.entities]
        return found

    def _table_entity(self, entry: Entry) -> Any:
        made = v1.TableEntry(table_id=self._ids["tables", entry.table])
        for number, value in enumerate(entry.key, 1):
            made.match.add(field_id=number).exact.value = _short(value)
        action = made.action.action
        action.action_id = self._ids["actions", entry.action]
        for number, value in enumerate(entry.params, 1):
            action.params.add(param_id=number, value=_short(value))
        return v1.Entity(table_entry=made)

    def _group_entity(self, group: Group) -> Any:
        made = v1.MulticastGroupEntry(multicast_group_id=group.group)
        for rid, port in group.copies:
            made.replicas.add(egress_port=port, instance=rid)
        return v1.Entity(packet_replication_engine_entry=v1.PacketReplicationEngineEntry(multicast_group_entry=made))

    def _counter_entity(self, name: str, index: int, data: Any = None) -> Any:
        made = v1.CounterEntry(counter_id=self._ids["counters", name], index=v1.Index(index=index))
        if data is not None:
            made.data.CopyFrom(data)
        return v1.Entity(counter_entry=made)


def _short(value: int) -> bytes:
    """P4Runtime's canonical bytes: no more than needed."""
    return value.to_bytes(max((value.bit_length() + 7) // 8, 1), "big")


def _words(error: BaseException) -> str:
    details: Iterable[str] | None = getattr(error, "details", lambda: None)()
    return str(details or error or type(error).__name__)
