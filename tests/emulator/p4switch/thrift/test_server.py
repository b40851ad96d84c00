"""What the Thrift server answers, and that nothing a client sends ends it."""

import hashlib
import json
import logging
import random
import socket
import struct
from types import SimpleNamespace

import pytest

from emulator.p4switch import snapshot
from emulator.p4switch.state.action_profiles import RunAction
from emulator.p4switch.state.tables import MatchTable
from switchml import logs
from switchml.control.thrift.client import Client
from switchml.control.thrift.idl import interface
from switchml.control.thrift.protocol import MAX_BYTES, VERSION_1
from switchml.errors import ConfigError, ControlError


def exact(*values: bytes) -> list[SimpleNamespace]:
    return [SimpleNamespace(type=0, exact=SimpleNamespace(key=value)) for value in values]


def test_calls_change_the_state(serve):
    device, _ = serve("exact")
    client = serve.client()
    handle = client.call(
        "standard", "bm_mt_add_entry", cxt=0, table="MyIngress.forward", match=exact(bytes(5) + b"\1", b"\1\x23"),
        action="MyIngress.send", data=[b"\0\3"], options=SimpleNamespace(),
    )  # fmt: skip
    (entry,) = device.state.table("MyIngress.forward").all_entries()
    assert (entry.handle, [param.value for param in entry.match], entry.target.args) == (handle, [1, 0x123], (3,))
    (listed,) = client.call("standard", "bm_mt_get_entries", cxt=0, table="MyIngress.forward")
    assert listed.entry_handle == handle
    assert listed.match_key[1].exact.key == b"\1\x23"
    assert listed.action_entry.action_name == "MyIngress.send"
    assert listed.options.priority == -1
    assert listed.life is None


def test_what_simple_switch_answers_to_numbers_out_of_range(serve):
    """Worked out from BMv2's sources: exceptions that it does not catch reach the client with their C++ text."""
    device, _ = serve("action_profile")
    client = serve.client()

    def refusal(service, name, **arguments):
        with pytest.raises(ControlError) as caught:
            client.call(service, name, **arguments)
        return caught.value.code, str(caught.value)

    profile = device.state.action_profiles[0].name
    assert client.call("standard", "bm_mt_act_prof_get_groups", cxt=0, profile=profile) == []
    assert client.call("standard", "bm_mt_act_prof_get_members", cxt=0, profile="none") == []
    assert refusal("standard", "bm_mt_act_prof_get_group", cxt=0, profile=profile, group=0)[0] == "INVALID_GRP_HANDLE"

    def pre(name, **arguments):
        return client.call("simple_pre_lag", name, cxt=0, **arguments)

    assert pre("bm_mc_mgrp_create", mgid=-1) == -1
    pre("bm_mc_mgrp_destroy", group=-1)
    node = pre("bm_mc_node_create", rid=-1, ports="1" + "0" * 600, lags="")
    code, _ = refusal("simple_pre_lag", "bm_mc_node_associate", cxt=0, group=-1, node=node)
    assert code == "INVALID_MGRP_HANDLE"
    entries = json.loads(pre("bm_mc_get_entries"))
    assert entries["mgrps"] == [{"id": 4294967295, "l1_handles": []}]
    assert (entries["l1_handles"][0]["rid"], entries["l2_handles"][0]["ports"]) == (4294967295, [511])
    arguments = {"cxt": 0, "rid": 0, "ports": "12", "lags": ""}
    assert "bitset::_M_copy_from_ptr" in refusal("simple_pre_lag", "bm_mc_node_create", **arguments)[1]
    pre("bm_mc_set_lag_membership", lag=256, ports="1")
    assert refusal("simple_pre_lag", "bm_mc_set_lag_membership", cxt=0, lag=257, ports="1")[0] == "ERROR"

    arguments = {"port": 1, "priority": -1, "depth": 10}
    text = refusal("simple_switch", "set_egress_priority_queue_depth", **arguments)[1]
    assert "vector::_M_range_check: __n (which is 18446744073709551615) >= this->size() (which is 1)" in text
    client.call("simple_switch", "set_egress_queue_depth", port=1, depth=-1)
    client.call("simple_switch", "set_all_egress_queue_rates", rate_pps=-1)
    assert (device.state.queues.depth(1), device.state.queues.rate(1)) == (4294967295, 0)


