"""A pipeline: a program, its P4Info, and the switch's objects by P4Info's numbers.

Names are the same on both sides, as p4c assigns them. P4Info is generated before p4c's optimizer runs, so it may
contain objects that were removed from the program: these are left out, and requests for them are rejected.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from emulator.p4switch.p4runtime.errors import rpc_error
from emulator.p4switch.p4runtime.fields import Action, Actions, Param
from emulator.p4switch.p4runtime.matches import HIGHEST, Key, KeyField
from emulator.p4switch.program import ir
from emulator.p4switch.program.loader import loader
from emulator.p4switch.state.action_profiles import ActionOwner
from emulator.p4switch.state.state import State
from emulator.p4switch.state.tables import MatchTable
from switchml import logs
from switchml.control.p4runtime_protos import info, v1
from switchml.errors import ControlError, ProgramError

log = logs.of("switchml.bmv2")

T = TypeVar("T")

_DEVICE_DATA = 3
"""Field number of the JSON in p4.tmp.P4DeviceConfig, a wrapper used by older controllers."""


def program_in(config: v1.ForwardingPipelineConfig) -> ir.Program:
    """Load the program of a config: BMv2 JSON, bare or in a P4DeviceConfig. Raises INVALID_ARGUMENT."""
    data = config.p4_device_config
    if not data.lstrip().startswith(b"{"):
        try:
            fields = UnknownFieldSet(Empty.FromString(data))
            numbered = (fields[at] for at in range(len(fields)))
            data = next((field.data for field in numbered if field.field_number == _DEVICE_DATA), b"")
        except DecodeError:
            data = b""
    if not isinstance(data, bytes) or not data:
        raise rpc_error("INVALID_ARGUMENT", "p4_device_config is no BMv2 JSON")
    try:
        json.loads(data)
        program = loader.loads(data.decode())
        loader.check_runnable(program)
    except (ProgramError, ValueError, RecursionError) as error:
        raise rpc_error("INVALID_ARGUMENT", f"p4_device_config can't be run: {error}") from error
    return program


class Pipeline:
    """`config` as received; `state` of its program. `notify` is called with messages for the primary controllers,
    `ports_up` returns the ports that are up. Raises INVALID_ARGUMENT if P4Info and program do not match."""

    def __init__(
        self,
        config: v1.ForwardingPipelineConfig,
        state: State,
        notify: Callable[[v1.StreamMessageResponse], None] = lambda message: None,
        ports_up: Callable[[], set[int]] = set,
    ) -> None:
        self.config = config
        self.state = state
        self.program = state.program
        self.p4info = p4info = config.p4info
        self.notify = notify
        self.ports_up = ports_up
        self.actions = {action.preamble.id: action for action in p4info.actions}
        self.tables = self._bind(p4info.tables, state.table)
        self.profiles = self._bind(p4info.action_profiles, state.action_profile)
        self.counters = self._bind(p4info.counters, state.counter)
        self.meters = self._bind(p4info.meters, state.meter)
        self.registers = self._bind(p4info.registers, state.register)
        self.value_sets = self._bind(p4info.value_sets, state.parse_vset)
        self.digests = self._bind(p4info.digests, {digest.list.name: digest for digest in state.digests}.get)
        if p4info.tables and not self.tables:
            raise rpc_error("INVALID_ARGUMENT", "the P4Info is not that of the BMv2 JSON: they have no table in common")

    def _bind(self, items: Iterable[Any], find: Callable[[str], T | None]) -> dict[int, tuple[Any, T]]:
        """P4Info's number → (P4Info's object, the state's)."""
        bound: dict[int, tuple[Any, T]] = {}
        for item in items:
            try:
                obj = find(item.preamble.name)
            except ControlError:
                obj = None
            if obj is None:
                log.debug("P4Info has %s, which the program does not use", item.preamble.name)
            else:
                bound[item.preamble.id] = item, obj
        return bound

    def pick(self, bound: dict[int, T], number: int, sort: str) -> list[T]:
        """The objects that a number selects: one, or all if it is 0. Raises INVALID_ARGUMENT."""
        return [self.one(bound, number, sort)] if number else list(bound.values())

    def one(self, bound: dict[int, T], number: int, sort: str) -> T:
        """The object with a number. Raises INVALID_ARGUMENT, as PI does for ids that are not in P4Info."""
        if not number:
            raise rpc_error("INVALID_ARGUMENT", f"which {sort}? Its id is 0")
        if number not in bound:
            raise rpc_error("INVALID_ARGUMENT", f"the program has no {sort} {number} ({number:#x})")
        return bound[number]

    # Keys and actions

    def key(self, item: info.Table, table: MatchTable) -> Key:
        """The key of a table."""
        fields, matches = table.table.key, list(item.match_fields)
        by_name = {match.name: match for match in matches}
        if len(by_name) == len(fields) == len(matches) and all(field.name in by_name for field in fields):
            matches = [by_name[field.name] for field in fields]
        if len(matches) != len(fields):
            numbers = f"{len(fields)} fields in the BMv2 JSON, but {len(matches)} in the P4Info"
            raise rpc_error("INVALID_ARGUMENT", f"table {table.name} matches {numbers}")
        key = []
        for match, field in zip(matches, fields, strict=True):
            width = 1 if field.kind == "valid" else field.width
            _check_width(f"table {table.name}, field {match.name}", match, width)
            key.append(KeyField(match.id, match.name, match.match_type, field.kind, width))
        priorities = [entry.priority for entry in table.table.entries or ()]
        return Key(table.name, tuple(key), max(priorities, default=0) + 1 if table.is_immutable else HIGHEST)

    def actions_of(self, owner: ActionOwner, refs: Iterable[info.ActionRef], name: str) -> Actions:
        """The actions of a table or profile to which P4Info refers."""
        actions = {}
        for ref in refs:
            item = self.actions.get(ref.id)
            if item is None:
                raise rpc_error("INVALID_ARGUMENT", f"{name}: P4Info has no action {ref.id:#x}")
            try:
                index = owner.action(item.preamble.name)
            except ControlError:
                log.debug("%s does not use %s, which P4Info has", name, item.preamble.name)
            else:
                actions[ref.id] = Action(ref.id, index, item.preamble.name, self._params(item, index), ref.scope)
        return Actions(name, actions)

    def _params(self, item: info.Action, index: int) -> tuple[Param, ...]:
        params = self.program.actions[index].params
        declared = {param.name: param for param in item.params}
        names = [param.name for param in params]
        if set(declared) != set(names):
            lists = f"{names} in the BMv2 JSON, but {list(declared)} in the P4Info"
            raise rpc_error("INVALID_ARGUMENT", f"action {item.preamble.name} has the parameters {lists}")
        for param in params:
            _check_width(f"action {item.preamble.name}, {param.name}", declared[param.name], param.width)
        return tuple(Param(declared[param.name].id, param.name, param.width) for param in params)


def _check_width(what: str, declared: info.MatchField | info.Action.Param, width: int) -> None:
    """Compare a width with P4Info's. A translated type may have a different width; values are passed unchanged."""
    type_name = declared.type_name.name
    if declared.bitwidth == width or (declared.bitwidth and type_name):
        return
    if type_name:
        raise rpc_error("INVALID_ARGUMENT", f"{what}: translation of {type_name} to strings is not supported")
    widths = f"{width} bits in the BMv2 JSON, but {declared.bitwidth} in the P4Info"
    raise rpc_error("INVALID_ARGUMENT", f"{what} has {widths}")
