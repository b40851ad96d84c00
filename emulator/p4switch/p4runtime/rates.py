"""Counter values and meter rates in P4Runtime's form, counters in P4Info's unit and rates per second; and indexed
counters and meters (sections "CounterEntry" and "MeterEntry")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from emulator.p4switch.p4runtime.pipeline import Pipeline
from emulator.p4switch.p4runtime.refusals import refuse
from emulator.p4switch.state.arrays import CounterArray
from emulator.p4switch.state.meters import MeterArray
from switchml.control.p4runtime_protos import info, new_entity, v1

PER_S = 1_000_000
"""The switch's meters have rates per microsecond."""

ONE_RATE = (info.MeterSpec.SINGLE_RATE_THREE_COLOR, info.MeterSpec.SINGLE_RATE_TWO_COLOR)


MOST = 2**63 - 1
"""P4Runtime's highest count or rate; higher ones, which Thrift can set, are shown as this."""


def counts(data: v1.CounterData) -> tuple[int, int]:
    """(packets, bytes) of a counter that is written. Raises INVALID_ARGUMENT."""
    if min(data.packet_count, data.byte_count) < 0:
        raise refuse("INVALID_ARGUMENT", "a counter can't be negative")
    return data.packet_count, data.byte_count


def counter_data(packets: int, n_bytes: int, spec: info.CounterSpec) -> v1.CounterData:
    """A counter's value: BMv2 counts packets and bytes, P4Runtime shows those of P4Info's unit."""
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
        raise refuse("INVALID_ARGUMENT", f"rates and bursts of meters can't be negative: {min(values)}")
    if config.eburst:
        code = "UNIMPLEMENTED" if spec.type == info.MeterSpec.SINGLE_RATE_THREE_COLOR else "INVALID_ARGUMENT"
        raise refuse(code, "meters have two rates and no excess burst (eburst)")
    if spec.type in ONE_RATE and (config.pir, config.pburst) != (config.cir, config.cburst):
        raise refuse("INVALID_ARGUMENT", "the meter has one rate: pir and pburst must be cir and cburst")
    if config.pir < config.cir:
        raise refuse("INVALID_ARGUMENT", f"the peak rate {config.pir} is below the committed rate {config.cir}")
    return [(config.cir / PER_S, config.cburst), (config.pir / PER_S, config.pburst)]


def to_config(rates: Sequence[tuple[float, int]]) -> v1.MeterConfig | None:
    """The reverse of `from_config`; None: no rates are set."""
    if not rates:
        return None
    (cir, cburst), (pir, pburst) = rates[0], rates[-1]
    cir, pir = round(cir * PER_S), round(pir * PER_S)
    return v1.MeterConfig(cir=min(cir, MOST), cburst=min(cburst, MOST), pir=min(pir, MOST), pburst=min(pburst, MOST))


def set_config(meter: MeterArray, index: int, config: v1.MeterConfig | None, spec: info.MeterSpec) -> None:
    """Set a cell; None: all packets are green."""
    if config is None:
        meter.reset_rates(index)
    else:
        meter.set_rates(index, from_config(config, spec)[: meter.rate_count])


def check_no_colours(entry: v1.MeterEntry | v1.DirectMeterEntry) -> None:
    """Refuse counters by colour, which BMv2's meters lack."""
    if entry.HasField("counter_data"):
        raise refuse("UNIMPLEMENTED", "meters do not count packets by colour")


def cells(entry, array, sort: str) -> range:
    """The cells that an entry's index selects: one, or all without an index. Raises INVALID_ARGUMENT or
    OUT_OF_RANGE."""
    if not entry.HasField("index"):
        return range(array.size)
    index = entry.index.index
    if index < 0:
        raise refuse("INVALID_ARGUMENT", f"{sort} {array.name}: the index {index} is negative")
    if index >= array.size:
        raise refuse("OUT_OF_RANGE", f"{sort} {array.name} has {array.size} cells, there is no cell {index}")
    return range(index, index + 1)


def check_modify(kind: int, sort: str) -> None:
    """Refuse an update other than MODIFY."""
    if kind != v1.Update.MODIFY:
        raise refuse("INVALID_ARGUMENT", f"a {sort} can only be modified")


class CellArrays:
    """Answers for indexed arrays of one sort, which is in the names of messages and fields. Subclasses translate
    cells."""

    sort: ClassVar[str]

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.arrays = getattr(pipeline, f"{self.sort}s")

    def write(self, kind: int, entry: Any) -> None:
        """Do one update."""
        check_modify(kind, self.sort)
        item, array = self.pipeline.one(self.arrays, getattr(entry, f"{self.sort}_id"), self.sort)
        self.write_cells(item, array, cells(entry, array, self.sort), entry)

    def read(self, pattern: Any) -> Iterator[v1.Entity]:
        """All cells that `pattern` selects."""
        number = getattr(pattern, f"{self.sort}_id")
        for item, array in self.pipeline.pick(self.arrays, number, self.sort):
            for index in cells(pattern, array, self.sort) if number else range(array.size):
                yield new_entity(f"{self.sort}_entry", self.message(item, array, index))

    def write_cells(self, item: Any, array: Any, indices: range, entry: Any) -> None:
        """Write the entry's value to cells."""
        raise NotImplementedError

    def message(self, item: Any, array: Any, index: int) -> Any:
        """The entry of one cell."""
        raise NotImplementedError


class Counters(CellArrays):
    """Answers for indexed counters."""

    sort = "counter"

    def write_cells(self, item: Any, array: CounterArray, indices: range, entry: v1.CounterEntry) -> None:
        if entry.HasField("data"):
            packets, n_bytes = counts(entry.data)
            for index in indices:
                array.write(index, packets, n_bytes)

    def message(self, item: Any, array: CounterArray, index: int) -> v1.CounterEntry:
        data = counter_data(*array.read(index), item.spec)
        return v1.CounterEntry(counter_id=item.preamble.id, index={"index": index}, data=data)


class Meters(CellArrays):
    """Answers for indexed meters."""

    sort = "meter"

    def write_cells(self, item: Any, array: MeterArray, indices: range, entry: v1.MeterEntry) -> None:
        check_no_colours(entry)
        for index in indices:
            set_config(array, index, entry.config if entry.HasField("config") else None, item.spec)

    def read(self, pattern: v1.MeterEntry) -> Iterator[v1.Entity]:
        """All cells that `pattern` selects. Raises UNIMPLEMENTED for one with counters by colour."""
        check_no_colours(pattern)
        yield from super().read(pattern)

    def message(self, item: Any, array: MeterArray, index: int) -> v1.MeterEntry:
        config = to_config(array.get_rates(index))
        return v1.MeterEntry(meter_id=item.preamble.id, index={"index": index}, config=config)
