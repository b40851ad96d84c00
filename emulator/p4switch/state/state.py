"""All state that the control plane of a switch can read or change, except its ports: one `State` for each running
program.

Both engines read and write the arrays here during packet processing; Thrift and P4Runtime call the methods, which take
and return plain values, acquire the switch's lock, and raise ControlError with BMv2's error codes. Objects are looked
up by name with `table`, `register` and so on; the lists are in the order of the program's tuples.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any, Protocol, TypeVar

from emulator.p4switch import hashes
from emulator.p4switch.program import ir
from emulator.p4switch.state.action_profiles import ActionProfile
from emulator.p4switch.state.arrays import CounterArray, MeterArray, RegisterArray
from emulator.p4switch.state.digests import DigestList
from emulator.p4switch.state.handles import changing, locked
from emulator.p4switch.state.replication import Mirroring, Replication
from emulator.p4switch.state.tables import MatchTable
from emulator.p4switch.values import mask
from switchml.errors import ControlError, ProgramError

T = TypeVar("T")
ArrayT = TypeVar("ArrayT", ir.RegisterArray, ir.CounterArray, ir.MeterArray)
QueueSettings = dict[tuple[int | None, int | None], int]
"""(port or None for all, queue or None for all) → a number."""

QUEUE_DEPTH = 64
"""Default capacity of an egress queue in packets."""
NS_PER_S = 1_000_000_000


class VSetObserver(Protocol):
    """An engine that stores a value set in another format. Called under the set's lock, after a change."""

    def added(self, value: int) -> None: ...

    def removed(self, value: int) -> None: ...


class ParseVSet:
    """The values of a parse value set, each of `width` bits. `observers` are called after each change."""

    def __init__(self, vset: ir.ParseVSet, lock: RLock) -> None:
        self.name = vset.name
        self.width = vset.width
        self.values: set[int] = set()
        self.observers: list[VSetObserver] = []
        self.lock = lock

    def _check(self, value: int) -> None:
        if not 0 <= value <= mask(self.width):
            raise ControlError("ParseVSet", "ERROR", f"{value:#x} does not fit the {self.width} bits of {self.name}")

    @locked
    def add(self, value: int) -> None:
        """Add a value, which may already be present."""
        self._check(value)
        if value not in self.values:
            self.values.add(value)
            for observer in self.observers:
                observer.added(value)

    @locked
    def remove(self, value: int) -> None:
        """Remove a value, which need not be present."""
        self._check(value)
        if value in self.values:
            self.values.remove(value)
            for observer in self.observers:
                observer.removed(value)

    @locked
    def get(self) -> list[int]:
        """All values, ascending."""
        return sorted(self.values)

    @locked
    def reset(self) -> None:
        for value in list(self.values):
            self.remove(value)


class Queues:
    """Depth (packets) and rate (packets/s, 0: unlimited) of the egress queues. The most specific setting applies: a
    queue's, else its port's, else the global one. Negative numbers are treated as in BMv2, as unsigned numbers: no
    limit."""

    def __init__(self, lock: RLock) -> None:
        self.lock = lock
        self.version = 0
        self._depth: QueueSettings = {(None, None): QUEUE_DEPTH}
        self._rate: QueueSettings = {(None, None): 0}

    @changing
    def set_depth(self, depth: int, port: int | None = None, priority: int | None = None) -> None:
        """Set the depth of a queue, of all queues of a port, or of all; more specific settings are dropped."""
        self._set(self._depth, depth & 0xFFFFFFFF, port, priority)

    @changing
    def set_rate(self, rate_pps: int, port: int | None = None, priority: int | None = None) -> None:
        """Set the rate, as set_depth sets the depth."""
        is_limit = 0 <= rate_pps <= NS_PER_S  # BMv2 stores the time between packets in whole ns
        self._set(self._rate, rate_pps if is_limit else 0, port, priority)

    @staticmethod
    def _set(settings: QueueSettings, value: int, port: int | None, priority: int | None) -> None:
        if priority is None:
            for key in [key for key in settings if key != (None, None) and port in (None, key[0])]:
                del settings[key]
        settings[port, priority] = value

    def depth(self, port: int, priority: int = 0) -> int:
        """Capacity of a queue in packets."""
        return self._get(self._depth, port, priority)

    def rate(self, port: int, priority: int = 0) -> int:
        """Maximum packets/s that leave a queue; 0: no limit."""
        return self._get(self._rate, port, priority)

    @property
    def are_paced(self) -> bool:
        """Whether a packet may have to wait or be dropped: a queue has a rate limit, or zero capacity."""
        return any(self._rate.values()) or not all(self._depth.values())

    @staticmethod
    def _get(settings: QueueSettings, port: int, priority: int) -> int:
        return next(settings[key] for key in ((port, priority), (port, None), (None, None)) if key in settings)


