"""Reads the scenarios in tests/vectors (its README gives the format) and turns their packets into bytes.

The bytes are made with `struct` and nothing of `switchml/`, so that the codec itself can be tested against them.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path

VECTORS = Path(__file__).parents[1] / "vectors"

V1_FIELDS = {"job_number", "tsi", "slot", "set", "e0", "e1", "values"}
EXPIRY_FIELDS = {"expiry", "r", "seq", "tag"}
CONTRIBUTION_FIELDS = {"wire", "r", "ahead", "seq", "tag", "need", "used", "values"}
RESULT_FIELDS = {"wire", "r", "ahead", "seq", "tag", "need", "flags", "values"}
SPARSE_CONTRIBUTION_FIELDS = {"wire", "r", "seq", "tag", "mark", "words", "values", "padded", "columns"}
SPARSE_RESULT_FIELDS = {"wire", "r", "seq", "tag", "flags", "words", "values"}
ADDRESSED_FIELDS = {"wire", "r", "seq", "tag", "need", "ahead", "reach", "root", "op", "values"}
WAIT_FIELDS = {"seq", "tag", "missing"}
FLAGS = {"OVERFLOW": 1, "MIXED": 2, "PARTIAL": 8, "LATE": 16}
REACHES = {"all": 0, "root": 1, "others": 2}
OPS = {"sum": 0, "max32": 1, "max64": 2, "or": 3, "xor": 4}


@dataclass(frozen=True)
class Step:
    """One packet and what the aggregator is expected to do with it. `fields` and `reply_fields` are as in the file."""

    label: str
    rank: int
    data: bytes
    fields: dict
    action: str
    counter: str
    reply: bytes | None
    reply_fields: dict
    cut: tuple[int, ...] = ()
    """Ranks that get the first 14 bytes of a multicast."""

    to: tuple[int, ...] = ()
    """Ranks that get a multicast."""

    def reply_to(self, rank: int) -> bytes | None:
        return self.reply[:14] if self.reply is not None and rank in self.cut else self.reply


@dataclass(frozen=True)
class Scenario:
    """One file of tests/vectors. `slots`, `wire`, `tag` and `isn` mean nothing in protocol 1."""

    name: str
    protocol: int
    what: str
    workers: int
    payload_bytes: int
    slots: int = 0
    wire: int = 0
    tag: int = 0
    isn: int = 0
    steps: tuple[Step, ...] = field(default=(), repr=False)

    @property
    def has_ops(self) -> bool:
        """Whether it has ops other than sums (section 11), which not every aggregator takes."""
        return any("op" in step.fields for step in self.steps)

    @property
    def has_expiries(self) -> bool:
        """Whether rounds end without some ranks (section 13)."""
        return any("expiry" in step.fields for step in self.steps)


def load_all() -> list[Scenario]:
    """Every scenario, by name."""
    return [load(path) for path in sorted(VECTORS.glob("*.json"))]


def load(path: Path) -> Scenario:
    raw = json.loads(path.read_text())
    if raw["name"] != path.stem:
        raise ValueError(f"{path.name}: its name is {raw['name']!r}")
    known = {"name", "protocol", "what", "source", "workers", "payload_bytes", "slots", "wire", "tag", "isn", "steps"}
    _only(raw, known, path.name)
    head = {key: value for key, value in raw.items() if key not in ("source", "steps")}
    scenario = Scenario(**head)
    steps = tuple(
        step for number, raw_step in enumerate(raw["steps"], 1) for step in _steps(scenario, number, raw_step)
    )
    return Scenario(**head, steps=steps)


def _steps(scenario: Scenario, number: int, raw: dict) -> list[Step]:
    """The steps that one entry stands for: `from` may be a range of ranks that all send the same packet."""
    where = f"{scenario.name} step {number}"
    _only(raw, {"note", "from", "packet", "expect"}, where)
    expect = raw["expect"]
    _only(expect, {"action", "counter", "packet", "cut", "to"}, where)
    if ("counter" in expect) != (scenario.protocol == 2):
        raise ValueError(f"{where}: a counter is expected in protocol 2, and only there")
    first, last = raw["from"] if isinstance(raw["from"], list) else (raw["from"], raw["from"])
    reply_fields = expect.get("packet", {})
    data = encode(scenario, raw["packet"], where=where)
    reply = (
        encode(scenario, reply_fields, reply=True, wait=expect["action"] == "wait", where=where)
        if reply_fields
        else None
    )
    return [
        Step(
            f"{where} from {rank}: {raw.get('note', '')}",
            rank,
            data,
            raw["packet"],
            expect["action"],
            expect.get("counter", ""),
            reply,
            reply_fields,
            tuple(expect.get("cut", ())),
            tuple(expect.get("to", range(scenario.workers))),
        )
        for rank in range(first, last + 1)
    ]


def encode(scenario: Scenario, fields: dict, *, reply: bool = False, wait: bool = False, where: str = "") -> bytes:
    """The bytes of one packet. Where both `hex` and fields are given they have to agree."""
    fields = dict(fields)
    text = fields.pop("hex", None)
    length = fields.pop("length", 10 + (32 if wait else scenario.payload_bytes))
    spelled = None
    if text is not None:
        start = bytes.fromhex(text)
        if len(start) > length:
            raise ValueError(f"{where}: {len(start)} bytes of hex in a packet of {length}")
        spelled = start.ljust(length, b"\0")
    if not fields:
        return spelled
    if scenario.protocol == 1:
        built = _v1(scenario, fields, where)
    elif wait:
        built = _wait(fields, where)
    elif "expiry" in fields:
        built = _expiry(scenario, fields, where)
    elif "reach" in fields:
        built = _addressed(scenario, fields, reply, where)
    elif "words" in fields:
        built = _sparse(scenario, fields, reply, where)
    else:
        built = _v2(scenario, fields, reply, where)
    if spelled is not None and spelled != built:
        raise ValueError(f"{where}: fields give {built.hex(' ')}, hex says {spelled.hex(' ')}")
    return built


def lanes(scenario: Scenario, values, wire: int = 0) -> list[int]:
    """The lanes that a compact `values` stands for: a list is padded with zeros, {"fill": x} is x in every lane."""
    count = scenario.payload_bytes // (4, 2, 1)[wire]
    if isinstance(values, dict):
        _only(values, {"fill"}, scenario.name)
        return [values["fill"]] * count
    if len(values) > count:
        raise ValueError(f"{scenario.name}: {len(values)} values in {count} lanes")
    return list(values) + [0] * (count - len(values))


def _v1(scenario: Scenario, f: dict, where: str) -> bytes:
    _exactly(f, V1_FIELDS, where)
    values = lanes(scenario, f["values"])
    header = struct.pack(
        ">BBIHbb", 0x10 | {256: 1, 1024: 3}[scenario.payload_bytes], f["job_number"], f["tsi"],
        f["set"] << 15 | f["slot"], f["e0"], f["e1"],
    )  # fmt: skip
    return header + struct.pack(f">{len(values)}i", *values)


def _v2(scenario: Scenario, f: dict, reply: bool, where: str) -> bytes:
    f = {"r": 0, "wire": scenario.wire, **f}
    _exactly(f, RESULT_FIELDS if reply else CONTRIBUTION_FIELDS, where)
    wire = f["wire"]
    last = sum(FLAGS[name] for name in f["flags"]) if reply else f["used"]
    values = lanes(scenario, f["values"], wire)
    first = ((12 if reply else 8) + wire) << 4 | f["r"] << 3 | {256: 1, 1024: 3}[scenario.payload_bytes]
    header = struct.pack(">BbIHbb", first, f["ahead"], f["seq"], f["tag"], f["need"], last)
    return header + struct.pack(f">{len(values)}{'ihb'[wire]}", *values)


def _sparse(scenario: Scenario, f: dict, reply: bool, where: str) -> bytes:
    defaults = {} if reply else {"padded": 0, "columns": len(f["words"])}
    f = {"r": 0, "wire": scenario.wire, "values": None, **defaults, **f}
    _exactly(f, SPARSE_RESULT_FIELDS if reply else SPARSE_CONTRIBUTION_FIELDS, where)
    wire, columns = f["wire"], len(f["words"]) if reply else f["columns"]
    last = sum(FLAGS[name] for name in f["flags"]) if reply else f["mark"]
    size, data = 0, b""
    if f["values"] is not None:
        size = {256: 1, 1024: 3}[scenario.payload_bytes]
        values = lanes(scenario, f["values"], wire)
        data = struct.pack(f">{len(values)}{'ihb'[wire]}", *values)
    elif f.get("padded"):
        size, data = 2, bytes(512)
    first = ((12 if reply else 8) + wire) << 4 | f["r"] << 3 | 4 | size
    header = struct.pack(">BBIHbb", first, columns, f["seq"], f["tag"], 0, last)
    words = [0xFFFFFFFF if word is None else word[0] << 8 | 127 - word[1] for word in f["words"]]
    return header + struct.pack(f">{len(words)}I", *words) + data


def _addressed(scenario: Scenario, f: dict, reply: bool, where: str) -> bytes:
    f = {"r": 0, "wire": scenario.wire, "values": None, "op": "sum", "cut" if reply else "padded": 0, **f}
    _exactly(f, ADDRESSED_FIELDS | ({"flags", "cut"} if reply else {"used", "padded"}), where)
    last = sum(FLAGS[name] for name in f["flags"]) if reply else f["used"]
    size, data = 0, b""
    if f["values"] is not None or f.get("cut"):
        size = {256: 1, 1024: 3}[scenario.payload_bytes]
    if f["values"] is not None:
        values = lanes(scenario, f["values"], f["wire"])
        data = struct.pack(f">{len(values)}{'ihb'[f['wire']]}", *values)
    elif f.get("padded"):
        size, data = 2, bytes(512)
    first = ((12 if reply else 8) + f["wire"]) << 4 | f["r"] << 3 | 4 | size
    header = struct.pack(">BBIHbb", first, 0, f["seq"], f["tag"], f["need"], last)
    return header + bytes((REACHES[f["reach"]], f["root"], OPS[f["op"]], 127 - f["ahead"])) + data


def _expiry(scenario: Scenario, f: dict, where: str) -> bytes:
    f = {"r": 1, **f}
    _exactly(f, EXPIRY_FIELDS, where)
    first = 11 << 4 | f["r"] << 3 | {256: 1, 1024: 3}[scenario.payload_bytes]
    return struct.pack(">BbIHbb", first, 0, f["seq"], f["tag"], 0, 0) + bytes(scenario.payload_bytes)


def _wait(f: dict, where: str) -> bytes:
    _exactly(f, WAIT_FIELDS, where)
    bitmap = bytearray(32)
    for rank in f["missing"]:
        bitmap[rank // 8] |= 1 << rank % 8
    return struct.pack(">BbIHbb", 0xF0, 0, f["seq"], f["tag"], 0, 0) + bytes(bitmap)


def _only(fields: dict, known: set, where: str) -> None:
    if set(fields) - known:
        raise ValueError(f"{where}: unknown keys {sorted(set(fields) - known)}")


def _exactly(fields: dict, expected: set, where: str) -> None:
    if set(fields) != expected:
        raise ValueError(f"{where}: fields {sorted(fields)}, expected {sorted(expected)}")
