"""SetForwardingPipelineConfig and GetForwardingPipelineConfig."""

import contextlib
import json

import grpc
import pytest

from emulator.p4switch.p4runtime.server import P4RuntimeServer
from switchml.errors import ConfigError
from tests.support.p4runtime_controller import PATHS, config, exact, refused, v1
from tests.support.p4runtime_seeds import SEEDS

Set = v1.SetForwardingPipelineConfigRequest
Get = v1.GetForwardingPipelineConfigRequest
FRAME = bytes.fromhex("000000000001 000000000002 0800") + bytes(50)


def stations(controller, port):
    return controller.entry("stations", {1: exact(1)}, controller.action("send", port))


def get(controller, kind=Get.ALL):
    return controller.GetForwardingPipelineConfig(Get(response_type=kind))


def set_config(controller, action, pipeline_config=None):
    controller.SetForwardingPipelineConfig(controller._sign(Set(action=action, config=pipeline_config)))


def test_nothing_before_a_config(new_controller):
    controller = new_controller()
    controller.arbitrate()
    assert not get(controller).HasField("config")
    with refused("FAILED_PRECONDITION"):
        controller.read(table_entry={})
    with refused("FAILED_PRECONDITION"):
        controller.write("INSERT", table_entry={})


def test_what_was_set_can_be_read(primary):
    controller = primary("exact")
    controller.push("exact", cookie=77)
    whole = get(controller).config
    assert whole == config("exact", 77)
    cookie = get(controller, Get.COOKIE_ONLY).config
    assert (cookie.cookie.cookie, cookie.HasField("p4info"), cookie.p4_device_config) == (77, False, b"")
    assert get(controller, Get.P4INFO_AND_COOKIE).config.p4info == whole.p4info
    device = get(controller, Get.DEVICE_CONFIG_AND_COOKIE).config
    assert device.p4_device_config == whole.p4_device_config and not device.HasField("p4info")


def test_verify_changes_nothing(primary, target):
    controller = primary("exact")
    before = target.state
    controller.push("lpm", "VERIFY")
    assert target.state is before
    assert get(controller).config == config("exact")


def test_save_then_commit(primary, target):
    controller = primary("exact")
    before = target.state
    controller.push("timeouts", "VERIFY_AND_SAVE")
    assert target.state is before
    controller.write("INSERT", table_entry=stations(controller, 3))  # goes to what was saved
    assert target.receive(1, FRAME) == [] or target.receive(1, FRAME)[0][0] != 3
    set_config(controller, Set.COMMIT)
    assert target.receive(1, FRAME) == [(3, FRAME)]
    with refused("NOT_FOUND"):
        set_config(controller, Set.COMMIT)
    with refused("INVALID_ARGUMENT"):
        set_config(controller, Set.COMMIT, config("exact"))


def test_commit_clears_and_reconcile_keeps(primary, target):
    controller = primary("timeouts")
    controller.write("INSERT", table_entry=stations(controller, 3))
    controller.push("timeouts", "RECONCILE_AND_COMMIT")
    assert target.receive(1, FRAME) == [(3, FRAME)]
    controller.push("timeouts")
    assert controller.read(table_entry={}) == []


@pytest.mark.parametrize("name", SEEDS)
def test_reconcile_keeps_entities_of_every_sort(primary, name):
    controller = primary(name)
    for entity in SEEDS[name](controller):
        with contextlib.suppress(grpc.RpcError):  # the second of two that exclude each other
            controller.write("MODIFY" if {"counter_entry", "meter_entry"} & entity.keys() else "INSERT", **entity)

    def everything():
        patterns = [{"table_entry": {"counter_data": {}}}, {"counter_entry": {}}, {"register_entry": {}},
                    {"meter_entry": {}}, {"action_profile_member": {}}, {"action_profile_group": {}},
                    {"value_set_entry": {}}, {"digest_entry": {}},
                    {"packet_replication_engine_entry": {"multicast_group_entry": {}}},
                    {"packet_replication_engine_entry": {"clone_session_entry": {}}}]  # fmt: skip
        return [controller.read(**pattern) for pattern in patterns]

    before = everything()
    controller.push(name, "RECONCILE_AND_COMMIT")
    assert everything() == before and any(before)


