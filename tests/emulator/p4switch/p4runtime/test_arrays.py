"""Counters, meters, registers and value sets."""

import pytest

from tests.support.p4runtime_controller import config, exact, refused, short, v1

ETHERNET = bytes.fromhex("000000000001 000000000002 0800")


def flow(controller, **fields):
    action = controller.action("send", 1)
    entry = controller.entry("flows", {1: exact(7)}, action, **fields)
    controller.write("INSERT", table_entry=entry)
    return controller.entry("flows", {1: exact(7)})


def test_counters(primary):
    controller = primary("counters")
    number, size = controller.info.counters[0].preamble.id, controller.info.counters[0].size
    assert len(controller.read(counter_entry={})) == sum(item.size for item in controller.info.counters)
    controller.write(
        "MODIFY",
        counter_entry={"counter_id": number, "index": {"index": 3}, "data": {"packet_count": 5, "byte_count": 500}},
    )
    (one,) = controller.read(counter_entry={"counter_id": number, "index": {"index": 3}})
    assert one.data.packet_count == 5 or one.data.byte_count == 500
    controller.write("MODIFY", counter_entry={"counter_id": number, "data": {"packet_count": 1, "byte_count": 2}})
    assert len({str(entry.data) for entry in controller.read(counter_entry={"counter_id": number})}) == 1
    for index, code in ((size, "OUT_OF_RANGE"), (-1, "INVALID_ARGUMENT")):
        with refused(code):
            controller.read(counter_entry={"counter_id": number, "index": {"index": index}})
        with refused(code):
            controller.write("MODIFY", counter_entry={"counter_id": number, "index": {"index": index}, "data": {}})
    with refused("INVALID_ARGUMENT", "negative"):
        controller.write("MODIFY", counter_entry={"counter_id": number, "data": {"packet_count": -1}})
    for kind in ("INSERT", "DELETE"):
        with refused("INVALID_ARGUMENT"):
            controller.write(kind, counter_entry={"counter_id": number, "data": {}})


def test_direct_counters(primary, target):
    controller = primary("counters")
    key = flow(controller, counter_data={"packet_count": 10, "byte_count": 1000})
    frame = ETHERNET + bytes.fromhex("0007") + bytes(50)
    target.receive(1, frame)
    (entry,) = controller.read(table_entry={"table_id": key.table_id, "counter_data": {}})
    (direct,) = controller.read(direct_counter_entry={"table_entry": key})
    assert direct.data == entry.counter_data and direct.table_entry == key
    assert direct.data.packet_count in (0, 11) and direct.data.byte_count in (0, 1000 + len(frame))
    assert direct.data != v1.CounterData()
    assert controller.read(direct_counter_entry={}) == [direct]
    controller.write("MODIFY", direct_counter_entry={"table_entry": key, "data": {}})
    assert controller.read(direct_counter_entry={"table_entry": {"table_id": key.table_id}})[0].data == v1.CounterData()
    with refused("NOT_FOUND"):
        other = controller.entry("flows", {1: exact(8)})
        controller.write("MODIFY", direct_counter_entry={"table_entry": other, "data": {}})
    with refused("INVALID_ARGUMENT"):
        controller.write("INSERT", direct_counter_entry={"table_entry": key, "data": {}})


CONFIG = {"cir": 1000, "cburst": 10, "pir": 2000, "pburst": 20}


def test_meters(primary, target):
    controller = primary("meters")
    (number,) = [item.preamble.id for item in controller.info.meters]
    one = {"meter_id": number, "index": {"index": 2}}
    assert not controller.read(meter_entry=one)[0].HasField("config")
    controller.write("MODIFY", meter_entry={**one, "config": CONFIG})
    (meter,) = controller.read(meter_entry=one)
    assert meter.config == v1.MeterConfig(**CONFIG)
    (array,) = [meter for meter in target.state.meters if not meter.is_direct]
    assert array.get_rates(2) == [(0.001, 10), (0.002, 20)]
    assert len(controller.read(meter_entry={})) == array.size
    controller.write("MODIFY", meter_entry=one)
    assert not controller.read(meter_entry=one)[0].HasField("config")
    for bad in ({**CONFIG, "pir": 1}, {**CONFIG, "cir": -1}, {**CONFIG, "eburst": 3}):
        with refused("INVALID_ARGUMENT"):
            controller.write("MODIFY", meter_entry={**one, "config": bad})
    with refused("UNIMPLEMENTED"):
        controller.read(meter_entry={**one, "counter_data": {}})


