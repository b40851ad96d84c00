"""Everything that the control plane of a switch can see or change except its ports: one `State` for each running
program.

Both engines read and write the arrays here while packets pass; Thrift and P4Runtime call the methods, which take and
return plain values, hold the switch's lock, and raise ControlError with BMv2's error codes. Objects are looked up by
name with `table`, `register` and so on; the lists are in the order of the program's tuples.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any

from emulator.p4switch import hashes
from emulator.p4switch.program import ir
from emulator.p4switch.state.action_profiles import ActionProfile
from emulator.p4switch.state.arrays import CounterArray, RegisterArray
from emulator.p4switch.state.digests import DigestList
from emulator.p4switch.state.handles import locked
from emulator.p4switch.state.meters import MeterArray
from emulator.p4switch.state.replication import Mirroring, Replication
from emulator.p4switch.state.tables import MatchTable
from emulator.p4switch.values import mask
from switchml.errors import ControlError, ProgramError

QUEUE_DEPTH = 64
"""Packets that an egress queue holds by default."""


class ParseVSet:
    """The values of a parse value set, each of `width` bits."""

    def __init__(self, vset: ir.ParseVSet, lock: RLock) -> None:
        self.name = vset.name
        self.width = vset.width
        self.values: set[int] = set()
        self.version = 0
        self.lock = lock

    def _check(self, value: int) -> None:
        if not 0 <= value <= mask(self.width):
            raise ControlError("ParseVSet", "ERROR", f"{value:#x} does not fit the {self.width} bits of {self.name}")

    @locked
    def add(self, value: int) -> None:
        """Add a value (it may be present already)."""
        self._check(value)
        self.values.add(value)
        self.version += 1

    @locked
    def remove(self, value: int) -> None:
        """Remove a value (it need not be present)."""
        self._check(value)
        self.values.discard(value)
        self.version += 1

    @locked
    def get(self) -> list[int]:
        """All values, ascending."""
        return sorted(self.values)

    @locked
    def clear(self) -> None:
        """Remove all values."""
        self.values.clear()
        self.version += 1


class Queues:
    """Depth (packets) and rate (packets/s, 0: unlimited) of the egress queues. The most specific setting applies: a
    queue's, else its port's, else that of all."""

    def __init__(self, lock: RLock) -> None:
        self.lock = lock
        self.version = 0
        self._depth: dict[tuple[int | None, int | None], int] = {(None, None): QUEUE_DEPTH}
        self._rate: dict[tuple[int | None, int | None], int] = {(None, None): 0}

    @locked
    def set_depth(self, depth: int, port: int | None = None, priority: int | None = None) -> None:
        """Set it for a queue, for all queues of a port, or for all; more specific settings are dropped."""
        self._set(self._depth, max(depth, 0), port, priority)

    @locked
    def set_rate(self, rate_pps: int, port: int | None = None, priority: int | None = None) -> None:
        """As set_depth."""
        self._set(self._rate, max(rate_pps, 0), port, priority)

    def _set(self, settings: dict, value: int, port: int | None, priority: int | None) -> None:
        if priority is None:
            for key in [key for key in settings if key != (None, None) and port in (None, key[0])]:
                del settings[key]
        settings[port, priority] = value
        self.version += 1

    def depth(self, port: int, priority: int = 0) -> int:
        """Packets that a queue holds."""
        return self._get(self._depth, port, priority)

    def rate(self, port: int, priority: int = 0) -> int:
        """Packets/s that leave a queue at most; 0: no limit."""
        return self._get(self._rate, port, priority)

    @property
    def are_paced(self) -> bool:
        """Whether a packet may have to wait or be dropped: a queue has a rate, or no room."""
        return any(self._rate.values()) or not all(self._depth.values())

    @staticmethod
    def _get(settings: dict, port: int, priority: int) -> int:
        for key in ((port, priority), (port, None), (None, None)):
            if key in settings:
                return settings[key]
        raise AssertionError("there is always a setting for all queues")

    @locked
    def reset(self) -> None:
        """Restore the defaults."""
        self._depth, self._rate = {(None, None): QUEUE_DEPTH}, {(None, None): 0}
        self.version += 1


def _array(kind: type, array: Any, lock: RLock) -> Any:
    """A register, counter or meter array."""
    try:
        return kind(array, lock)
    except (MemoryError, ValueError) as error:
        raise ProgramError(f"there is no memory for the {array.size} cells of {array.name!r}") from error


class State:
    """The state of one program. `clock` returns µs since the switch started. Raises ProgramError if the program's own
    entries are refused."""

    def __init__(self, program: ir.Program, clock: Callable[[], int] = lambda: 0, lock: RLock | None = None) -> None:
        self.program = program
        self.clock = clock
        self.lock = lock = lock or RLock()
        self.registers = [_array(RegisterArray, array, lock) for array in program.registers]
        self.counters = [_array(CounterArray, array, lock) for array in program.counters]
        self.meters = [_array(MeterArray, array, lock) for array in program.meters]
        self.parse_vsets = [ParseVSet(vset, lock) for vset in program.parse_vsets]
        self.hashes = [hashes.Hash(calculation.algo) for calculation in program.calculations]
        self.action_profiles = [ActionProfile(profile, program, lock) for profile in program.action_profiles]
        self.digests = [
            DigestList(item, tuple(program.field_width(ref) for ref in item.elements), lock, clock)
            for item in program.learn_lists
        ]
        self.tables = [self._table(table) for table in program.tables]
        self.replication = Replication(lock)
        self.mirroring = Mirroring(lock)
        self.queues = Queues(lock)

    def _table(self, table: ir.Table) -> MatchTable:
        profile = None if table.action_profile is None else self.action_profiles[table.action_profile]
        meter = None if table.direct_meter is None else self.meters[table.direct_meter]
        if meter is not None and meter.size < table.max_size:
            raise ProgramError(
                f"table {table.name}: its direct meter has {meter.size} cells for {table.max_size} entries"
            )
        try:
            return MatchTable(table, self.program, self.lock, profile, meter, self.clock)
        except ControlError as error:
            place = f" ({table.source})" if str(table.source) else ""
            raise ProgramError(f"table {table.name!r}{place}: a const entry is wrong: {error}") from error

    # Lookup by name

    def table(self, name: str) -> MatchTable:
        """Raises INVALID_TABLE_NAME."""
        return self._find(self.tables, name, "Table", "INVALID_TABLE_NAME", "table")

    def action_profile(self, name: str) -> ActionProfile:
        """Raises INVALID_ACTION_PROFILE_NAME."""
        return self._find(self.action_profiles, name, "Table", "INVALID_ACTION_PROFILE_NAME", "action profile")

    def counter(self, name: str) -> CounterArray:
        """Raises INVALID_COUNTER_NAME, also for a direct counter, which is its table's."""
        arrays = [array for array in self.counters if array.table is None]
        return self._find(arrays, name, "Counter", "INVALID_COUNTER_NAME", "counter")

    def meter(self, name: str) -> MeterArray:
        """Raises INVALID_METER_NAME."""
        return self._find(self.meters, name, "Meter", "INVALID_METER_NAME", "meter")

    def register(self, name: str) -> RegisterArray:
        """Raises INVALID_REGISTER_NAME."""
        return self._find(self.registers, name, "Register", "INVALID_REGISTER_NAME", "register")

    def parse_vset(self, name: str) -> ParseVSet:
        """Raises INVALID_PARSE_VSET_NAME."""
        return self._find(self.parse_vsets, name, "ParseVSet", "INVALID_PARSE_VSET_NAME", "parse value set")

    def digest(self, list_id: int) -> DigestList:
        """Raises INVALID_LIST_ID."""
        for digest in self.digests:
            if digest.list.id == list_id:
                return digest
        raise ControlError("Learn", "INVALID_LIST_ID", f"the program has no digest {list_id}")

    @staticmethod
    def _find(objects: list, name: str, operation: str, code: str, sort: str) -> Any:
        for obj in objects:
            if obj.name == name:
                return obj
        raise ControlError(operation, code, f"the program has no {sort} {name!r}")

    # Calculations

    def _hash(self, name: str, operation: str) -> hashes.Hash:
        for calculation, function in zip(self.program.calculations, self.hashes, strict=True):
            if calculation.name == name:
                return function
        raise ControlError(operation, "INVALID_CALCULATION_NAME", f"the program has no calculation {name!r}")

    @locked
    def set_crc(
        self,
        name: str,
        width: int,
        polynomial: int,
        initial: int,
        final_xor: int,
        reflect_data: bool,
        reflect_rest: bool,
    ) -> None:
        """Set the parameters of a calculation with the algorithm crc{width}_custom."""
        function = self._hash(name, "Crc")
        # BMv2 makes all CRCs of its long list from the custom ones, but crc16 and crc32 are separate.
        if function.crc is None or function.crc.width != width or function.algo in ("crc16", "crc32", "crcCCITT"):
            raise ControlError("Crc", "WRONG_TYPE_CALCULATION", f"calculation {name!r} is {function.algo}")
        function.set_crc(polynomial, initial, final_xor, reflect_data, reflect_rest)

    @locked
    def set_toeplitz_key(self, name: str, key: bytes) -> None:
        """Set the key of a calculation with the algorithm toeplitz: a multiple of 4 bytes."""
        function = self._hash(name, "ToeplitzHash")
        if function.algo != "toeplitz":
            raise ControlError("ToeplitzHash", "WRONG_TYPE_CALCULATION", f"calculation {name!r} is {function.algo}")
        try:
            function.set_key(key)
        except ValueError as error:
            raise ControlError("ToeplitzHash", "INVALID_KEY", str(error)) from error

    @locked
    def reset(self) -> None:
        """Reset everything as when the program was loaded, but without the program's own entries, which BMv2's
        reset_state removes, too."""
        for table in self.tables:
            table.clear(reset_default=True)
        for part in (
            *self.registers, *self.counters, *self.meters, *self.action_profiles, *self.digests,
            self.replication, self.mirroring,
        ):  # fmt: skip
            part.reset()
        for vset in self.parse_vsets:
            vset.clear()