def test_another_program_is_loaded_during_a_call(serve, program, monkeypatch):
    """The answer is the one of the program that ran when the call came."""
    device, _ = serve("ternary")
    get_default = MatchTable.get_default

    def load_and_get(table):
        device.switch.load(program("exact"))
        return get_default(table)

    table, action = device.state.table("MyIngress.rules"), len(device.state.program.actions) - 1
    assert program("exact").actions[action].name != device.state.program.actions[action].name
    table.default = RunAction(action)
    expected = device.state.program.actions[action].name
    monkeypatch.setattr(MatchTable, "get_default", load_and_get)
    entry = serve.client().call("standard", "bm_mt_get_default_entry", cxt=0, table=table.name)
    assert entry.action_name == expected


def test_the_program_and_its_md5(serve):
    device, _ = serve("l3")
    client = serve.client()
    text = client.call("standard", "bm_get_config")
    assert text == device.state.program.text
    assert client.call("standard", "bm_get_config_md5") == hashlib.md5(text.encode()).digest()
    assert client.call("standard", "bm_get_id_from_name", sort=0, name="MyIngress.routes") == 0


def test_registers_beyond_63_bits_read_as_the_largest_number(serve):
    device, _ = serve("registers")
    wides, client = device.state.register("MyIngress.wides"), serve.client()
    values = {0: (7 << 64) + 5, 1: 1 << 63, 2: (1 << 63) - 1, 3: 12}
    for index, value in values.items():
        wides.write(index, value)
    expected = [2**63 - 1, 2**63 - 1, 2**63 - 1, 12]
    name = "MyIngress.wides"
    assert [client.call("standard", "bm_register_read", cxt=0, array=name, index=i) for i in values] == expected
    assert client.call("standard", "bm_register_read_all", cxt=0, array=name)[:4] == expected


OF_SIMPLE_TABLES = (
    ("bm_mt_add_entry", {"match": [], "action": "x"}), ("bm_mt_modify_entry", {"entry": 77, "action": "x"}),
    ("bm_mt_delete_entry", {"entry": 77}), ("bm_mt_set_default_action", {"action": "x"}),
    ("bm_mt_reset_default_entry", {}),
)  # fmt: skip
OF_PROFILES = (
    ("bm_mt_indirect_add_entry", {"match": [], "member": 7}), ("bm_mt_indirect_delete_entry", {"entry": 77}),
    ("bm_mt_indirect_modify_entry", {"entry": 77, "member": 7}),
    ("bm_mt_indirect_set_default_member", {"member": 7}), ("bm_mt_indirect_reset_default_entry", {}),
)  # fmt: skip
OF_SELECTORS = (
    ("bm_mt_indirect_ws_add_entry", {"match": [], "group": 7}),
    ("bm_mt_indirect_ws_modify_entry", {"entry": 77, "group": 7}),
    ("bm_mt_indirect_ws_set_default_group", {"group": 7}),
)


@pytest.mark.parametrize(("name", "table", "calls"), [
    ("action_profile", "MyIngress.flows", OF_SIMPLE_TABLES + OF_SELECTORS),
    ("exact", "MyIngress.forward", OF_PROFILES + OF_SELECTORS),
])  # fmt: skip
def test_the_type_of_a_table_is_looked_at_first(serve, name, table, calls):
    device, _ = serve(name)
    client = serve.client()
    before = device.serialize()
    for call, arguments in calls:
        with pytest.raises(ControlError) as caught:
            client.call("standard", call, cxt=0, table=table, **arguments)
        assert caught.value.code == "WRONG_TABLE_TYPE", call
    assert device.serialize() == before


