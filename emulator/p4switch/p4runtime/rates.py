"""Counter values and meter rates as P4Runtime has them: by the unit that P4Info gives, rates a second; and indexed
counters and meters (sections "CounterEntry" and "MeterEntry")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from emulator.p4switch.p4runtime.pipeline import Pipeline
from emulator.p4switch.p4runtime.refusals import refuse
from emulator.p4switch.state.meters import MeterArray
from switchml.control.p4runtime_protos import info, new_entity, v1

PER_S = 1_000_000
"""The switch's meters have rates a microsecond."""

ONE_RATE = (info.MeterSpec.SINGLE_RATE_THREE_COLOR, info.MeterSpec.SINGLE_RATE_TWO_COLOR)


MOST = 2**63 - 1
"""The highest number that P4Runtime has for counts and rates; Thrift can set higher ones, which are shown as this."""


def counts(data: v1.CounterData) -> tuple[int, int]:
    """(packets, bytes) of a counter that is written. Raises INVALID_ARGUMENT."""
    if min(data.packet_count, data.byte_count) < 0:
        raise refuse("INVALID_ARGUMENT", "a counter can't be negative")
    return data.packet_count, data.byte_count


def counter_data(packets: int, n_bytes: int, spec: info.CounterSpec) -> v1.CounterData:
    """What a counter says: BMv2's count both, P4Runtime shows what was asked for."""
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
    """The reverse of `from_config`; None: nothing was set."""
    if not rates:
        return None
    (cir, cburst), (pir, pburst) = rates[0], rates[-1]
    cir, pir = round(cir * PER_S), round(pir * PER_S)
    return v1.MeterConfig(cir=min(cir, MOST), cburst=min(cburst, MOST), pir=min(pir, MOST), pburst=min(pburst, MOST))


def set_config(meter: MeterArray, index: int, config: v1.MeterConfig | None, spec: info.MeterSpec) -> None:
    """Set a cell; None: all is green."""
    if config is None:
        meter.reset_rates(index)
    else:
        meter.set_rates(index, from_config(config, spec)[: meter.rate_count])


def check_no_colours(entry: v1.MeterEntry | v1.DirectMeterEntry) -> None:
    """Refuse what BMv2's meters do not have."""
    if entry.HasField("counter_data"):
        raise refuse("UNIMPLEMENTED", "meters do not count packets by colour")


def cells(entry, array, sort: str) -> range:
    """The cells that an entry's index chooses: one, or all if it has none. Raises INVALID_ARGUMENT or OUT_OF_RANGE."""
    if not entry.HasField("index"):
        return range(array.size)
    index = entry.index.index
    if index < 0:
        raise refuse("INVALID_ARGUMENT", f"{sort} {array.name}: the index {index} is negative")
    if index >= array.size:
        raise refuse("OUT_OF_RANGE", f"{sort} {array.name} has {array.size} cells, there is no cell {index}")
    return range(index, index + 1)


def check_modify(kind: int, sort: str) -> None:
    """Refuse an update that is no MODIFY."""
    if kind != v1.Update.MODIFY:
        raise refuse("INVALID_ARGUMENT", f"a {sort} can only be modified")


class Counters:
    """Answers for indexed counters."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def write(self, kind: int, entry: v1.CounterEntry) -> None:
        """Do one update."""
        check_modify(kind, "counter")
        _, array = self.pipeline.one(self.pipeline.counters, entry.counter_id, "counter")
        chosen = cells(entry, array, "counter")
        if entry.HasField("data"):
            packets, n_bytes = counts(entry.data)
            for index in chosen:
                array.write(index, packets, n_bytes)

    def read(self, wanted: v1.CounterEntry) -> Iterator[v1.Entity]:
        """All cells that `wanted` asks for."""
        for item, array in self.pipeline.pick(self.pipeline.counters, wanted.counter_id, "counter"):
            for index in cells(wanted, array, "counter") if wanted.counter_id else range(array.size):
                message = v1.CounterEntry(counter_id=item.preamble.id, index={"index": index})
                message.data.CopyFrom(counter_data(*array.read(index), item.spec))
                yield new_entity("counter_entry", message)


class Meters:
    """Answers for indexed meters."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def write(self, kind: int, entry: v1.MeterEntry) -> None:
        """Do one update."""
        check_modify(kind, "meter")
        check_no_colours(entry)
        item, array = self.pipeline.one(self.pipeline.meters, entry.meter_id, "meter")
        for index in cells(entry, array, "meter"):
            set_config(array, index, entry.config if entry.HasField("config") else None, item.spec)

    def read(self, wanted: v1.MeterEntry) -> Iterator[v1.Entity]:
        """All cells that `wanted` asks for."""
        check_no_colours(wanted)
        for item, array in self.pipeline.pick(self.pipeline.meters, wanted.meter_id, "meter"):
            for index in cells(wanted, array, "meter") if wanted.meter_id else range(array.size):
                config = to_config(array.get_rates(index))
                message = v1.MeterEntry(meter_id=item.preamble.id, index={"index": index}, config=config)
                yield new_entity("meter_entry", message)
