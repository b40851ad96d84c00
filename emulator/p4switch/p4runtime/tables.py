"""Table entries, with their direct counters and meters (sections "TableEntry", "DirectCounterEntry" and
"DirectMeterEntry")."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic

from emulator.p4switch.p4runtime import arrays
from emulator.p4switch.p4runtime.arrays import CellsT
from emulator.p4switch.p4runtime.digests import NS_PER_MS
from emulator.p4switch.p4runtime.errors import DELETE, INSERT, MODIFY, rpc_error
from emulator.p4switch.p4runtime.fields import Actions
from emulator.p4switch.p4runtime.matches import Key
from emulator.p4switch.p4runtime.pipeline import Pipeline
from emulator.p4switch.p4runtime.profiles import Group, Profile, Profiles
from emulator.p4switch.state.action_profiles import RunAction, Target, UseGroup, UseMember
from emulator.p4switch.state.ageing import Ageing
from emulator.p4switch.state.arrays import CounterArray, MeterArray
from emulator.p4switch.state.handles import index_of
from emulator.p4switch.state.tables import Entry, MatchTable
from switchml.control.p4runtime_protos import info, v1
from switchml.errors import ControlError


@dataclass
class Extra:
    """Properties of an entry that the switch does not store."""

    metadata: bytes = b""
    controller_metadata: int = 0
    idle_timeout_ns: int = 0
    one_shot: Group | None = None


@dataclass
class Table:
    """A table in P4Runtime and in the switch. `counter`, `meter`: the direct ones, P4Info's object with the array of
    their cells. `extras` by handle; the key None stands for the default entry."""

    number: int
    table: MatchTable
    key: Key
    actions: Actions
    profile: Profile | None
    counter: tuple[info.DirectCounter, CounterArray] | None = None
    meter: tuple[info.DirectMeter, MeterArray] | None = None
    extras: dict[int | None, Extra] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ageing = Ageing(self.table)

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def ages(self) -> bool:
        """Whether entries have idle timeouts."""
        return self.table.table.support_timeout

    def lacks(self, sort: str) -> ControlError:
        return rpc_error("INVALID_ARGUMENT", f"table {self.name} has no direct {sort}")

    def remove(self, one_shot: Group | None) -> None:
        """Release the group of an entry's action set, if any."""
        if one_shot is not None and self.profile is not None:
            self.profile.remove(one_shot)

    def find(self, entry: v1.TableEntry) -> Entry:
        """The entry with the same key. Raises NOT_FOUND."""
        match, priority = self.key.decode(entry.match), self.key.priority_in(entry.priority)
        try:
            return self.table.entry_from_key(match, priority)
        except ControlError as error:
            if error.code == "BAD_MATCH_KEY":
                raise rpc_error("NOT_FOUND", str(error)) from error
            raise

    def key_of(self, entry: Entry) -> v1.TableEntry:
        """A message with an entry's table, key and priority."""
        message = v1.TableEntry(table_id=self.number, priority=self.key.priority_out(entry.priority))
        message.match.extend(self.key.encode(entry.match))
        return message

    def selected(self, pattern: v1.TableEntry) -> list[Entry]:
        """The entries that a read selects by match and priority (section "Wildcard Reads" of TableEntry)."""
        priority = pattern.priority
        if priority and (priority < 0 or not self.key.has_priorities):
            return []
        if pattern.match:
            in_switch = self.key.priority_in(priority) if priority else None
            return self.table.entries_of_match(self.key.decode(pattern.match), in_switch)
        entries = self.table.all_entries()
        if priority:
            entries = [entry for entry in entries if self.key.priority_out(entry.priority) == priority]
        return entries


