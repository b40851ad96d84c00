"""The model of a Tofino, by its test harness: images from p4c's compiler and assembler, entries and multicast groups,
frames in and out.

The harness has no command for multicast and for ports that recirculate, so their registers are written. Addresses and
the layout of nodes are those of the model's sources (include/tofinoXX_jbay/rdm-defs.h, tofino/register_includes).
"""

from __future__ import annotations

import itertools
import json
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from switchml.control.p4.tables import Group

TOOLS = "p4c-barefoot", "bfas", "tofino_test_harness"
MARK_MAC, MARK_PORT = 0x02_FF_00_00_00_00, 3
"""A program under test forwards frames to this address to this port."""
PIPES = 4
_CHIP = "--target", "tofino"
_ARCHITECTURE = "--arch", "tna", "-D__TARGET_TOFINO__=1"
_PIPE_REGISTERS, _PIPE_STRIDE, _PIPES_OF_GROUPS = 0x2000000, 0x800000, 0x7F0000
_PACKET_GENERATOR = 0x73D018  # pgr_common's port16_ctrl, port17_ctrl1, port17_ctrl2
_CHANNELS = 0xF
_RECIRCULATES = 1 | _CHANNELS << 16
_NODES, _FIRST_NODES = 0x61000000000 // 16, 0x61001000000 // 16
_NODE_OF_ROW = 2
_RANK, _RANK_UNLESS, _PORTS = 1, 2, 9
_PATIENCE_S = 120
_TYPE_MARK = 0x88B5

Masked = tuple[int, int]
"""A ternary key: (value, mask)."""


def image(source: Path, out: Path, compiler: str, assembler: str, *options: str) -> Path:
    """`out`, with the chip's image of a program. `source` is where its file's other files are found."""
    _run([compiler, *_CHIP, *_ARCHITECTURE, *options, "-o", str(out), str(source)], source.parent)
    (out / "logs").mkdir(exist_ok=True)  # bfas opens a file in it
    _run([assembler, *_CHIP, "-o", str(out), str(out / "pipe" / f"{source.stem}.bfa")], out)
    return out


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


