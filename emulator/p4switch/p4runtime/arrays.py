"""Arrays and value sets: counters, meters and registers, by index or attached to table entries, and parser value sets
(sections "CounterEntry", "MeterEntry", "RegisterEntry" and "ValueSetEntry"). P4Runtime counts in P4Info's unit, and its
rates are per second."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from emulator.p4switch.p4runtime.errors import rpc_error
from emulator.p4switch.p4runtime.fields import decode_data, encode_data
from emulator.p4switch.p4runtime.matches import EXACT, Key, KeyField
from emulator.p4switch.p4runtime.pipeline import Pipeline
from emulator.p4switch.program.ir import MatchParam
from emulator.p4switch.state.arrays import CellArray, CounterArray, MeterArray, RegisterArray
from emulator.p4switch.state.state import ParseVSet
from emulator.p4switch.values import mask
from switchml.control.p4runtime_protos import info, v1

PER_S = 1_000_000
"""Conversion of rates: the switch's meters have rates per microsecond."""

ONE_RATE = (info.MeterSpec.SINGLE_RATE_THREE_COLOR, info.MeterSpec.SINGLE_RATE_TWO_COLOR)

MOST = 2**63 - 1
"""P4Runtime's largest count or rate; larger ones, which Thrift can set, are reported as this value."""


def counts(data: v1.CounterData) -> tuple[int, int]:
    """(packets, bytes) of counter data to be written. Raises INVALID_ARGUMENT."""
    if min(data.packet_count, data.byte_count) < 0:
        raise rpc_error("INVALID_ARGUMENT", "a counter can't be negative")
    return data.packet_count, data.byte_count


def counter_data(packets: int, n_bytes: int, spec: info.CounterSpec) -> v1.CounterData:
    """Counter data in P4Info's unit: BMv2 counts both packets and bytes."""
    packets, n_bytes = min(packets, MOST), min(n_bytes, MOST)
    data = v1.CounterData()
    if spec.unit in (info.CounterSpec.PACKETS, info.CounterSpec.BOTH):
        data.packet_count = packets
    if spec.unit in (info.CounterSpec.BYTES, info.CounterSpec.BOTH):
        data.byte_count = n_bytes
    return data


def from_config(config: v1.MeterConfig, spec: info.MeterSpec) -> list[tuple[float, int]]:
    """(units/µs, burst in units) of both rates, the lower first. Raises INVALID_ARGUMENT."""
    values = config.cir, config.cburst, config.pir, config.pburst, config.eburst
    if min(values) < 0:
        raise rpc_error("INVALID_ARGUMENT", f"rates and bursts of meters can't be negative: {min(values)}")
    if config.eburst:
        code = "UNIMPLEMENTED" if spec.type == info.MeterSpec.SINGLE_RATE_THREE_COLOR else "INVALID_ARGUMENT"
        raise rpc_error(code, "meters have two rates and no excess burst (eburst)")
    if spec.type in ONE_RATE and (config.pir, config.pburst) != (config.cir, config.cburst):
        raise rpc_error("INVALID_ARGUMENT", "the meter has one rate: pir and pburst must be cir and cburst")
    if config.pir < config.cir:
        raise rpc_error("INVALID_ARGUMENT", f"the peak rate {config.pir} is below the committed rate {config.cir}")
    return [(config.cir / PER_S, config.cburst), (config.pir / PER_S, config.pburst)]


def to_config(rates: Sequence[tuple[float, int]]) -> v1.MeterConfig | None:
    """The inverse of `from_config`; None if no rates are set."""
    if not rates:
        return None
    (cir, cburst), (pir, pburst) = rates[0], rates[-1]
    cir, pir = round(cir * PER_S), round(pir * PER_S)
    return v1.MeterConfig(cir=min(cir, MOST), cburst=min(cburst, MOST), pir=min(pir, MOST), pburst=min(pburst, MOST))


def set_config(meter: MeterArray, index: int, config: v1.MeterConfig | None, spec: info.MeterSpec) -> None:
    """Set the rates of a cell; None: all packets are green."""
    if config is None:
        meter.reset_rates(index)
    else:
        meter.set_rates(index, from_config(config, spec)[: meter.rate_count])


def cells(entry: Any, array: CellArray, sort: str) -> range:
    """Indices of the cells that an entry selects: one, or all without an index. Raises INVALID_ARGUMENT or
    OUT_OF_RANGE."""
    if not entry.HasField("index"):
        return range(array.size)
    index = entry.index.index
    if index < 0:
        raise rpc_error("INVALID_ARGUMENT", f"{sort} {array.name}: the index {index} is negative")
    if index >= array.size:
        raise rpc_error("OUT_OF_RANGE", f"{sort} {array.name} has {array.size} cells, there is no cell {index}")
    return range(index, index + 1)


def check_modify(kind: int, sort: str) -> None:
    """Reject an update other than MODIFY."""
    if kind != v1.Update.MODIFY:
        raise rpc_error("INVALID_ARGUMENT", f"a {sort} can only be modified")


CellsT = TypeVar("CellsT", bound=CellArray)


