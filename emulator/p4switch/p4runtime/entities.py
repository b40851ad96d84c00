"""All sorts of entities of one pipeline: reads, and writes in batches (sections "Write RPC" and "Read RPC").

For a batch with rollback, the state that each update changes is read beforehand, and written back in reverse order if a
later update fails.
"""

from collections.abc import Iterable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

from emulator.p4switch.p4runtime.arrays import Counters, Meters, Registers, ValueSets
from emulator.p4switch.p4runtime.digests import Digests
from emulator.p4switch.p4runtime.errors import DELETE, INSERT, MODIFY, rpc_error
from emulator.p4switch.p4runtime.pipeline import Pipeline
from emulator.p4switch.p4runtime.profiles import Profiles
from emulator.p4switch.p4runtime.replication import GROUP, SESSION, ReplicationEngine
from emulator.p4switch.p4runtime.tables import DirectCells, Tables
from switchml.control.p4runtime_protos import v1
from switchml.errors import ControlError, SwitchMLError


class Entities:
    """The state of a pipeline in terms of P4Runtime entities."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.profiles = profiles = Profiles(pipeline)
        self.tables = Tables(pipeline, profiles)
        self.digests = Digests(pipeline)
        self.replication = ReplicationEngine(pipeline)
        counters, meters = Counters(pipeline), Meters(pipeline)
        self.sorts: dict[str, Any] = {
            "action_profile_member": SimpleNamespace(write=profiles.write_member, read=profiles.read_members),
            "action_profile_group": SimpleNamespace(write=profiles.write_group, read=profiles.read_groups),
            "table_entry": self.tables,
            "counter_entry": counters,
            "direct_counter_entry": DirectCells(self.tables, counters),
            "meter_entry": meters,
            "direct_meter_entry": DirectCells(self.tables, meters),
            "register_entry": Registers(pipeline),
            "value_set_entry": ValueSets(pipeline),
            "packet_replication_engine_entry": self.replication,
            "digest_entry": self.digests,
        }
        """Sort of entity → handler with `write(kind of update, entity)` and `read(pattern)`. The order respects
        dependencies: entities can be written in this order although they refer to each other."""

    def follow_ports(self) -> None:
        """Update members of groups that watch ports, and replicas with backups, to the ports' current state."""
        with self.pipeline.state.lock:
            self.profiles.follow_ports()
            self.replication.follow_ports()

    def _sort(self, entity: v1.Entity) -> tuple[Any, Any]:
        name = entity.WhichOneof("entity")
        if name is None:
            raise rpc_error("INVALID_ARGUMENT", "which entity? None is set")
        if name not in self.sorts:
            raise rpc_error("UNIMPLEMENTED", f"a program for v1model has no {name}")
        return self.sorts[name], getattr(entity, name)

    # Read

    def read(self, patterns: Iterable[v1.Entity]) -> list[v1.Entity]:
        """All entities that `patterns` select."""
        with self.pipeline.state.lock:
            return [entity for sort, message in map(self._sort, patterns) for entity in sort.read(message)]

    def everything(self) -> list[v1.Entity]:
        """All entities that a controller may have written, in an order in which they can be written."""
        patterns: dict[str, list[dict[str, Any]]] = {
            "table_entry": [{"meter_config": {}, "counter_data": {}}, {"is_default_action": True}],
            "packet_replication_engine_entry": [{GROUP: {}}, {SESSION: {}}],
        }
        names = [name for name in self.sorts if not name.startswith("direct_")]  # those are in their table entries
        return self.read(v1.Entity(**{name: pattern}) for name in names for pattern in patterns.get(name, [{}]))

    # Write

    def write(self, updates: Iterable[v1.Update]) -> list[SwitchMLError | None]:
        """Execute each update that is possible. Returns the error of each, or None."""
        return [self._try(update) for update in updates]

    def write_all_or_none(self, updates: Iterable[v1.Update]) -> list[SwitchMLError | None]:
        """Execute all updates, with no packet between them, or none."""
        updates = list(updates)
        undo: list[v1.Update] = []
        with self.pipeline.state.lock:
            for number, update in enumerate(updates):
                failed: SwitchMLError | None
                try:
                    inverse = self._inverse(update)
                except ControlError as error:
                    inverse, failed = [], error
                else:
                    failed = self._try(update)
                if failed is not None:
                    for step in reversed(undo):
                        if (wrong := self._try(step)) is not None:
                            raise rpc_error("INTERNAL", f"a batch was only partly undone: {wrong}") from wrong
                    aborted = rpc_error("ABORTED", "not done, as another update of the batch failed")
                    return [failed if other == number else aborted for other in range(len(updates))]
                undo += inverse
        return [None] * len(updates)

    def _try(self, update: v1.Update) -> SwitchMLError | None:
        try:
            if update.type not in (INSERT, MODIFY, DELETE):
                raise rpc_error("INVALID_ARGUMENT", "an update must be INSERT, MODIFY or DELETE")
            sort, message = self._sort(update.entity)
            with self.pipeline.state.lock:
                sort.write(update.type, message)
        except SwitchMLError as error:
            return error
        return None

    def _inverse(self, update: v1.Update) -> list[v1.Update]:
        """The inverse updates of an update, computed before it is executed."""
        if update.type == INSERT:
            return [v1.Update(type=DELETE, entity=update.entity)]
        pattern = deepcopy(update.entity)
        entry = pattern.table_entry if pattern.HasField("table_entry") else None
        if entry is not None:
            for field in ("action", "metadata", "controller_metadata", "idle_timeout_ns", "time_since_last_hit"):
                entry.ClearField(field)
            entry.meter_config.SetInParent()
            entry.counter_data.SetInParent()
        before = self.read([pattern])
        if entry is not None and entry.is_default_action:
            before = before or [pattern]  # there was none: an update without an action restores that
        elif entry is not None and not entry.match:  # such a pattern reads all entries
            before = [entity for entity in before if not entity.table_entry.match]
        kind = INSERT if update.type == DELETE else MODIFY
        return [v1.Update(type=kind, entity=writable(entity)) for entity in before]


def writable(entity: v1.Entity) -> v1.Entity:
    """An entity that was read, converted for writing: const table entries only with counters and meters."""
    if entity.HasField("table_entry") and entity.table_entry.is_const:
        entity.table_entry.ClearField("action")
        entity.table_entry.ClearField("is_const")
    return entity