def _array(make: Callable[[ArrayT, RLock], T], array: ArrayT, lock: RLock) -> T:
    try:
        return make(array, lock)
    except (MemoryError, ValueError) as error:
        raise ProgramError(f"there is no memory for the {array.size} cells of {array.name!r}") from error


def _finder(kind: type[T], parts: str, operation: str, sort: str) -> Callable[[State, str], T]:
    """A method that finds a part by name, except direct counters, which belong to their table. Raises
    INVALID_…_NAME."""
    code = f"INVALID_{parts.removesuffix('s').upper()}_NAME"

    def find(self: State, name: str) -> T:
        for part in getattr(self, parts):
            if part.name == name and (kind is not CounterArray or part.table is None):
                found: T = part
                return found
        raise ControlError(operation, code, f"the program has no {sort} {name!r}")

    return find


class State:
    """The state of `program`. `clock` returns µs since the switch started. Raises ProgramError if the program's own
    entries are invalid."""

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

    table = _finder(MatchTable, "tables", "Table", "table")
    action_profile = _finder(ActionProfile, "action_profiles", "Table", "action profile")
    counter = _finder(CounterArray, "counters", "Counter", "counter")
    meter = _finder(MeterArray, "meters", "Meter", "meter")
    register = _finder(RegisterArray, "registers", "Register", "register")
    parse_vset = _finder(ParseVSet, "parse_vsets", "ParseVSet", "parse value set")

    def digest(self, list_id: int) -> DigestList:
        """A digest by the id of its list. Raises INVALID_LIST_ID."""
        for digest in self.digests:
            if digest.list.id == list_id:
                return digest
        raise ControlError("Learn", "INVALID_LIST_ID", f"the program has no digest {list_id}")

    # Calculations

    def _hash(self, name: str, operation: str) -> hashes.Hash:
        for calculation, function in zip(self.program.calculations, self.hashes, strict=True):
            if calculation.name == name:
                return function
        raise ControlError(operation, "INVALID_CALCULATION_NAME", f"the program has no calculation {name!r}")

    @locked
    def set_crc(self, name: str, parameters: hashes.Crc) -> None:
        """Set the parameters of a calculation with the algorithm crc{width}_custom."""
        function = self._hash(name, "Crc")
        # In BMv2 all CRCs of its long list are instances of the custom ones, but crc16 and crc32 are separate.
        if (
            function.crc is None
            or function.crc.width != parameters.width
            or function.algo in ("crc16", "crc32", "crcCCITT")
        ):
            raise ControlError("Crc", "WRONG_TYPE_CALCULATION", f"calculation {name!r} is {function.algo}")
        function.set_crc(parameters)

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
        """Reset everything to the state after loading the program, except that the program's own entries are removed,
        as by BMv2's reset_state."""
        for table in self.tables:
            table.clear(reset_default=True)
        parts: list[Any] = [self.replication, self.mirroring]
        for same in (self.registers, self.counters, self.meters, self.action_profiles, self.digests, self.parse_vsets):
            parts += same
        for part in parts:
            part.reset()