class CellArrays(Generic[CellsT]):
    """Handles requests for indexed arrays of one sort, whose name is part of the names of messages and fields.
    Subclasses translate cells, also those of direct counters and meters; `item` is P4Info's object."""

    sort: ClassVar[str]

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.arrays: dict[int, tuple[Any, CellsT]] = getattr(pipeline, f"{self.sort}s")

    def write(self, kind: int, entry: Any) -> None:
        check_modify(kind, self.sort)
        item, array = self.pipeline.one(self.arrays, getattr(entry, f"{self.sort}_id"), self.sort)
        self.write_cells(item, array, cells(entry, array, self.sort), entry)

    def read(self, pattern: Any) -> Iterator[v1.Entity]:
        self.check(pattern)
        number = getattr(pattern, f"{self.sort}_id")
        for item, array in self.pipeline.pick(self.arrays, number, self.sort):
            for index in cells(pattern, array, self.sort) if number else range(array.size):
                key = {f"{self.sort}_id": item.preamble.id, "index": {"index": index}}
                yield v1.Entity(**{f"{self.sort}_entry": key | self.value(item, array, index)})

    def check(self, entry: Any) -> None:
        """Reject unsupported fields of an entry or a pattern."""

    def write_cells(self, item: Any, array: CellsT, indices: range, entry: Any) -> None:
        """Write the entry's value to cells."""
        raise NotImplementedError

    def value(self, item: Any, array: CellsT, index: int) -> dict[str, Any]:
        """The field of an entry with a cell's value."""
        raise NotImplementedError


class Counters(CellArrays[CounterArray]):
    """Handles requests for indexed counters."""

    sort = "counter"

    def write_cells(self, item: Any, array: CounterArray, indices: range, entry: Any) -> None:
        if entry.HasField("data"):
            packets, n_bytes = counts(entry.data)
            for index in indices:
                array.write(index, packets, n_bytes)

    def value(self, item: Any, array: CounterArray, index: int) -> dict[str, Any]:
        return {"data": counter_data(*array.read(index), item.spec)}


class Meters(CellArrays[MeterArray]):
    """Handles requests for indexed meters."""

    sort = "meter"

    def check(self, entry: Any) -> None:
        if entry.HasField("counter_data"):
            raise rpc_error("UNIMPLEMENTED", "meters do not count packets by colour")

    def write_cells(self, item: Any, array: MeterArray, indices: range, entry: Any) -> None:
        self.check(entry)
        for index in indices:
            set_config(array, index, entry.config if entry.HasField("config") else None, item.spec)

    def value(self, item: Any, array: MeterArray, index: int) -> dict[str, Any]:
        return {"config": to_config(array.get_rates(index))}


class Registers(CellArrays[RegisterArray]):
    """Handles requests for registers. BMv2's own server does not support them."""

    sort = "register"

    def write_cells(self, item: Any, array: RegisterArray, indices: range, entry: v1.RegisterEntry) -> None:
        types = self.pipeline.p4info.type_info
        value = decode_data(item.type_spec, types, entry.data, array.width, f"register {array.name}")
        array.write_range(indices.start, indices.stop, value)

    def value(self, item: Any, array: RegisterArray, index: int) -> dict[str, Any]:
        return {"data": encode_data(item.type_spec, self.pipeline.p4info.type_info, iter((array.read(index),)))}


class ValueSets:
    """Handles requests for parser value sets. BMv2 stores a member's fields as one number, the first one most
    significant."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def _key(self, item: info.ValueSet, vset: ParseVSet) -> Key:
        fields = tuple(KeyField(m.id, m.name or vset.name, m.match_type, "exact", m.bitwidth) for m in item.match)
        if any(field.match != EXACT for field in fields):
            raise rpc_error("UNIMPLEMENTED", f"value set {vset.name}: BMv2's value sets match exactly only")
        if sum(field.width for field in fields) != vset.width:
            raise rpc_error("INVALID_ARGUMENT", f"value set {vset.name} has {vset.width} bits in the BMv2 JSON")
        return Key(vset.name, fields)

    def write(self, kind: int, entry: v1.ValueSetEntry) -> None:
        """Execute an update: replace all members."""
        check_modify(kind, "value set")
        item, vset = self.pipeline.one(self.pipeline.value_sets, entry.value_set_id, "value set")
        key = self._key(item, vset)
        values = []
        for member in entry.members:
            values.append(0)
            for field, param in zip(key.fields, key.decode(member.match), strict=True):
                values[-1] = values[-1] << field.width | param.value
        if len(set(values)) < len(values):
            raise rpc_error("ALREADY_EXISTS", f"value set {vset.name}: a member occurs twice")
        if item.size and len(values) > item.size:
            raise rpc_error("RESOURCE_EXHAUSTED", f"value set {vset.name} has room for {item.size}, not {len(values)}")
        vset.reset()
        for value in values:
            vset.add(value)

    def read(self, pattern: v1.ValueSetEntry) -> Iterator[v1.Entity]:
        for item, vset in self.pipeline.pick(self.pipeline.value_sets, pattern.value_set_id, "value set"):
            message = v1.ValueSetEntry(value_set_id=item.preamble.id)
            key = self._key(item, vset)
            for value in vset.get():
                left = vset.width
                member = message.members.add()
                for field in key.fields:
                    left -= field.width
                    part = (value >> left) & mask(field.width)
                    member.match.append(field.encode(MatchParam("exact", part)))
            yield v1.Entity(value_set_entry=message)