class Tables:
    """Handles requests for all tables of a pipeline."""

    def __init__(self, pipeline: Pipeline, profiles: Profiles) -> None:
        self.pipeline = pipeline
        self.by_number = {
            number: Table(
                number,
                table,
                pipeline.key(item, table),
                pipeline.actions_of(table if table.profile is None else table.profile, item.action_refs, table.name),
                profiles.of(table.profile),
            )
            for number, (item, table) in pipeline.tables.items()
        }
        for item in pipeline.p4info.direct_counters:
            table = self.by_number.get(item.direct_table_id)
            if table is not None and table.table.direct_counter is not None:
                table.counter = item, table.table.direct_counter
        for item in pipeline.p4info.direct_meters:
            table = self.by_number.get(item.direct_table_id)
            if table is not None and table.table.direct_meter is not None:
                table.meter = item, table.table.direct_meter

    # Write

    def write(self, kind: int, entry: v1.TableEntry) -> None:
        table = self.pipeline.one(self.by_number, entry.table_id, "table")
        if entry.is_const:
            raise rpc_error("INVALID_ARGUMENT", f"table {table.name}: is_const may not be set by a controller")
        if entry.is_default_action:
            self._write_default(kind, table, entry)
        elif kind == DELETE:
            self._delete(table, entry)
        else:
            self._check_resources(table, entry)
            self._put(kind, table, entry)

    def _check_resources(self, table: Table, entry: v1.TableEntry) -> None:
        if entry.idle_timeout_ns < 0:
            raise rpc_error("INVALID_ARGUMENT", f"table {table.name}: an idle time-out can't be negative")
        if entry.idle_timeout_ns and not table.ages:
            raise rpc_error("INVALID_ARGUMENT", f"the entries of table {table.name} do not age")
        if entry.HasField("time_since_last_hit"):
            raise rpc_error("INVALID_ARGUMENT", f"table {table.name}: time_since_last_hit can't be written")
        if entry.HasField("counter_data"):
            if table.counter is None:
                raise table.lacks("counter")
            arrays.counts(entry.counter_data)
        if entry.HasField("meter_counter_data"):
            raise rpc_error("UNIMPLEMENTED", "meters do not count packets by colour")
        if entry.HasField("meter_config"):
            if table.meter is None:
                raise table.lacks("meter")
            arrays.from_config(entry.meter_config, table.meter[0].spec)

    def _put(self, kind: int, table: Table, entry: v1.TableEntry) -> None:
        """Insert or modify an entry. Modification without an action changes only the other properties."""
        one_shot = before = None
        if kind == INSERT:
            match, priority = table.key.decode(entry.match), table.key.priority_in(entry.priority)
        else:
            handle = table.find(entry).handle
            one_shot = before = table.extras.get(handle, Extra()).one_shot
        if kind == INSERT or entry.HasField("action"):
            table.table.check_mutable()
            if not entry.HasField("action"):
                raise rpc_error("INVALID_ARGUMENT", f"table {table.name}: a new entry needs an action")
            target, one_shot = self._target(table, entry.action)
            try:
                if kind == INSERT:
                    handle = table.table.add(match, target, priority)
                else:
                    table.table.modify(handle, target)
            except ControlError:
                table.remove(one_shot)
                raise
            table.remove(before)
        self._set_properties(table, handle, entry, one_shot)

    def _delete(self, table: Table, entry: v1.TableEntry) -> None:
        handle = table.find(entry).handle
        table.table.delete(handle)
        table.remove(table.extras.pop(handle, Extra()).one_shot)

    def _set_properties(self, table: Table, handle: int, entry: v1.TableEntry, one_shot: Group | None) -> None:
        """Set an entry's properties other than its target."""
        if entry.HasField("counter_data"):
            table.table.write_counter(handle, *arrays.counts(entry.counter_data))
        if table.meter is not None:
            item, meter = table.meter
            config = entry.meter_config if entry.HasField("meter_config") else None
            arrays.set_config(meter, index_of(handle), config, item.spec)
        if table.ages:
            table.table.set_timeout(handle, -(-entry.idle_timeout_ns // NS_PER_MS))
        table.extras[handle] = Extra(entry.metadata, entry.controller_metadata, entry.idle_timeout_ns, one_shot)

    def _target(self, table: Table, action: v1.TableAction, default: bool = False) -> tuple[Target, Group | None]:
        """The target of an entry; a one-shot's members and group are created."""
        kind = action.WhichOneof("type")
        if table.profile is None:
            if kind != "action":
                raise rpc_error("INVALID_ARGUMENT", f"table {table.name} takes actions, not {kind}")
            scope = info.ActionRef.TABLE_ONLY if default else info.ActionRef.DEFAULT_ONLY
            return table.actions.decode(action.action, forbidden_scope=scope), None
        if kind == "action_profile_member_id":
            return UseMember(table.profile.member(action.action_profile_member_id)), None
        if kind == "action_profile_group_id":
            return UseGroup(table.profile.group(action.action_profile_group_id).handle), None
        if kind == "action_profile_action_set" and not default:
            one_shot = table.profile.new_one_shot(action.action_profile_action_set)
            return UseGroup(one_shot.handle), one_shot
        raise rpc_error("INVALID_ARGUMENT", f"table {table.name} has an action profile: it can't take {kind}")

    def _write_default(self, kind: int, table: Table, entry: v1.TableEntry) -> None:
        """Modify the default entry (section "Default Entry")."""
        if kind != MODIFY:
            raise rpc_error("INVALID_ARGUMENT", f"the default entry of table {table.name} can only be modified")
        if entry.match or entry.priority or entry.idle_timeout_ns or entry.HasField("time_since_last_hit"):
            raise rpc_error(
                "INVALID_ARGUMENT", f"table {table.name}: a default entry has no match, priority or time-out"
            )
        if entry.HasField("counter_data") or entry.HasField("meter_config") or entry.HasField("meter_counter_data"):
            raise rpc_error("UNIMPLEMENTED", f"table {table.name}: BMv2 does not count or meter misses")
        if entry.HasField("action"):
            table.table.set_default(self._target(table, entry.action, default=True)[0])
            table.extras[None] = Extra(entry.metadata, entry.controller_metadata)
            return
        default = table.table.table.default
        if default is not None and default.const_entry:
            raise rpc_error("PERMISSION_DENIED", f"the default entry of table {table.name} is const")
        table.table.reset_default()
        table.extras.pop(None, None)

    # Read

    def read(self, pattern: v1.TableEntry) -> Iterator[v1.Entity]:
        """All entries that `pattern` selects; with table id 0, all entries of all tables."""
        for table in self.pipeline.pick(self.by_number, pattern.table_id, "table"):
            messages: Iterable[v1.TableEntry]
            if pattern.is_default_action:
                messages = [self._default(table)] if table.table.default is not None else []
            else:
                if pattern.table_id and pattern.HasField("time_since_last_hit") and not table.ages:
                    raise rpc_error("INVALID_ARGUMENT", f"the entries of table {table.name} do not age")
                entries = table.selected(pattern) if pattern.table_id else table.table.all_entries()
                messages = (self._message(table, entry, pattern) for entry in entries)
            for message in messages:
                if not pattern.table_id or self._passes(message, pattern):
                    yield v1.Entity(table_entry=message)

    @staticmethod
    def _passes(message: v1.TableEntry, pattern: v1.TableEntry) -> bool:
        if pattern.controller_metadata and message.controller_metadata != pattern.controller_metadata:
            return False
        if pattern.metadata and message.metadata != pattern.metadata:
            return False
        action = pattern.action.action.action_id
        return not action or message.action.action.action_id == action

    def _message(self, table: Table, entry: Entry, pattern: v1.TableEntry) -> v1.TableEntry:
        message = table.key_of(entry)
        extra = table.extras.get(entry.handle, Extra())
        self._describe(table, message, entry.target, extra)
        message.idle_timeout_ns = extra.idle_timeout_ns
        message.is_const = table.table.is_immutable
        if pattern.HasField("counter_data") and table.counter is not None:
            item, counter = table.counter
            message.counter_data.CopyFrom(arrays.counter_data(*counter.read(entry.index), item.spec))
        if pattern.HasField("meter_config") and table.meter is not None:
            config = arrays.to_config(table.meter[1].get_rates(entry.index))
            if config is not None:
                message.meter_config.CopyFrom(config)
        if pattern.HasField("time_since_last_hit") and (life := table.table.life_ms(entry.handle)) is not None:
            message.time_since_last_hit.elapsed_ns = life[1] * NS_PER_MS
        return message

    def _default(self, table: Table) -> v1.TableEntry:
        message = v1.TableEntry(table_id=table.number, is_default_action=True)
        self._describe(table, message, table.table.get_default(), table.extras.get(None, Extra()))
        default = table.table.table.default
        message.is_const = default is not None and default.const_entry
        return message

    @staticmethod
    def _describe(table: Table, message: v1.TableEntry, target: Target, extra: Extra) -> None:
        """Write an entry's target and stored properties. A member or group created through Thrift reads as 0."""
        message.metadata, message.controller_metadata = extra.metadata, extra.controller_metadata
        if extra.one_shot is not None:
            message.action.action_profile_action_set.CopyFrom(extra.one_shot.message)
        elif isinstance(target, RunAction):
            message.action.action.CopyFrom(table.actions.encode(target))
        elif table.profile is None:
            raise AssertionError(f"table {table.name} has no action profile")
        elif isinstance(target, UseMember):
            message.action.action_profile_member_id = table.profile.number_of_member(target.member)
        else:
            message.action.action_profile_group_id = table.profile.number_of_group(target.group)

    # Idle timeouts

    def newly_idle(self) -> list[v1.TableEntry]:
        """Entries whose timeout has expired, or expired again, since the last call (section "Table idle timeout
        notification")."""
        return [
            self._message(table, table.table.entry(handle), v1.TableEntry())
            for table in self.by_number.values()
            if table.ages
            for handle in table.ageing.due()
        ]


class DirectCells(Generic[CellsT]):
    """Handles requests for the direct counters or meters of `tables`; `cells` translates them."""

    def __init__(self, tables: Tables, cells: arrays.CellArrays[CellsT]) -> None:
        self.tables = tables
        self.cells = cells
        self.sort = cells.sort

    def _cells(self, table: Table) -> tuple[Any, CellsT] | None:
        """P4Info's direct counter or meter of a table, and the array of its cells."""
        cells: tuple[Any, CellsT] | None = getattr(table, self.sort)
        return cells

    def _table(self, key: v1.TableEntry) -> tuple[Table, tuple[Any, CellsT]]:
        table = self.tables.pipeline.one(self.tables.by_number, key.table_id, "table")
        cells = self._cells(table)
        if cells is None:
            raise table.lacks(self.sort)
        if key.is_default_action:
            raise rpc_error("UNIMPLEMENTED", f"table {table.name}: BMv2 does not count or meter misses")
        return table, cells

    def write(self, kind: int, entry: Any) -> None:
        arrays.check_modify(kind, f"direct {self.sort}")
        self.cells.check(entry)
        table, (item, array) = self._table(entry.table_entry)
        index = table.find(entry.table_entry).index
        self.cells.write_cells(item, array, range(index, index + 1), entry)

    def read(self, pattern: Any) -> Iterator[v1.Entity]:
        """Read the cells of the table entries that a pattern selects."""
        self.cells.check(pattern)
        key = pattern.table_entry
        for table in [self._table(key)[0]] if key.table_id else self.tables.by_number.values():
            cells = self._cells(table)
            if cells is not None:
                for entry in table.selected(key) if key.table_id else table.table.all_entries():
                    value = self.cells.value(*cells, entry.index)
                    message = {"table_entry": table.key_of(entry)} | value
                    yield v1.Entity(**{f"direct_{self.sort}_entry": message})