def test_a_mirroring_session_out_of_range_is_only_logged(serve, caplog):
    device, _ = serve("exact")
    client = serve.client()
    client.call("simple_switch", "mirroring_session_add", session=40000, config=SimpleNamespace(port=1))
    assert client.call("simple_switch", "mirroring_mapping_add", session=32768, port=1) == 0
    assert not device.state.mirroring.sessions
    assert "40000" in caplog.text and "32768" in caplog.text


def test_const_entries_can_be_cleared_but_not_changed(serve):
    device, _ = serve("ternary")
    client = serve.client()
    table = next(candidate for candidate in device.state.tables if candidate.is_immutable and len(candidate))
    with pytest.raises(ControlError, match="IMMUTABLE"):
        client.call("standard", "bm_mt_delete_entry", cxt=0, table=table.name, entry=table.all_entries()[0].handle)
    client.call("standard", "bm_mt_clear_entries", cxt=0, table=table.name, reset_default=False)
    assert client.call("standard", "bm_mt_get_entries", cxt=0, table=table.name) == []
    saved = device.serialize()
    device.switch.load(device.state.program)
    table = device.state.table(table.name)
    assert len(table)
    client.call("standard", "bm_reset_state")
    assert not len(table)
    device.switch.load(device.state.program)
    snapshot.restore(device.state, saved)
    assert not len(device.state.table(table.name))


@pytest.mark.parametrize(("service", "name", "arguments", "operation", "code"), [
    ("standard", "bm_mt_get_num_entries", {"table": "x"}, "Table", "INVALID_TABLE_NAME"),
    ("standard", "bm_mt_add_entry", {"table": "MyIngress.forward", "match": []}, "Table", "INVALID_ACTION_NAME"),
    ("standard", "bm_counter_read", {"counter": "x"}, "Counter", "INVALID_COUNTER_NAME"),
    ("standard", "bm_learning_ack_buffer", {"list_id": 5}, "Learn", "INVALID_LIST_ID"),
    ("standard", "bm_dev_mgr_remove_port", {"port": 5}, "DevMgr", "ERROR"),
    ("standard", "bm_get_id_from_name", {"sort": 0, "name": "x"}, "IdLookup", "INVALID_RESOURCE_NAME"),
    ("standard", "bm_get_id_from_name", {"sort": 77, "name": "x"}, "IdLookup", "INVALID_RESOURCE_TYPE"),
    ("simple_pre", "bm_mc_node_create", {"rid": 1, "ports": "012"}, "Thrift", "ERROR"),
    ("simple_switch", "mirroring_session_get", {"session": 3}, "Mirroring", "SESSION_NOT_FOUND"),
])  # fmt: skip
def test_refusals(serve, service, name, arguments, operation, code):
    serve("exact")
    with pytest.raises(ControlError) as caught:
        serve.client().call(service, name, **arguments)
    assert (caught.value.operation, caught.value.code) == (operation, code)


@pytest.mark.parametrize("size", [0, 5, 7])
def test_a_key_of_the_wrong_size_is_refused(serve, size):
    serve("exact")
    with pytest.raises(ControlError, match="BAD_MATCH_KEY"):
        serve.client().call(
            "standard", "bm_mt_add_entry", table="MyIngress.forward", match=exact(bytes(size), b"\1\x23"),
            action="MyIngress.send", data=[b"\3"],
        )  # fmt: skip


def test_every_call_has_an_answer(serve):
    """Each call with nothing but defaults gives a result or a refusal, and never an error inside the server."""
    for service, calls in interface().services.items():
        serve("exact", can_swap=False)
        client = serve.client()
        for name in calls:
            try:
                client.call(service, name)
            except ControlError as error:
                assert error.operation != "Thrift", f"{name}: {error}"


