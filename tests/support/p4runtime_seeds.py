"""Entities that programs of tests/programs take, to begin random writes with."""

import random

from tests.support.p4runtime_controller import exact, v1

NUMBERS = (0, 1, 2, 3, 7, 15, 16, 63, 64, 255, 256, 511, 512, 2**31 - 1)
BACKED_UP = [{"port": b"\1", "instance": 3, "backup_replicas": [{"port": b"\2", "instance": 4}]}]
ONE, PORTS = {"value": b"\1"}, [{"port": b"\1", "instance": 3}, {"egress_port": 4}]


def lpm_entry(stub, **action):
    return {
        "table_entry": stub.entry(
            "paths", {1: {"lpm": {"value": b"\x12\0", "prefix_len": 8}}}, v1.TableAction(**action)
        )
    }


def one_shot(stub):
    return {"action_profile_actions": [{"action": stub.action("send", 1, 2), "weight": 1}]}


SEEDS = {
    "exact": lambda s: [{"table_entry": s.entry("forward", {1: exact(1), 2: exact(2)}, s.action("send", 1))}],
    "ternary": lambda s: [
        {"table_entry": s.entry("rules", {1: {"ternary": {**ONE, "mask": b"\3"}}}, s.action("rule", 1), priority=5)}
    ],
    "range": lambda s: [
        {
            "table_entry": s.entry(
                "by_port", {1: exact(1), 2: {"range": {"low": b"\1", "high": b"\5"}}}, s.action("send", 1), priority=4
            )
        }
    ],
    "optional": lambda s: [{"table_entry": s.entry("pairs", {1: {"optional": ONE}}, s.action("found", 1), priority=4)}],
    "counters": lambda s: [
        {"table_entry": s.entry("flows", {1: exact(1)}, s.action("send", 1), counter_data={"packet_count": 4})},
        {"direct_counter_entry": {"table_entry": s.entry("flows", {1: exact(1)}), "data": {"byte_count": 9}}},
        {
            "counter_entry": {
                "counter_id": s.id("counters", "by_index"),
                "index": {"index": 3},
                "data": {"byte_count": 9},
            }
        },
    ],
    "meters": lambda s: [
        {"table_entry": s.entry("flows", {1: exact(1)}, s.action("send", 1), meter_config={"cir": 1, "pir": 2})},
        {"direct_meter_entry": {"table_entry": s.entry("flows", {1: exact(1)}), "config": {"pir": 9}}},
        {"meter_entry": {"meter_id": s.id("meters", "by_index"), "index": {"index": 3}, "config": {"pir": 9}}},
    ],
    "timeouts": lambda s: [{"table_entry": s.entry("stations", {1: exact(1)}, s.action("send", 1), idle_timeout_ns=9)}],
    "action_selector": lambda s: [
        {"action_profile_member": {"action_profile_id": 289546160, "member_id": 1, "action": s.action("send", 1, 2)}},
        {
            "action_profile_group": {
                "action_profile_id": 289546160,
                "group_id": 1,
                "members": [{"member_id": 1, "weight": 1}],
            }
        },
        {
            "action_profile_group": {
                "action_profile_id": 289546160,
                "group_id": 2,
                "members": [{"member_id": 1, "weight": 1, "watch_port": b"\1"}],
            }
        },
        lpm_entry(s, action_profile_group_id=1),
        lpm_entry(s, action_profile_action_set=one_shot(s)),
    ],
    "registers": lambda s: [
        {
            "register_entry": {
                "register_id": s.id("registers", name),
                "index": {"index": 3},
                "data": {"bitstring": b"\1"},
            }
        }
        for name in ("sums", "signed")
    ],
    "value_set": lambda s: [
        {"value_set_entry": {"value_set_id": 60397088, "members": [{"match": [{"field_id": 1, **exact(5)}]}]}}
    ],
    "digest": lambda s: [{"digest_entry": {"digest_id": s.id("digests", "learned_t"), "config": {"max_list_size": 3}}}],
    "multicast": lambda s: [
        {"packet_replication_engine_entry": {"multicast_group_entry": {"multicast_group_id": 3, "replicas": PORTS}}},
        {"packet_replication_engine_entry": {"clone_session_entry": {"session_id": 3, "replicas": PORTS}}},
        {
            "packet_replication_engine_entry": {
                "multicast_group_entry": {"multicast_group_id": 4, "replicas": BACKED_UP}
            }
        },
    ],
}


def change(message, dice: random.Random) -> None:
    """Change something in a message: leave out a field, repeat or drop an item, set another number."""
    present = message.ListFields()
    if not present or dice.random() < 0.2:
        field = dice.choice(list(message.DESCRIPTOR.fields))
        if field.is_repeated or field.message_type is None:
            message.ClearField(field.name)
        else:
            getattr(message, field.name).SetInParent()
        return
    field, value = dice.choice(present)
    if field.is_repeated:
        how = dice.randrange(3)
        if how == 0:
            del value[dice.randrange(len(value))]
        elif how == 1 or field.message_type is None:
            value.append(value[0])
        else:
            change(dice.choice(value), dice)
    elif field.message_type is not None:
        change(value, dice)
    elif isinstance(value, bytes):
        setattr(message, field.name, dice.randbytes(dice.choice((0, 1, 1, 2, 6))))
    elif isinstance(value, int) and not isinstance(value, bool):
        number = dice.choice(NUMBERS)
        is_signed = field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64)
        setattr(message, field.name, -number if is_signed and dice.random() < 0.2 else number)