def test_reconcile_with_what_does_not_fit(primary, target):
    controller = primary("timeouts")
    controller.write("INSERT", table_entry=stations(controller, 3))
    with refused("INVALID_ARGUMENT", "can't be transferred"):
        controller.push("exact", "RECONCILE_AND_COMMIT")
    assert target.receive(1, FRAME) == [(3, FRAME)]


def test_older_controllers_wrap_the_json(primary, target):
    """As p4.tmp.P4DeviceConfig: reassign (1), extras (2), device_data (3)."""
    controller = primary("exact")
    pipeline_config = config("timeouts")
    data = pipeline_config.p4_device_config
    size = bytes([len(data) & 0x7F | 0x80, len(data) >> 7 & 0x7F | 0x80, len(data) >> 14])
    pipeline_config.p4_device_config = b"\x08\x01\x1a" + size + data
    set_config(controller, Set.VERIFY_AND_COMMIT, pipeline_config)
    assert [table.name for table in target.state.tables if table.table.key] == ["MyIngress.stations"]


def test_bad_configs(primary, target):
    controller = primary("exact")
    broken = config("exact")
    tables = json.loads(broken.p4_device_config)
    tables["pipelines"][0]["init_table"] = "nowhere"
    for device_config in (b"", b"{", b"\xff\xfe", b"{}", json.dumps(tables).encode(), b"[" * 100000):
        broken.p4_device_config = device_config
        with refused("INVALID_ARGUMENT", "p4_device_config"):
            set_config(controller, Set.VERIFY_AND_COMMIT, broken)
    other = config("exact")
    other.p4_device_config = PATHS["lpm"].read_bytes()
    with refused("INVALID_ARGUMENT", "not that of the BMv2 JSON"):
        set_config(controller, Set.VERIFY, other)
    wide = config("exact")
    wide.p4info.tables[0].match_fields[0].bitwidth += 1
    with refused("INVALID_ARGUMENT", "bits in the BMv2 JSON"):
        set_config(controller, Set.VERIFY, wide)
    for action in (Set.VERIFY, Set.VERIFY_AND_COMMIT, Set.RECONCILE_AND_COMMIT, Set.UNSPECIFIED, 99):
        with refused("INVALID_ARGUMENT"):
            set_config(controller, action)
    assert get(controller).config == config("exact")


def test_a_program_that_came_through_thrift_has_no_p4info(primary, target):
    controller = primary("exact")
    target.device.switch.load(target.device.switch.program)
    with refused("FAILED_PRECONDITION"):
        controller.read(table_entry={})
    assert not get(controller).HasField("config")


def test_swap_can_be_disabled(primary, target):
    controller = primary("exact")
    target.device.can_swap = False
    with refused("FAILED_PRECONDITION", "--disable-swap"):
        controller.push("lpm")


@pytest.mark.parametrize("place", ["taken", "nowhere:nothing"])
def test_an_address_that_can_not_be_had(target, place):
    with pytest.raises(ConfigError, match="can't listen on"):
        P4RuntimeServer(target.device, target.address if place == "taken" else place)


def test_bytes_that_are_no_message(primary):
    controller = primary("exact")
    call = controller.channel.unary_unary("/p4.v1.P4Runtime/Write")
    with pytest.raises(grpc.RpcError):
        call(b"\xff\xff\xff\xff")
    with pytest.raises(grpc.RpcError) as failed:
        controller.channel.unary_unary("/p4.v1.P4Runtime/Nothing")(b"")
    assert failed.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert controller.read(table_entry={})
