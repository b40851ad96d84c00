"""Reads the scenarios in tests/vectors/trees: packets that reach one switch of a tree, and what leaves it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from tests.support.reference_tree import Sender
from tests.support.vectors_io import FLAGS, VECTORS, Scenario, _only, encode

KEYS = {"name", "what", "source", "workers", "below", "above", "slots", "payload_bytes", "wire", "tag", "isn", "steps"}


@dataclass(frozen=True)
class TreeStep:
    """One packet, and what leaves the switch by receiver."""

    label: str
    sender: Sender
    data: bytes
    action: str
    counter: str
    sent: dict[Sender, bytes]


@dataclass(frozen=True)
class TreeScenario:
    """One file of tests/vectors/trees. `below`: ranks, and the ranks of each switch below. `job`: its other numbers."""

    below: tuple[Sender, ...]
    above: bool
    job: Scenario
    steps: tuple[TreeStep, ...] = field(default=(), repr=False)


def load_trees() -> list[TreeScenario]:
    """Every scenario of a switch in a tree, by name."""
    return [_load(path) for path in sorted((VECTORS / "trees").glob("*.json"))]


def _load(path) -> TreeScenario:
    raw = json.loads(path.read_text())
    _only(raw, KEYS, path.name)
    assert raw["name"] == path.stem
    numbers = {key: raw[key] for key in ("workers", "slots", "payload_bytes", "wire", "tag", "isn")}
    job = Scenario(raw["name"], 2, raw["what"], **numbers)
    steps = tuple(_step(job, number, step) for number, step in enumerate(raw["steps"], 1))
    return TreeScenario(tuple(map(_sender, raw["below"])), raw["above"], job, steps)


def _sender(name) -> Sender:
    return tuple(name) if isinstance(name, list) else name


def _step(job: Scenario, number: int, raw: dict) -> TreeStep:
    where, expect = f"{job.name} step {number}", raw["expect"]
    _only(raw, {"note", "from", "packet", "expect"}, where)
    _only(expect, {"action", "counter", "sent"}, where)
    sent = {}
    for group in expect.get("sent", ()):
        sent |= dict.fromkeys(map(_sender, group["to"]), _packet(job, group["packet"], where))
    data = _packet(job, raw["packet"], where)
    label = f"{where}: {raw.get('note', '')}"
    return TreeStep(label, _sender(raw["from"]), data, expect["action"], expect["counter"], sent)


def _packet(job: Scenario, fields: dict, where: str) -> bytes:
    fields = dict(fields)
    partial, is_result = fields.pop("partial", None), "flags" in fields
    is_padded = is_result and fields.pop("padded", 0)  # which goes from switch to switch alone
    data = encode(job, fields, reply=is_result, wait="missing" in fields, where=where)
    if is_padded:
        return bytes([data[0] | 2]) + data[1:] + bytes(512)
    if partial is None:
        return data
    flags = sum(FLAGS[name] for name in partial)
    if data[0] & 4:
        return data[:1] + bytes([data[1] | 0x80 | flags << 4]) + data[2:]
    return bytes([data[0] | 4]) + data[1:] + bytes([flags, 0])
