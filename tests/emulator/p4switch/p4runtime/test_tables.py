"""Table entries: every kind of match, what is refused, default and const entries, reads that choose, batches."""

import time

import grpc
import pytest

from tests.support.p4runtime_controller import exact, refused, short, update_errors, v1


def lpm(value, length):
    return {"lpm": {"value": short(value), "prefix_len": length}}


def ternary(value, mask):
    return {"ternary": {"value": short(value), "mask": short(mask)}}


def within(low, high):
    return {"range": {"low": short(low), "high": short(high)}}


def optional(value):
    return {"optional": {"value": short(value)}}


def insert(controller, *args, **fields):
    entry = controller.entry(*args, **fields)
    controller.write("INSERT", table_entry=entry)
    return entry


def entries_of(controller, table, **fields):
    return controller.read(table_entry={"table_id": controller.id("tables", table), **fields})


@pytest.mark.parametrize(("program", "table", "match", "action", "args", "priority"), [
    ("exact", "forward", {1: exact(0x112233445566), 2: exact(5)}, "rewrite", (3, 0xAABB, 7), 0),
    ("lpm", "v4", {1: exact(0), 2: lpm(0x0A000000, 8)}, "send", (2,), 0),
    ("lpm", "v4", {1: exact(1)}, "send", (2,), 0),
    ("lpm", "v6", {1: lpm(0x20010DB8 << 96, 33)}, "mark", (1,), 0),
    ("lpm", "odd", {1: lpm(0xABC, 12)}, "mark", (1,), 0),
    ("lpm", "odd", {1: lpm(0xA00, 5)}, "mark", (1,), 0),
    ("ternary", "rules", {1: ternary(0x0A000000, 0xFF000000), 2: ternary(1, 0x1001)}, "rule", (9,), 10),
    ("ternary", "rules", {2: ternary(0, 0x1FFF)}, "rule", (9,), 2**31 - 1),
    ("ternary", "rules", {}, "drop", (), 1),
    ("range", "by_port", {1: exact(0x800), 2: within(1024, 65535)}, "send", (1,), 3),
    ("range", "by_port", {1: exact(0x800)}, "send", (1,), 3),
    ("optional", "pairs", {1: optional(0)}, "found", (300,), 4),
    ("optional", "pairs", {1: optional(0x1234), 2: optional(1)}, "found", (0,), 4),
    (
        "mixed_keys",
        "rules",
        {1: exact(1), 2: exact(0), 3: exact(7), 4: ternary(1, 1), 5: within(0, 9)},
        "rule",
        (1,),
        2,
    ),
])  # fmt: skip
def test_what_was_written_is_read(primary, program, table, match, action, args, priority):
    controller = primary(program)
    entry = insert(controller, table, match, controller.action(action, *args), priority=priority)
    assert entries_of(controller, table) == [entry]
    assert entry in controller.read(table_entry={})
    assert entries_of(controller, table, match=entry.match, priority=priority) == [entry]
    with refused("ALREADY_EXISTS"):
        insert(controller, table, match, controller.action(action, *args), priority=priority)
    entry.metadata, entry.controller_metadata = b"cookie", 12
    controller.write("MODIFY", table_entry=entry)
    assert entries_of(controller, table) == [entry]
    bare = controller.entry(table, match, priority=priority)
    controller.write("DELETE", table_entry=bare)
    assert entries_of(controller, table) == []
    for kind in ("MODIFY", "DELETE"):
        with refused("NOT_FOUND"):
            controller.write(kind, table_entry=entry)


ETHERNET = bytes.fromhex("000000000001 000000000002 0800")


def test_prefixes_of_odd_widths_cover_what_they_say(primary, target):
    """BMv2 counts the padding of a 12-bit field; P4Runtime does not."""
    controller = primary("lpm")
    insert(controller, "odd", {1: lpm(0xAB8, 9)}, controller.action("mark", 5))
    (table,) = [table for table in target.state.tables if table.name == "MyIngress.odd"]
    assert [table.lookup([value]) is not None for value in (0xAB8, 0xABF, 0xAB7, 0xAC0)] == [True, True, False, False]


