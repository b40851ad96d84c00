"""Random table entries and packets for any BMv2 program, made from nothing but its JSON.

A packet is a random walk over the parse graph: each extract appends a header of random fields, each transition that is
taken gets its value written into the bits that it selects on. Entries pick keys and arguments at random; most packets
aim at one entry of each table, so that tables are hit. Commands are simple_switch_CLI's.
"""

import ipaddress
import random
from dataclasses import dataclass, field

PORTS = 8
CUT = 0.15  # of the packets, where asked for: end somewhere within their headers
AIMED = 0.7  # of the packets: at one entry of each table
MAX_HEADERS = 24  # of a packet: a parser may loop for ever


@dataclass
class Bits:
    """A packet in the making: an integer and its width, with the places of the fields that were put in."""

    value: int = 0
    width: int = 0
    places: dict = field(default_factory=dict)  # (header, field) -> (bit offset from the front, width)

    def append(self, value: int, width: int) -> None:
        self.value = (self.value << width) | (value & ((1 << width) - 1))
        self.width += width

    def overwrite(self, offset: int, width: int, value: int, mask: int) -> None:
        shift = self.width - offset - width
        if shift < 0:
            return
        self.value = (self.value & ~(mask << shift)) | ((value & mask) << shift)

    def to_bytes(self) -> bytes:
        padded = -self.width % 8
        return (self.value << padded).to_bytes((self.width + padded) // 8, "big")


class Generator:
    """Commands and packets for one program; the same `seed` gives the same ones. `cut`: some packets end too early.
    `hints`: (header, field) → values that the field nearly always has."""

    def __init__(self, program: dict, seed: int, cut: bool = False, hints: dict | None = None):
        self.program = program
        self.cut = cut
        self.hints = hints or {}
        self.random = random.Random(seed)
        self.types = {t["name"]: t["fields"] for t in program["header_types"]}
        self.headers = {h["name"]: self.types[h["header_type"]] for h in program["headers"]}
        self.actions = {a["id"]: a for a in program["actions"]}
        self.keys: dict[str, list[dict]] = {}  # table -> its entries, each (header, field) -> a value that it matches
        self.aim: dict = {}  # (header, field) -> value that the packet in the making should have
        self.set_values: list[int] = []  # what the parser value sets hold
        self.constants = sorted({value for value in _constants(program) if 0 <= value < 1 << 64})

    # Values

    def value(self, width: int, place: tuple[str, str] | None = None) -> int:
        """A number of `width` bits, for the field `place` if given."""
        if width == 0:
            return 0
        draw = self.random.random()
        top = (1 << width) - 1
        if place in self.hints and draw < 0.95:
            return self.random.choice(self.hints[place]) & top
        if place in self.aim and draw < 0.9:
            return self.aim[place] & top
        if draw < 0.5:
            return self.random.choice([0, 1, 2, 3, top, top >> 1, (top >> 1) + 1]) & top
        if draw < 0.6 and self.constants:
            return self.random.choice(self.constants) & top
        if draw < 0.8:
            return self.random.getrandbits(self.random.randint(1, width))
        return self.random.getrandbits(width)

    def width(self, target: list) -> int:
        header, name = target
        if name == "$valid$":
            return 1
        fields = self.headers.get(header)
        if fields is None:  # an element of a stack, or a member of a union
            raise KeyError(header)
        return next(f[1] for f in fields if f[0] == name)

    # Control plane

    def commands(self, entries: int = 12) -> list[str]:
        """The set-up: sessions, groups, profiles, table entries, registers, meters, value sets."""
        out = []
        for session in range(1, 10):
            out.append(f"mirroring_add {session} {session % PORTS}" if session != 6 else "mirroring_add_mc 6 1")
        for group, ports in ((1, "1 2 3"), (2, "4"), (3, "0 7")):
            out.append(f"mc_mgrp_create {group}")
            out.append(f"mc_node_create {group * 10} {ports}")
            out.append(f"mc_node_associate {group} {group - 1}")
        out += ["mc_node_create 99 5 6 | 1", "mc_set_lag_membership 1 0 4 7", "mc_node_associate 1 3"]
        for array in self.program.get("register_arrays", []):
            for _ in range(3):
                index = self.random.randrange(min(array["size"], 8))
                out.append(f"register_write {array['name']} {index} {self.value(min(array['bitwidth'], 62))}")
        for array in self.program.get("meter_arrays", []):
            if not array.get("is_direct"):
                # next to no refill: colours depend on how many packets came, not on when
                out.append(f"meter_array_set_rates {array['name']} 0.0000001:2 0.0000002:4")
        for vset in self.program.get("parse_vsets", []):
            for _ in range(2):
                value = self.value(vset["compressed_bitwidth"])
                out.append(f"pvs_add {vset['name']} {value}")
                self.set_values.append(value)
        for calculation in self.program.get("calculations", []):
            if calculation["algo"] == "crc16_custom":
                out.append(f"set_crc16_parameters {calculation['name']} 0x8bb7 0xffff 0x1 true false")
            if calculation["algo"] == "crc32_custom":
                out.append(f"set_crc32_parameters {calculation['name']} 0x1edc6f41 0xffffffff 0x12 false true")
        for pipeline in self.program["pipelines"]:
            for profile in pipeline.get("action_profiles", []):
                out += self._members(pipeline, profile)
            for table in pipeline["tables"]:
                if table["key"] and not table.get("entries"):
                    for handle in range(entries):
                        out += self._entry(table, handle)
                if table["type"] == "simple" and not table.get("default_entry", {}).get("action_const"):
                    out += self._default(table)
        return out

    def _entry(self, table: dict, number: int) -> list[str]:
        aim: dict = {}
        try:
            keys = " ".join(self._key(key, aim) for key in table["key"])
        except KeyError:
            return []
        self.keys.setdefault(table["name"], []).append(aim)
        priority = f" {number + 1}" if table["match_type"] in ("ternary", "range") else ""
        if table["type"] == "indirect_ws" and self.random.random() < 0.6:
            return [f"table_indirect_add_with_group {table['name']} {keys} => {self.random.randrange(2)}{priority}"]
        if table["type"] != "simple":
            return [f"table_indirect_add {table['name']} {keys} => {self.random.randrange(6)}{priority}"]
        action = self.actions[self.random.choice(table["action_ids"])]
        return [f"table_add {table['name']} {action['name']} {keys} => {self._arguments(action)}{priority}"]

    def _default(self, table: dict) -> list[str]:
        if self.random.random() < 0.5:
            return []
        action = self.actions[self.random.choice(table["action_ids"])]
        return [f"table_set_default {table['name']} {action['name']} {self._arguments(action)}"]

    def _members(self, pipeline: dict, profile: dict) -> list[str]:
        table = next(t for t in pipeline["tables"] if t.get("action_profile") == profile["name"])
        out = []
        for _ in range(6):
            action = self.actions[self.random.choice(table["action_ids"])]
            out.append(f"act_prof_create_member {profile['name']} {action['name']} {self._arguments(action)}")
        if table["type"] == "indirect_ws":
            for group, members in enumerate(((0, 1, 2, 3), (4, 5))):
                out.append(f"act_prof_create_group {profile['name']}")
                out += [f"act_prof_add_member_to_group {profile['name']} {member} {group}" for member in members]
        return out

    def _arguments(self, action: dict) -> str:
        # nine bits are a port: a packet sent to one that nobody reads shows nothing
        return " ".join(
            _text(self.random.randrange(PORTS) if d["bitwidth"] == 9 else self.value(d["bitwidth"]), d["bitwidth"])
            for d in action["runtime_data"]
        )

    def _key(self, key: dict, aim: dict) -> str:
        """One field of an entry's key; `aim` gets a value that it matches."""
        width = self.width(key["target"])
        value = self.value(width, tuple(key["target"]))
        top = (1 << width) - 1
        text = None
        if key["match_type"] == "lpm":
            length = self.random.choice([width, width // 2, self.random.randint(0, width)])
            value &= top << (width - length)
            text = f"{_text(value, width)}/{length}"
        elif key["match_type"] == "ternary":
            mask = self.random.choice([0, top, top, self.value(width), top & ~0xFF])
            shown = value & mask if self.random.random() < 0.9 else value
            text = f"{_text(shown, width)}&&&{_text(mask, width)}"
        elif key["match_type"] == "range":
            other = self.value(width)
            text = f"{_text(min(value, other), width)}->{_text(max(value, other), width)}"
        aim[tuple(key["target"])] = value
        return text if text else _text(value, width)

    # Packets

    def packets(self, count: int) -> list[tuple[int, bytes]]:
        """`count` pairs of ingress port and bytes, 14 to about 1,500 bytes each."""
        return [(self.random.randrange(PORTS), self.packet()) for _ in range(count)]

    def packet(self) -> bytes:
        parser = self.program["parsers"][0]
        states = {s["name"]: s for s in parser["parse_states"]}
        bits, state, stacks, forced = Bits(), parser["init_state"], {}, []
        self.aim = {}
        if self.random.random() < AIMED:
            for entries in self.keys.values():
                self.aim |= self.random.choice(entries)
        while state is not None and len(bits.places) < MAX_HEADERS * 8:
            for op in states[state]["parser_ops"]:
                self._extract(op, bits, stacks)
            for offset, width, value, mask in forced:
                bits.overwrite(offset, width, value, mask)
            state = self._transition(states[state], bits, forced, stacks)
        for offset, width, value, mask in forced:
            if bits.width < offset + width:
                bits.append(0, offset + width - bits.width)
            bits.overwrite(offset, width, value, mask)
        data = bits.to_bytes()
        if self.cut and self.random.random() < CUT:
            data = data[: self.random.randint(0, len(data))]
        else:
            data += self.random.randbytes(self.random.choice([0, 0, 1, 20, 46, self.random.randint(0, 200)]))
        return data.ljust(14, b"\0")  # less than an Ethernet header is no frame

    def _extract(self, op: dict, bits: Bits, stacks: dict) -> None:
        if op["op"] not in ("extract", "extract_VL"):
            return
        parameter = op["parameters"][0]
        if parameter["type"] == "regular":
            names = [parameter["value"]]
        elif parameter["type"] == "stack":
            stack = parameter["value"]
            index = stacks.get(stack, 0)
            stacks[stack] = index + 1
            names = [f"{stack}[{index}]"]
        else:
            names = []
        for name in names:
            for entry in self.headers.get(name, []):
                width = entry[1]
                if width == "*":
                    width = 8 * self.random.choice([0, 1, 4, 5, 16, 40])
                bits.places[name, entry[0]] = (bits.width, width)
                if width:
                    bits.append(self.value(width, (name, entry[0])), width)

    def _transition(self, state: dict, bits: Bits, forced: list, stacks: dict) -> str | None:
        """Choose a transition at random and write its value where the state looks for it."""
        choice = self.random.choice(state["transitions"])
        kind = choice.get("type") or ("default" if choice["value"] == "default" else "hexstr")
        if kind == "default":
            return choice["next_state"]
        padded = [-(-self._key_width(k) // 8) * 8 for k in state["transition_key"]]
        if kind == "hexstr":
            value = int(choice["value"], 16)
            mask = int(choice["mask"], 16) if choice.get("mask") else (1 << sum(padded)) - 1
        elif kind == "parse_vset" and self.set_values:
            value, mask = self.random.choice(self.set_values), (1 << sum(padded)) - 1
        else:
            return choice["next_state"]
        left = sum(padded)
        for key, room in zip(state["transition_key"], padded, strict=True):
            left -= room
            width = self._key_width(key)
            part_mask = (mask >> left) & ((1 << width) - 1)
            part = (value >> left) & ((1 << width) - 1)
            if key["type"] == "field" and tuple(key["value"]) in bits.places:
                offset, _ = bits.places[tuple(key["value"])]
                bits.overwrite(offset, width, part, part_mask)
            elif key["type"] == "stack_field":
                stack, name = key["value"]
                place = bits.places.get((f"{stack}[{stacks.get(stack, 1) - 1}]", name))
                if place:
                    bits.overwrite(place[0], width, part, part_mask)
            elif key["type"] == "lookahead":
                forced.append((bits.width + key["value"][0], width, part, part_mask))
        return choice["next_state"]

    def _key_width(self, key: dict) -> int:
        if key["type"] == "lookahead":
            return key["value"][1]
        if key["type"] == "stack_field":
            return self.width([f"{key['value'][0]}[0]", key["value"][1]])
        try:
            return self.width(key["value"])
        except (KeyError, StopIteration):
            return 8


def _text(value: int, width: int) -> str:
    """A value for the CLI, which takes 128 bits for an IPv6 address."""
    return str(ipaddress.IPv6Address(value)) if width == 128 else str(value)


def _constants(node) -> list[int]:
    """Every number that the program's expressions, transitions and constant entries mention."""
    if isinstance(node, dict):
        constants = []
        if node.get("type") == "hexstr" and isinstance(node.get("value"), str):
            constants.append(int(node["value"], 16))
        return constants + [n for v in node.values() for n in _constants(v)]
    if isinstance(node, list):
        return [n for v in node for n in _constants(v)]
    return []
