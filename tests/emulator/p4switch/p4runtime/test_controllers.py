"""Arbitration: who is primary, what controllers are told, and what only the primary may do."""

import grpc

from tests.support.p4runtime_controller import config, refused, v1

OK, NOT_FOUND, ALREADY_EXISTS = 0, 5, 6
VERIFY = v1.SetForwardingPipelineConfigRequest.VERIFY


def test_highest_id_is_primary_and_all_are_notified(new_controller):
    low, high = new_controller(1), new_controller(5)
    assert low.arbitrate().status.code == OK
    first = high.arbitrate()
    assert (first.status.code, first.election_id.low) == (OK, 5)
    update = low.stream.next("arbitration")
    assert (update.status.code, update.election_id.low) == (ALREADY_EXISTS, 5)
    with refused("PERMISSION_DENIED"):
        low.push("exact")
    high.push("exact")


def test_backup_takes_over_only_with_as_high_an_id(new_controller):
    backup, primary = new_controller(1), new_controller(5)
    primary.arbitrate()
    assert backup.arbitrate().status.code == ALREADY_EXISTS
    primary.stream.close()
    update = backup.stream.next("arbitration")
    assert (update.status.code, update.election_id.low) == (NOT_FOUND, 5)
    with refused("PERMISSION_DENIED", "no primary"):
        backup.push("exact")
    assert backup.arbitrate(4).status.code == NOT_FOUND
    assert backup.arbitrate(5).status.code == OK
    backup.push("exact")


def test_a_primary_that_steps_down(new_controller):
    controller, other = new_controller(5), new_controller(2)
    controller.arbitrate()
    other.arbitrate()
    assert controller.arbitrate(1).status.code == NOT_FOUND
    assert other.stream.next("arbitration").status.code == NOT_FOUND


def test_a_controller_without_id_is_never_primary(new_controller):
    controller = new_controller(None)
    update = controller.arbitrate()
    assert update.status.code == NOT_FOUND and not update.HasField("election_id")
    with refused("PERMISSION_DENIED"):
        controller.push("exact")


def test_the_same_id_twice(new_controller):
    new_controller(3).arbitrate()
    second = new_controller(3)
    assert second.arbitrate() is None
    assert second.stream.error.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_roles_have_primaries_of_their_own(new_controller):
    one, two = new_controller(1, role="one"), new_controller(1, role="two")
    assert one.arbitrate().role.name == "one"
    assert two.arbitrate().status.code == OK
    one.push("exact")
    two.write("MODIFY", table_entry=two_default(two, one))
    stranger = new_controller(1, role="three")
    with refused("NOT_FOUND", "three"):
        stranger.push("exact")


def two_default(controller, other):
    controller.info = other.info
    return controller.entry("forward", is_default_action=True)


def test_what_ends_a_stream(new_controller):
    codes = []
    for number, change in enumerate([{"device_id": 9}, {"role": {"name": "r", "config": {"type_url": "x"}}}]):
        controller = new_controller(10 + number)
        update = v1.MasterArbitrationUpdate(election_id={"low": 10 + number}, **change)
        controller.stream.send(arbitration=update)
        codes.append(controller.stream.code().name)
    controller = new_controller(20)
    controller.arbitrate()
    controller.stream.send(arbitration={"role": {"name": "other"}, "election_id": {"low": 20}})
    codes.append(controller.stream.code().name)
    assert codes == ["NOT_FOUND", "INVALID_ARGUMENT", "FAILED_PRECONDITION"]


def test_errors_of_a_stream_are_reported_there(new_controller, primary):
    backup = new_controller(0)
    backup.arbitrate()
    backup.stream.send(packet={"payload": b"x"})
    error = backup.stream.next("error")
    assert error.canonical_code == grpc.StatusCode.PERMISSION_DENIED.value[0]
    assert error.packet_out.packet_out.payload == b"x"
    controller = primary("exact")
    controller.stream.send(digest_ack={"digest_id": 7})
    assert controller.stream.next("error").digest_list_ack.digest_list_ack.digest_id == 7


def test_other_devices(new_controller):
    controller = new_controller()
    controller.arbitrate()
    calls = [
        lambda: controller.Write(v1.WriteRequest(device_id=3)),
        lambda: list(controller.Read(v1.ReadRequest(device_id=3))),
        lambda: controller.Capabilities(v1.CapabilitiesRequest(device_id=3)),
        lambda: controller.GetForwardingPipelineConfig(v1.GetForwardingPipelineConfigRequest(device_id=3)),
        lambda: controller.SetForwardingPipelineConfig(
            v1.SetForwardingPipelineConfigRequest(device_id=3, action=VERIFY, config=config("exact"))
        ),
    ]
    for call in calls:
        with refused("NOT_FOUND", "device 3"):
            call()


def test_capabilities(new_controller):
    version = new_controller().Capabilities(v1.CapabilitiesRequest()).p4runtime_api_version
    assert len(version.split(".")) == 3