def test_the_highest_priority_wins(primary, target):
    controller = primary("ternary")
    insert(controller, "rules", {1: ternary(1, 1)}, controller.action("rule", 1), priority=10)
    insert(controller, "rules", {2: ternary(1, 1)}, controller.action("rule", 2), priority=20)
    (table,) = [table for table in target.state.tables if table.name == "MyIngress.rules"]
    assert table.lookup([1, 1]).target.args == (2,)
    # BMv2's own server turns priorities round like this, so that Thrift's clients see the same.
    assert sorted(entry.priority for entry in table.all_entries()) == [2**31 - 1 - 20, 2**31 - 1 - 10]


@pytest.mark.parametrize(("program", "table", "match", "priority", "code", "word"), [
    ("exact", "forward", {1: exact(1)}, 0, "INVALID_ARGUMENT", "left out"),
    ("exact", "forward", {1: exact(1), 2: exact(4096)}, 0, "OUT_OF_RANGE", "12 bits"),
    ("exact", "forward", {1: exact(1), 2: {"exact": {"value": b""}}}, 0, "OUT_OF_RANGE", "empty"),
    ("exact", "forward", {1: exact(1), 2: exact(1)}, 5, "INVALID_ARGUMENT", "priorities"),
    ("exact", "forward", {1: exact(1), 2: ternary(1, 1)}, 0, "INVALID_ARGUMENT", "matches by exact"),
    ("exact", "forward", {1: exact(1), 2: {}}, 0, "INVALID_ARGUMENT", "matches by exact"),
    ("exact", "forward", {1: exact(1), 2: exact(1), 3: exact(1)}, 0, "INVALID_ARGUMENT", "no field 3"),
    ("lpm", "v4", {1: exact(1), 2: lpm(0x0A000001, 8)}, 0, "INVALID_ARGUMENT", "beyond its prefix"),
    ("lpm", "v4", {1: exact(1), 2: lpm(0, 0)}, 0, "INVALID_ARGUMENT", "left out"),
    ("lpm", "v4", {1: exact(1), 2: lpm(0, 33)}, 0, "INVALID_ARGUMENT", "prefix of 33"),
    ("ternary", "rules", {1: ternary(3, 1)}, 1, "INVALID_ARGUMENT", "outside its mask"),
    ("ternary", "rules", {1: ternary(0, 0)}, 1, "INVALID_ARGUMENT", "left out"),
    ("ternary", "rules", {1: ternary(1, 1)}, 0, "INVALID_ARGUMENT", "priority"),
    ("ternary", "rules", {1: ternary(1, 1)}, -1, "INVALID_ARGUMENT", "priority"),
    ("range", "by_port", {1: exact(1), 2: within(9, 8)}, 1, "INVALID_ARGUMENT", "empty"),
    ("range", "by_port", {1: exact(1), 2: within(0, 65535)}, 1, "INVALID_ARGUMENT", "left out"),
])  # fmt: skip
def test_bad_keys(primary, program, table, match, priority, code, word):
    controller = primary(program)
    action = {"exact": ("send", 1), "lpm": ("send", 1), "ternary": ("rule", 1), "range": ("send", 1)}[program]
    with refused(code, word):
        insert(controller, table, match, controller.action(*action), priority=priority)
    assert entries_of(controller, table) == []


def test_bad_actions(primary):
    controller = primary("exact")
    match = {1: exact(1), 2: exact(1)}
    send = controller.action("send", 1)
    for action, code, word in [
        (controller.action("set_kind", 1), "INVALID_ARGUMENT", "has no action"),
        (v1.Action(action_id=5), "INVALID_ARGUMENT", "has no action"),
        (controller.action("send"), "INVALID_ARGUMENT", "parameters"),
        (controller.action("send", 1, 2), "INVALID_ARGUMENT", "parameters"),
        (controller.action("send", 512), "OUT_OF_RANGE", "9 bits"),
        (v1.TableAction(action_profile_member_id=1), "INVALID_ARGUMENT", "takes actions"),
        (None, "INVALID_ARGUMENT", "needs an action"),
    ]:
        with refused(code, word):
            insert(controller, "forward", match, action)
    for fields, word in [
        ({"is_const": True}, "is_const"),
        ({"idle_timeout_ns": 1}, "do not age"),
        ({"counter_data": {}}, "no direct counter"),
    ]:
        with refused("INVALID_ARGUMENT", word):
            insert(controller, "forward", match, send, **fields)
    for kind, entity, code in [
        ("INSERT", {"table_entry": {"table_id": 99}}, "INVALID_ARGUMENT"),
        ("INSERT", {"table_entry": {}}, "INVALID_ARGUMENT"),
        ("UNSPECIFIED", {"table_entry": controller.entry("forward", match, send)}, "INVALID_ARGUMENT"),
        ("INSERT", {}, "INVALID_ARGUMENT"),
        ("INSERT", {"extern_entry": {}}, "UNIMPLEMENTED"),
    ]:
        with refused(code):
            controller.write(kind, **entity)
    assert entries_of(controller, "forward") == []


