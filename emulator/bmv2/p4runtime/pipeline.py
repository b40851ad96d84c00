"""The program of a switch as P4Runtime sees it: writes and reads all kinds of entities (sections 9 to 13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from emulator.bmv2.p4runtime.arrays import Arrays
from emulator.bmv2.p4runtime.p4info import Info
from emulator.bmv2.p4runtime.packets import Digests
from emulator.bmv2.p4runtime.profiles import Profiles
from emulator.bmv2.p4runtime.protos import messages
from emulator.bmv2.p4runtime.replication import Groups
from emulator.bmv2.p4runtime.tables import Tables
from emulator.bmv2.p4runtime.values import Code, Refused, invalid
from emulator.bmv2.state import State

_KINDS = (1, 2, 3)
_ARRAYS = ("counter_entry", "meter_entry", "register_entry", "value_set_entry")
_DIRECT = ("direct_counter_entry", "direct_meter_entry")


class Pipeline:
    """`config`: the ForwardingPipelineConfig that was set. `send_digest` gets DigestLists."""

    def __init__(self, config: Any, state: State, send_digest: Callable[[Any], None]) -> None:
        self.config = config
        self.info = Info(config.p4info, state)
        self.profiles = Profiles(self.info)
        self.tables = Tables(self.info, self.profiles)
        self.arrays = Arrays(self.info)
        self.groups = Groups(state)
        self.digests = Digests(self.info, send_digest)

    def write(self, update: Any) -> None:
        """Do one Update. Raises Refused or ControlError."""
        if update.type not in _KINDS:
            raise invalid("an update must say INSERT, MODIFY or DELETE")
        sort = update.entity.WhichOneof("entity")
        if sort is None:
            raise invalid("an update without an entity")
        entity = getattr(update.entity, sort)
        if sort == "table_entry":
            self.tables.write(update.type, entity)
        elif sort in _DIRECT:
            self.tables.write_direct(update.type, sort, entity)
        elif sort in _ARRAYS:
            self.arrays.write(update.type, sort, entity)
        elif sort == "action_profile_member":
            self.profiles.write_member(update.type, entity)
        elif sort == "action_profile_group":
            self.profiles.write_group(update.type, entity)
        elif sort == "packet_replication_engine_entry":
            self.groups.write(update.type, entity)
        elif sort == "digest_entry":
            self.digests.write(update.type, entity)
        else:
            raise Refused(Code.UNIMPLEMENTED, f"{sort} is not supported")

    def read(self, entity: Any) -> Iterator[Any]:
        """The Entities that match one of a ReadRequest."""
        sort = entity.WhichOneof("entity")
        if sort is None:
            raise invalid("a read without an entity")
        wanted = getattr(entity, sort)
        readers: dict[str, Callable[[], Iterator[Any]]] = {
            "table_entry": lambda: self.tables.read(wanted),
            "action_profile_member": lambda: self.profiles.read_members(wanted),
            "action_profile_group": lambda: self.profiles.read_groups(wanted),
            "packet_replication_engine_entry": lambda: self.groups.read(wanted),
            "digest_entry": lambda: self.digests.read(wanted),
            **{name: lambda: self.tables.read_direct(sort, wanted) for name in _DIRECT},
            **{name: lambda: self.arrays.read(sort, wanted) for name in _ARRAYS},
        }
        if sort not in readers:
            raise Refused(Code.UNIMPLEMENTED, f"{sort} is not supported")
        for found in readers[sort]():
            yield messages().Entity(**{sort: found})
