"""Indirect counters, meters and registers (sections 9.3, 9.5, 9.9), and value sets (9.7)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from emulator.bmv2.p4runtime.p4info import Info
from emulator.bmv2.p4runtime.protos import messages
from emulator.bmv2.p4runtime.values import Code, Refused, decode, encode, invalid

MODIFY = 2
_LARGEST_BURST = (1 << 63) - 1


def counter_data(counted: tuple[int, int]) -> Any:
    """CounterData of (packets, bytes)."""
    data = messages().CounterData()
    set_data(data, counted)
    return data


def set_data(data: Any, counted: tuple[int, int]) -> None:
    """Write (packets, bytes) into a CounterData; its int64 can't hold more than half of ours."""
    data.packet_count, data.byte_count = (min(n, _LARGEST_BURST) for n in counted)
    data.SetInParent()


def rates_of(config: Any) -> list[tuple[float, int]]:
    """BMv2's rates (units/µs, burst) of a MeterConfig (units/s)."""
    if min(config.cir, config.cburst, config.pir, config.pburst) < 0:
        raise invalid("rates and bursts of a meter can't be negative")
    return [(config.cir / 1e6, config.cburst), (config.pir / 1e6, config.pburst)]


def config_of(rates: Sequence[tuple[float, int]]) -> Any:
    """The reverse; a meter with one rate has the same for both."""
    (cir, cburst), (pir, pburst) = rates[0], rates[-1]
    return messages().MeterConfig(cir=round(cir * 1e6), cburst=cburst, pir=round(pir * 1e6), pburst=pburst)


def _index(entity: Any) -> int | None:
    """The index that an entity names, or None for all."""
    return entity.index.index if entity.HasField("index") else None


class Arrays:
    """Writes and reads entities of these kinds by their names in Entity."""

    def __init__(self, info: Info) -> None:
        self.info = info

    def write(self, kind: int, sort: str, entity: Any) -> None:
        """MODIFY one."""
        if sort == "value_set_entry":
            return self._write_value_set(kind, entity)
        if kind != MODIFY:
            raise invalid(f"a {sort.replace('_', ' ')} can only be modified")
        index = _index(entity)
        if sort == "counter_entry":
            array = self.info.state.counter(self.info.get("counters", entity.counter_id).preamble.name)
            for at in self._places(index, array.size):
                array.write(at, entity.data.packet_count, entity.data.byte_count)
        elif sort == "meter_entry":
            array = self.info.state.meter(self.info.get("meters", entity.meter_id).preamble.name)
            for at in self._places(index, array.size):
                if entity.HasField("config"):
                    array.set_rates(at, rates_of(entity.config))
                else:
                    array.reset_rates(at)
        else:
            described = self.info.get("registers", entity.register_id)
            array = self.info.state.register(described.preamble.name)
            if entity.data.WhichOneof("data") != "bitstring":
                raise Refused(Code.UNIMPLEMENTED, "registers hold numbers only")
            value = decode(entity.data.bitstring, array.width, described.preamble.name)
            for at in self._places(index, array.size):
                array.write(at, value)
        return None

    @staticmethod
    def _places(index: int | None, size: int) -> Sequence[int]:
        return range(size) if index is None else (index,)

    def read(self, sort: str, wanted: Any) -> Iterator[Any]:
        """The cells that match: one index, or all; of one array, or of all (id 0)."""
        if sort == "value_set_entry":
            yield from self._read_value_sets(wanted)
            return
        index, m = _index(wanted), messages()
        if sort == "counter_entry":
            for described in self.info.all("counters", wanted.counter_id):
                array = self.info.state.counter(described.preamble.name)
                for at in self._places(index, array.size):
                    entry = m.CounterEntry(counter_id=described.preamble.id, data=counter_data(array.read(at)))
                    entry.index.index = at
                    yield entry
        elif sort == "meter_entry":
            for described in self.info.all("meters", wanted.meter_id):
                array = self.info.state.meter(described.preamble.name)
                for at in self._places(index, array.size):
                    rates = array.get_rates(at)
                    entry = m.MeterEntry(meter_id=described.preamble.id, config=config_of(rates) if rates else None)
                    entry.index.index = at
                    yield entry
        else:
            for described in self.info.all("registers", wanted.register_id):
                array = self.info.state.register(described.preamble.name)
                for at in self._places(index, array.size):
                    entry = m.RegisterEntry(register_id=described.preamble.id)
                    entry.index.index, entry.data.bitstring = at, encode(array.read(at))
                    yield entry

    # Value sets

    def _write_value_set(self, kind: int, entity: Any) -> None:
        if kind != MODIFY:
            raise invalid("a value set can only be modified")
        described = self.info.get("value_sets", entity.value_set_id)
        vset = self.info.state.parse_vset(described.preamble.name)
        values = []
        for member in entity.members:
            if len(member.match) != 1 or member.match[0].WhichOneof("field_match_type") != "exact":
                raise Refused(Code.UNIMPLEMENTED, "members of value sets are single exact values")
            values.append(decode(member.match[0].exact.value, vset.width, described.preamble.name))
        with vset.lock:
            vset.clear()
            for value in values:
                vset.add(value)

    def _read_value_sets(self, wanted: Any) -> Iterator[Any]:
        for described in self.info.all("value_sets", wanted.value_set_id):
            entry = messages().ValueSetEntry(value_set_id=described.preamble.id)
            for value in self.info.state.parse_vset(described.preamble.name).get():
                entry.members.add().match.add(field_id=described.match[0].id).exact.value = encode(value)
            yield entry