def test_full_table(primary, target):
    controller = primary("timeouts")
    size = next(table.size for table in target.state.tables if table.table.key)
    action = controller.action("send", 1)
    controller.write_all(
        [
            controller.update("INSERT", table_entry=controller.entry("stations", {1: exact(n)}, action))
            for n in range(size)
        ]
    )
    with refused("RESOURCE_EXHAUSTED", str(size)):
        insert(controller, "stations", {1: exact(size)}, action)
    assert len(entries_of(controller, "stations")) == size


def test_default_entry(primary):
    controller = primary("exact")
    (before,) = entries_of(controller, "forward", is_default_action=True)
    assert before.is_default_action and before.action.action.action_id
    entry = controller.entry("forward", None, controller.action("send", 4), is_default_action=True)
    controller.write("MODIFY", table_entry=entry)
    assert entries_of(controller, "forward", is_default_action=True) == [entry]
    assert entries_of(controller, "forward") == []
    controller.write("MODIFY", table_entry=controller.entry("forward", is_default_action=True))
    assert entries_of(controller, "forward", is_default_action=True) == [before]
    for kind in ("INSERT", "DELETE"):
        with refused("INVALID_ARGUMENT", "only be modified"):
            controller.write(kind, table_entry=entry)
    entry.priority = 1
    with refused("INVALID_ARGUMENT"):
        controller.write("MODIFY", table_entry=entry)
    with refused("PERMISSION_DENIED", "const"):
        controller.write("MODIFY", table_entry=controller.entry("kinds", is_default_action=True))


def test_const_entries(primary):
    controller = primary("ternary")
    entries = entries_of(controller, "colours")
    assert [entry.priority for entry in entries] == [4, 3, 2, 1]  # as p4c numbers them
    assert all(entry.is_const for entry in entries)
    for kind in ("INSERT", "MODIFY", "DELETE"):
        entry = v1.TableEntry.FromString(entries[0].SerializeToString())
        entry.is_const = False
        with refused("PERMISSION_DENIED"):
            controller.write(kind, table_entry=entry)
    assert entries_of(controller, "colours") == entries


def test_reads_that_choose(primary):
    controller = primary("ternary")
    one = insert(controller, "rules", {1: ternary(1, 1)}, controller.action("rule", 1), priority=7, metadata=b"a")
    two = insert(controller, "rules", {1: ternary(1, 1)}, controller.action("drop"), priority=8, controller_metadata=3)
    three = insert(controller, "rules", {}, controller.action("rule", 2), priority=8)
    assert entries_of(controller, "rules", priority=8) == [two, three]
    assert entries_of(controller, "rules", match=one.match) == [one, two]
    assert entries_of(controller, "rules", metadata=b"a") == [one]
    assert entries_of(controller, "rules", controller_metadata=3) == [two]
    drop = {"action": {"action_id": controller.id("actions", "drop")}}
    assert entries_of(controller, "rules", action=drop) == [two]
    assert entries_of(controller, "rules", match=controller.entry("rules", {2: ternary(1, 1)}).match, priority=1) == []
    with refused("INVALID_ARGUMENT", "which entity"):
        list(controller.Read(v1.ReadRequest(entities=[v1.Entity()])))
    with refused("INVALID_ARGUMENT"):
        controller.read(table_entry={"table_id": 4})