class Model:
    """A chip with a program. Hosts are at ports of pipe 0; what leaves ports 64 to 71 of a pipe comes in again there.

    In `groups` a copy with rid 0 leaves out the port whose number excludes it at level 1.
    """

    def __init__(self, harness: str, image: Path, folder: Path, groups: Iterable[Group]):
        self._log = folder / "left"
        self._marks = itertools.count(1)
        self._read = 0
        (folder / "chip.bin").write_bytes(_replication(groups) + _recirculation())
        context = json.loads((image / "context.json").read_text())
        self._tables = {table["name"]: table for table in context["tables"] if table["table_type"] == "match"}
        own = {name: table.pop("static_entries", []) for name, table in self._tables.items()}
        (folder / "context.json").write_text(json.dumps(context))
        self._free: dict[str, int] = {}
        self._errors = (folder / "errors").open("w+")
        self._process = subprocess.Popen(
            [harness, "--observation-log", str(self._log), "-"], cwd=folder, stdin=subprocess.PIPE, stdout=self._errors,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._say(*(f"load {path}" for path in (folder / "chip.bin", image / "tofino.bin", folder / "context.json")))
        for name, entries in own.items():  # the harness would add them, but knows no keys that are part of a field
            for entry in entries:
                self._add_own(name, entry)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def key_names(self, table: str) -> list[str]:
        return [field["name"] for field in self._tables[self._named(table)]["match_key_fields"]]

    def param_names(self, table: str, action: str) -> list[str]:
        return [parameter["name"] for parameter in self._action(self._named(table), action)["p4_parameters"]]

    def add(self, table: str, key: Mapping[str, int | Masked], action: str, params: Mapping[str, int]) -> None:
        """Add an entry. Of a ternary table's entries, which can't be removed, the first that matches counts."""
        full = self._named(table)
        its = self._tables[full]
        place, fields = "", {field["name"]: field for field in its["match_key_fields"]}
        if its["match_attributes"]["stage_tables"][-1]["stage_table_type"] == "ternary_match":
            self._free[full] = self._free.get(full, its["size"]) - 1
            place = f"{self._free[full]} "
        keys = " ".join(f"{name}:{_digits(value, fields[name])}" for name, value in key.items())
        self._say(f"add {full} {place}{keys} {self._action(full, action)['name']}({_params(params)})")

    def set_default(self, table: str, action: str, params: Mapping[str, int]) -> None:
        full = self._named(table)
        self._say(f"setdefault {full} {self._action(full, action)['name']}({_params(params)})")

    def _add_own(self, table: str, entry: dict[str, Any]) -> None:
        """Add an entry of the program's own."""
        key = {
            its["field_name"]: (int(its["value"], 16), int(its["mask"], 16)) if "mask" in its else int(its["value"], 16)
            for its in entry["match_key_fields_values"]
        }
        handle = entry["action_handle"]
        action = next(its["name"] for its in self._tables[table]["actions"] if its["handle"] == handle)
        params = {its["parameter_name"]: int(its["value"], 16) for its in entry["action_parameters_values"]}
        self.add(table, key, action, params)

    def receive(self, *frames: tuple[int, bytes]) -> list[tuple[int, bytes]]:
        """(port, frame) of all that leaves for (port, frame) that come in, in order of leaving."""
        mark = struct.pack(">6s6sHI46x", MARK_MAC.to_bytes(6, "big"), b"", _TYPE_MARK, next(self._marks))
        self._say(*(f"packet {port} {frame.hex()}" for port, frame in frames), "wait")
        self._say(f"packet 0 {mark.hex()}", "wait")
        left: list[tuple[int, bytes]] = []
        last = time.monotonic() + _PATIENCE_S
        while True:
            for to, sent in self._new():
                if sent[: len(mark)] == mark:
                    assert "<stdin>:" not in (said := self.said()), said  # how its complaints begin
                    return left
                left.append((to, sent))
            assert time.monotonic() < last and self._process.poll() is None, self.said()
            time.sleep(0.002)

    def late(self) -> list[tuple[int, bytes]]:
        """What has left since the last call: frames may go through the chip once more while the mark leaves it."""
        return list(self._new())

    def said(self) -> str:
        """What the harness printed."""
        self._errors.seek(0)
        return self._errors.read()

    def _named(self, table: str) -> str:
        return next(full for full in self._tables if _ends(full, table))

    def _action(self, table: str, name: str) -> dict[str, Any]:
        return next(action for action in self._tables[table]["actions"] if _ends(action["name"], name))

    def _new(self) -> Iterator[tuple[int, bytes]]:
        """Frames logged since the last call."""
        text = self._log.read_text()[self._read :] if self._log.exists() else ""
        text = text[: text.rfind("\n") + 1]
        self._read += len(text)
        for line in text.splitlines():
            port, data = line.split()
            yield int(port), bytes.fromhex(data)

    def _say(self, *commands: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{command}\n" for command in commands))
        self._process.stdin.flush()


def _ends(full: str, name: str) -> bool:
    return f".{full}".endswith(f".{name}")


def _params(values: Mapping[str, int]) -> str:
    return " ".join(f"{name}:{value:#x}" for name, value in values.items())


def _digits(value: int | Masked, field: Mapping[str, Any]) -> str:
    """A key as the harness takes it: with the bits below a part of a field, and * for a bit that may be either."""
    below, width = field["start_bit"], field["bit_width"]
    if not isinstance(value, tuple):
        return f"{value << below:#x}"
    number, mask = value
    return (
        "0b"
        + "".join(str(number >> bit & 1) if mask >> bit & 1 else "*" for bit in reversed(range(width)))
        + "0" * below
    )


def _replication(groups: Iterable[Group]) -> bytes:
    """The registers that hold multicast groups of ports in pipe 0: one list of nodes for each group, and for each node
    one of ports."""
    rows: list[int] = [0]
    first: dict[int, int] = {}
    for group in groups:
        for rid, port in reversed(group.copies):
            following = first.get(group.group, 0)
            ports = len(rows) * _NODE_OF_ROW
            rows.append(_PORTS | 1 << 7 | 1 << 8 + port)  # in pipe 0, the last of the list
            first[group.group] = len(rows) * _NODE_OF_ROW
            kind = _RANK if rid else _RANK_UNLESS | port << 64
            rows.append(kind | following << 4 | ports << 24 | rid << 48)
    written = _words(_NODES, rows)
    for four in {group // 4 for group in first}:
        word = sum(first.get(4 * four + place, 0) << 20 * place for place in range(4))
        written += _words(_FIRST_NODES + four, [word])
    for eight in {group // 8 for group in first}:
        pipes = sum(1 << 4 * place for place in range(8) if 8 * eight + place in first)
        for pipe in range(PIPES):
            written += _register(pipe, _PIPES_OF_GROUPS + 4 * eight, pipes)
    return written


def _recirculation() -> bytes:
    """The registers of all pipes' ports 64 to 71."""
    return b"".join(
        _register(pipe, _PACKET_GENERATOR + 4 * place, value)
        for pipe in range(PIPES)
        for place, value in enumerate((_RECIRCULATES, _RECIRCULATES, _CHANNELS))
    )


def _register(pipe: int, offset: int, value: int) -> bytes:
    return struct.pack("<3xcII", b"r", _PIPE_REGISTERS + pipe * _PIPE_STRIDE + offset, value)


def _words(address: int, words: list[int]) -> bytes:
    """A write of words of 128 bits."""
    return struct.pack("<3xcQII", b"d", address, 128, len(words)) + b"".join(
        word.to_bytes(16, "little") for word in words
    )