def test_unknown_calls_are_answered(serve):
    _, server = serve("exact")
    with socket.create_connection(("127.0.0.1", server.port), 5) as sock:
        for name in (b"standard:nonsense", b"nonsense:bm_reset_state"):
            sock.sendall(struct.pack(">II", VERSION_1 | 1, len(name)) + name + struct.pack(">i", 1) + b"\0")
            reply = sock.recv(1000)
            assert reply[3] == 3  # an exception
            assert b"there is no call" in reply


def test_garbage_closes_only_its_own_connection(serve):
    device, server = serve("exact")
    client = serve.client()
    source = random.Random(1)
    good = b"standard:bm_mt_get_entries"
    start = struct.pack(">II", VERSION_1 | 1, len(good)) + good + struct.pack(">i", 1)
    for number in range(60):
        noise = source.randbytes(source.randrange(1, 200))
        kinds = [noise, start + noise, struct.pack(">Ii", VERSION_1 | 1, MAX_BYTES + 1), start + b"\x0c\0\7" * 50]
        with socket.create_connection(("127.0.0.1", server.port), 5) as sock:
            sock.sendall(kinds[number % len(kinds)])
    assert client.call("standard", "bm_mt_get_num_entries", cxt=0, table="MyIngress.forward") == 0


def test_a_port_in_use(serve):
    from emulator.p4switch.thrift.server import ThriftServer

    device, server = serve("exact")
    with pytest.raises(ConfigError, match=f"can't listen on port {server.port}"):
        ThriftServer(device, server.port, "127.0.0.1")


def test_a_unix_socket(serve, tmp_path):
    """It is its owner's alone; one that was left behind is replaced, one in use and a file are not."""
    from emulator.p4switch.thrift.server import ThriftServer

    device, _ = serve("registers")
    path = str(tmp_path / "thrift")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left_behind:
        left_behind.bind(path)
    server = ThriftServer(device, path=path)
    try:
        assert (tmp_path / "thrift").stat().st_mode & 0o777 == 0o600 and server.port == 0
        with Client(path) as client:
            client.call("standard", "bm_register_write", cxt=0, array="MyIngress.sums", index=1, value=5)
            assert client.call("standard", "bm_register_read", cxt=0, array="MyIngress.sums", index=1) == 5
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(path)
            sock.sendall(b"garbage that is no call")
            assert sock.recv(100) == b""
        with pytest.raises(ConfigError, match="can't listen on .*/thrift for Thrift: .*is another switch running?"):
            ThriftServer(device, path=path)
    finally:
        server.close()
    assert not (tmp_path / "thrift").exists()
    with pytest.raises(FileNotFoundError):
        Client(path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="can't listen on .*/file for Thrift"):
        ThriftServer(device, path=str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(ConfigError, match="path too long"):
        ThriftServer(device, path=str(tmp_path / ("x" * 200)))


@pytest.mark.parametrize(("address", "reached"), [("127.0.0.1", ("127.0.0.1",)), ("::", ("127.0.0.1", "::1"))])
def test_addresses(serve, address, reached):
    """One address, or all of the machine."""
    from emulator.p4switch.thrift.server import ThriftServer

    device, _ = serve("registers")
    try:
        server = ThriftServer(device, 0, address)
    except ConfigError as error:
        pytest.skip(str(error))  # no IPv6
    try:
        for host in reached:
            with Client(host, server.port) as client:
                assert client.call("standard", "bm_dev_mgr_show_ports") == []
    finally:
        server.close()


def test_broken_messages_leave_one_line_in_the_log(serve, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("switchml.bmv2"), "filters", [logs.Limit()])
    _, server = serve("exact")
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port)) as link:
            link.sendall(b"\xff" * 8)
            assert link.recv(1) == b""
    assert [line for line in caplog.messages if "Closing the Thrift connection" in line] == caplog.messages[:1]