def test_a_batch_goes_on_after_an_error(primary):
    controller = primary("exact")
    send = controller.action("send", 1)
    entries = [controller.entry("forward", {1: exact(n), 2: exact(1)}, send) for n in (1, 1, 2)]
    with pytest.raises(grpc.RpcError) as failed:
        controller.write_all([controller.update("INSERT", table_entry=entry) for entry in entries])
    assert failed.value.code() == grpc.StatusCode.UNKNOWN
    codes = [error.canonical_code for error in update_errors(failed.value)]
    assert codes == [0, grpc.StatusCode.ALREADY_EXISTS.value[0], 0]
    assert entries_of(controller, "forward") == [entries[0], entries[2]]


@pytest.mark.parametrize("atomicity", ["ROLLBACK_ON_ERROR", "DATAPLANE_ATOMIC"])
def test_a_batch_that_is_undone(primary, atomicity):
    controller = primary("exact")
    unchanged = insert(controller, "forward", {1: exact(1), 2: exact(1)}, controller.action("send", 1), metadata=b"old")
    deleted = insert(controller, "forward", {1: exact(2), 2: exact(1)}, controller.action("send", 2))
    default = entries_of(controller, "forward", is_default_action=True)
    changed = controller.entry("forward", {1: exact(1), 2: exact(1)}, controller.action("drop"))
    updates = [
        controller.update("MODIFY", table_entry=changed),
        controller.update("DELETE", table_entry=deleted),
        controller.update(
            "MODIFY", table_entry=controller.entry("forward", None, controller.action("drop"), is_default_action=True)
        ),
        controller.update(
            "INSERT", table_entry=controller.entry("forward", {1: exact(3), 2: exact(1)}, changed.action)
        ),
    ]
    bad = controller.update("INSERT", table_entry=changed)
    with pytest.raises(grpc.RpcError) as failed:
        controller.write_all([*updates, bad, *updates], atomicity)
    codes = [error.canonical_code for error in update_errors(failed.value)]
    aborted, exists = grpc.StatusCode.ABORTED.value[0], grpc.StatusCode.ALREADY_EXISTS.value[0]
    assert codes == [aborted] * 4 + [exists] + [aborted] * 4
    assert sorted(entries_of(controller, "forward"), key=str) == sorted([unchanged, deleted], key=str)
    assert entries_of(controller, "forward", is_default_action=True) == default
    controller.write_all(updates, atomicity)
    assert len(entries_of(controller, "forward")) == 2


def test_large_reads_come_in_parts(primary):
    controller = primary("agg_wide_64")
    number = controller.id("registers", "sum_w0")
    controller.write("MODIFY", register_entry={"register_id": number, "data": {"bitstring": b"\xff" * 256}})
    patterns = [v1.Entity(register_entry={"register_id": number}) for _ in range(30)]
    responses = list(controller.Read(v1.ReadRequest(entities=patterns)))
    assert len(responses) > 1 and all(response.ByteSize() < 4 << 20 for response in responses)
    values = {entity.register_entry.data.bitstring for response in responses for entity in response.entities}
    assert values == {b"\xff" * 256}


def test_idle_timeouts(primary, target):
    controller = primary("timeouts")
    idle = insert(
        controller, "stations", {1: exact(1)}, controller.action("send", 1), idle_timeout_ns=30_000_000, metadata=b"m"
    )
    insert(controller, "stations", {1: exact(2)}, controller.action("send", 1))
    note = controller.stream.next("idle_timeout_notification")
    assert list(note.table_entry) == [idle] and abs(note.timestamp - time.time_ns()) < 60e9
    for _ in range(2):  # again after each further time-out
        assert list(controller.stream.next("idle_timeout_notification").table_entry) == [idle]
    target.receive(1, ETHERNET + bytes(50))  # a hit, so that it is idle anew later
    assert list(controller.stream.next("idle_timeout_notification").table_entry) == [idle]
    (one,) = entries_of(controller, "stations", match=idle.match, time_since_last_hit={})
    assert one.time_since_last_hit.elapsed_ns >= 0 and one.idle_timeout_ns == 30_000_000
    with refused("INVALID_ARGUMENT"):
        insert(controller, "stations", {1: exact(3)}, controller.action("send", 1), idle_timeout_ns=-1)