def test_direct_meters(primary):
    controller = primary("meters")
    key = flow(controller, meter_config=CONFIG)
    (entry,) = controller.read(table_entry={"table_id": key.table_id, "meter_config": {}})
    assert entry.meter_config == v1.MeterConfig(**CONFIG)
    (direct,) = controller.read(direct_meter_entry={"table_entry": key})
    assert direct.config == entry.meter_config
    controller.write("MODIFY", direct_meter_entry={"table_entry": key})
    assert not controller.read(direct_meter_entry={})[0].HasField("config")
    controller.write("MODIFY", direct_meter_entry={"table_entry": key, "config": CONFIG})
    key.action.action.CopyFrom(controller.action("drop"))
    controller.write("MODIFY", table_entry=key)  # without rates: they are reset
    assert not controller.read(direct_meter_entry={})[0].HasField("config")


@pytest.mark.parametrize(("name", "data", "value"), [
    ("sums", b"\xff\xff", 0xFFFF), ("smalls", b"\x1f", 31), ("wides", b"\x80" + bytes(16), 1 << 135),
    ("signed", b"\xfe", 2**32 - 2),
])  # fmt: skip
def test_registers(primary, target, name, data, value):
    controller = primary("registers")
    number = controller.id("registers", name)
    one = {"register_id": number, "index": {"index": 1}}
    controller.write("MODIFY", register_entry={**one, "data": {"bitstring": data}})
    array = target.state.register(f"MyIngress.{name}")
    assert array.read(1) == value and array.read(0) == 0
    assert controller.read(register_entry=one)[0].data.bitstring == data
    controller.write("MODIFY", register_entry={"register_id": number, "data": {"bitstring": b"\x01"}})
    assert [entry.data.bitstring for entry in controller.read(register_entry={"register_id": number})] == [b"\x01"] * 16


def test_bad_registers(primary):
    controller = primary("registers")
    number = controller.id("registers", "smalls")
    for fields, code in [
        ({"data": {"bitstring": b"\x20"}}, "OUT_OF_RANGE"),
        ({"data": {"bitstring": b"\0\x80\0\0\0"}, "register_id": controller.id("registers", "signed")}, "OUT_OF_RANGE"),
        ({"data": {"bool": True}}, "INVALID_ARGUMENT"),
        ({}, "INVALID_ARGUMENT"),
        ({"data": {"bitstring": b"\x01"}, "index": {"index": 16}}, "OUT_OF_RANGE"),
        ({"data": {"bitstring": b"\x01"}, "index": {"index": -1}}, "INVALID_ARGUMENT"),
    ]:
        with refused(code):
            controller.write("MODIFY", register_entry={"register_id": number, **fields})


def test_value_sets(primary, target):
    controller = primary("value_set")
    number = config("value_set").p4info.value_sets[0].preamble.id

    def members(*values):
        return [{"match": [{"field_id": 1, **exact(value)}]} for value in values]

    controller.write("MODIFY", value_set_entry={"value_set_id": number, "members": members(0x22F3, 0x893B)})
    (entry,) = controller.read(value_set_entry={})
    assert [member.match[0].exact.value for member in entry.members] == [short(0x22F3), short(0x893B)]
    assert target.state.parse_vsets[0].get() == [0x22F3, 0x893B]
    for values, code in [((1, 1), "ALREADY_EXISTS"), (range(5), "RESOURCE_EXHAUSTED"), ((1 << 16,), "OUT_OF_RANGE")]:
        with refused(code):
            controller.write("MODIFY", value_set_entry={"value_set_id": number, "members": members(*values)})
    assert controller.read(value_set_entry={"value_set_id": number}) == [entry]
    controller.write("MODIFY", value_set_entry={"value_set_id": number})
    assert target.state.parse_vsets[0].get() == []
