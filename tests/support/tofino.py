"""p4/tna on BMv2: the program's text with what is Tofino's own replaced, and four switches as the pipes of a chip.

Only the form changes, statement by statement: a RegisterAction becomes a read, its body and a write at the place where
it is executed. Parsing between ingress and egress is left out, since v1model has none. So this checks what the program
does, and not that it fits a Tofino.
"""

import re
import subprocess
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from emulator.p4switch.interpreter.interpreter import Interpreter
from emulator.p4switch.program import ir
from emulator.p4switch.program.loader.loader import load
from switchml.control.p4.tables import OUTCOMES, Changes, Entry, Group, address_number
from switchml.protocol.packet import SIZE_CODE_OF, UDP_PORT
from tests.support import p4_programming
from tests.support.bmv2_engines import switch_on
from tests.support.p4_frames import SWITCH_ADDRESS, SWITCH_MAC
from tests.support.p4_jobs import PORTS, Job
from tests.support.tofino_model import MARK_MAC, MARK_PORT, PIPES, Model, image

P4 = Path(__file__).parents[2] / "p4"
LOOPBACK = 0x40
"""Bit of a port that leads to the next pass; the two above it number the pipe."""

TNA = """
#include <v1model.p4>
#define PortId_t bit<9>
struct ingress_intrinsic_metadata_t { bit<9> ingress_port; }
struct ingress_intrinsic_metadata_from_parser_t { bit<1> unused; }
struct ingress_intrinsic_metadata_for_deparser_t { bit<3> drop_ctl; }
struct ingress_intrinsic_metadata_for_tm_t {
    bit<9> ucast_egress_port; bit<16> mcast_grp_a; bit<1> bypass_egress; bit<16> level1_exclusion_id;
}
struct egress_intrinsic_metadata_t { bit<16> egress_rid; }
struct egress_intrinsic_metadata_from_parser_t { bit<1> unused; }
struct egress_intrinsic_metadata_for_deparser_t { bit<3> drop_ctl; }
struct egress_intrinsic_metadata_for_output_port_t { bit<1> unused; }
#define max(a, b) ((a) > (b) ? (a) : (b))
"""

MAIN = """
struct all_t {
    known_t known;
    ingress_intrinsic_metadata_t ig;
    ingress_intrinsic_metadata_for_tm_t tm;
}
parser OneParser(packet_in packet, out packet_t hdr, inout all_t all, inout standard_metadata_t sm) {
    IngressParser() inner;
    state start {
        all.ig.ingress_port = sm.ingress_port;
        inner.apply(packet, hdr, all.known, all.ig);
        transition accept;
    }
}
control OneIngress(inout packet_t hdr, inout all_t all, inout standard_metadata_t sm) {
    SwitchIngress() inner;
    ingress_intrinsic_metadata_from_parser_t prsr;
    ingress_intrinsic_metadata_for_deparser_t dprsr;
    apply {
        prsr.unused = 0;
        dprsr.drop_ctl = 0;
        all.tm.ucast_egress_port = 511; // simple_switch's port that drops
        all.tm.bypass_egress = 0;
        all.tm.mcast_grp_a = 0;
        inner.apply(hdr, all.known, all.ig, prsr, dprsr, all.tm);
        sm.egress_spec = all.tm.ucast_egress_port;
        sm.mcast_grp = all.tm.mcast_grp_a;
        if (dprsr.drop_ctl != 0) {
            mark_to_drop(sm);
        }
    }
}
control OneEgress(inout packet_t hdr, inout all_t all, inout standard_metadata_t sm) {
    SwitchEgress() inner;
    egress_intrinsic_metadata_t eg;
    egress_intrinsic_metadata_from_parser_t prsr;
    egress_intrinsic_metadata_for_deparser_t dprsr;
    egress_intrinsic_metadata_for_output_port_t port;
    nothing_t nothing;
    apply {
        eg.egress_rid = sm.egress_rid;
        prsr.unused = 0;
        dprsr.drop_ctl = 0;
        port.unused = 0;
        if (all.tm.bypass_egress == 0) {
            if (hdr.pass.place != PLACE_FLOODED) {
                inner.apply(hdr, nothing, eg, prsr, dprsr, port);
            } else if ((bit<16>)sm.egress_port == all.tm.level1_exclusion_id) {
                mark_to_drop(sm);
            }
            hdr.pass.setInvalid();
        }
    }
}
control Unverified(inout packet_t hdr, inout all_t all) { apply {} }
control Checksums(inout packet_t hdr, inout all_t all) {
    apply {
        update_checksum(hdr.ipv4.isValid() && all.tm.bypass_egress == 0,
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.length, hdr.ipv4.id, hdr.ipv4.flags,
              hdr.ipv4.offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}
control OneDeparser(packet_out packet, in packet_t hdr) { apply { packet.emit(hdr); } }
V1Switch(OneParser(), Unverified(), OneIngress(), OneEgress(), Checksums(), OneDeparser()) main;
"""

MASK_FOR_VALUE_SET = [
    (r"value_set<.*\n", "\n"),
    (r"loopbacks: next_pass;", f"{LOOPBACK} &&& {LOOPBACK}: next_pass;"),
]
REPLACEMENTS = [
    *MASK_FOR_VALUE_SET,
    (r"packet\.(extract\((ig|eg)\)|advance\(PORT_METADATA_SIZE\));", ""),
    (r"out (ingress|egress)_intrinsic_metadata_t", r"inout \1_intrinsic_metadata_t"),
    (r"inout (ingress|egress)_intrinsic_metadata_t (ig|eg),", r"in \1_intrinsic_metadata_t \2,"),
    (r"Checksum\(\) ipv4_checksum;|ipv4_checksum\.add\(.*?\);|known\.is_damaged = ipv4_checksum\.verify\(\);", ""),
    (r"hdr\.ipv4\.checksum = ipv4_checksum\.update\(\{[^}]*\}\);", ""),
    (r"Counter<.*?>>\((.*), CounterType_t\.PACKETS_AND_BYTES\)", r"counter(\1, CounterType.packets_and_bytes)"),
    (r"Hash<.*?>\(HashAlgorithm_t\.IDENTITY\) low_bits;", ""),
    (r"low_bits\.get\(\{(.*?)\}\)", r"\1"),
    (r"outcomes\.count\((.*?)\)", r"outcomes.count((bit<32>)\1)"),
    (r"\nPipeline\([\s\S]*", MAIN),
]
ACTION = re.compile(
    r"    RegisterAction<\w.*?>\((?P<register>\w+)\) (?P<name>\w+) = \{\s*"
    r"void apply\(inout (?P<type>[\w<>]+) (?P<value>\w+), out (?P<result_type>[\w<>]+) (?P<result>\w+)\) \{"
    r"(?P<body>.*?)\n        \}\n    \};\n",
    re.DOTALL,
)
STRUCT = re.compile(r"struct (\w+) \{([^}]*)\}")
FIELD = re.compile(r"bit<(\d+)>\s+(\w+);")


def on_v1model(text: str) -> str:
    """A file of p4/tna as v1model takes it."""
    structs = {name: [(int(w), f) for w, f in FIELD.findall(fields)] for name, fields in STRUCT.findall(text)}

    def width(kind: str) -> int:
        return sum(w for w, _ in structs[kind]) if kind in structs else int(re.findall(r"\d+", kind)[0])

    actions = {found["name"]: found for found in ACTION.finditer(text)}
    text = ACTION.sub("", text)
    text = re.sub(r"Register<(\w+(?:<\d+>)?), .*?>>\(", lambda m: f"register<bit<{width(m[1])}>>(", text)

    def executed(call: re.Match) -> str:
        found = actions[call["name"]]
        kind, value, body = found["type"], found["value"], found["body"]
        fields, top = structs.get(kind), width(kind)
        row = f"(bit<32>){call['row']}"
        lines = [f"bit<{top}> cell;", f"{found['register']}.read(cell, {row});"]
        if fields is None:
            lines.append(f"{kind} {value} = ({kind})cell;")
            packed = f"(bit<{top}>){value}"
        else:
            for w, name in fields:
                lines.append(f"bit<{w}> {value}_{name} = cell[{top - 1}:{top - w}];")
                top -= w
            body = re.sub(rf"\b{value}\.(\w+)", rf"{value}_\1", body)
            packed = " ++ ".join(f"{value}_{name}" for _, name in fields)
        lines += [f"{found['result_type']} {found['result']};", body, f"{found['register']}.write({row}, {packed});"]
        return "{" + "\n".join(lines) + f"\n{call['to']} = {call['cast'] or ''}{found['result']};" + "}"

    text = re.sub(r"(?P<to>[\w.]+) = (?P<cast>\(bit<8>\))?(?P<name>\w+)\.execute\((?P<row>[\w.]+)\);", executed, text)
    for pattern, replacement in REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    return text


def compiled(compiler: str, protocol: int, folder: Path) -> ir.Program:
    """The program for a protocol, as `compiler` (p4c-bm2-ss) translates it in `folder`."""
    _sources(folder, on_v1model)
    (folder / "tna.p4").write_text(TNA)
    target = folder / f"v{protocol}.json"
    command = [compiler, f"-DPROTOCOL={protocol}", "-I", str(folder), "tna/switchml.p4", "-o", str(target)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return load(target)


def _sources(folder: Path, changed: Callable[[str], str]) -> None:
    """The program's files, with those of p4/tna changed."""
    (folder / "tna").mkdir(parents=True)
    for path in P4.glob("*.p4"):
        (folder / path.name).write_text(path.read_text())
    for path in (P4 / "tna").glob("*.p4"):
        (folder / "tna" / path.name).write_text(changed(path.read_text()))


def switch_changes() -> Changes:
    """The switch's own address, and the ports in loopback: four to each pipe."""
    address = address_number(SWITCH_ADDRESS)
    return Changes(
        groups=(Group(1, tuple((0, port) for port in range(PORTS))),),
        entries=(
            Entry("OneIngress.inner.own_addresses", (address,), "OneIngress.inner.own", ()),
            Entry("OneIngress.inner.own_macs", (address, 1), "OneIngress.inner.answer_arp", (SWITCH_MAC,)),
            *(
                Entry("OneIngress.inner.passes.loopbacks", (pipe, row), "OneIngress.inner.passes.through",
                      (pipe << 7 | LOOPBACK | row % 4,))
                for pipe in range(PIPES)
                for row in range(16)
            ),
        ),
    )  # fmt: skip


def job_changes(job: Job) -> Changes:
    """What a job needs. Its rows of all registers hold zeros before."""
    spec, place = job.spec, job.place
    rows, round_ = 2 * spec.slots, 2 * spec.slots
    entries: list[Entry] = []
    for rank, (address, port) in enumerate(spec.addresses):
        worker, me, (mac, ip, _) = place.worker + rank, 1 << rank, job.end(rank)
        cell = OUTCOMES * worker
        if spec.protocol == 1:
            for version in (0, 1):
                params = (cell, me, spec.workers - 1, place.row // 2, place.row + version * spec.slots,
                          0x3FFF & ~(spec.slots - 1), place.group)  # fmt: skip
                entries.append(Entry("workers_v1", (ip, version), "v1_worker", params))
            entries.append(Entry("receivers", (worker,), "v1_receiver", (mac, ip)))
        else:
            others = ((1 << spec.workers) - 1) & ~me
            minus_origin = (round_ - spec.isn) % 2**32
            params = (cell, me, others, job.number, minus_origin, spec.job_tag, place.group)
            entries.append(Entry("workers", (address_number(address), port, UDP_PORT), "v2_worker", params))
            entries.append(Entry("receivers", (worker,), "receiver", (mac, ip, port)))
    if spec.protocol == 2:
        size = SIZE_CODE_OF[spec.payload_bytes]
        entries.append(Entry("jobs", (job.number, size), "find", (rows - 1, 2**32 - rows)))
        entries.append(Entry("bases", (job.number,), "place", (place.row, 2**32 - round_)))
    copies = tuple((place.worker + rank, job.port(rank)) for rank in range(spec.workers))
    return Changes(groups=(Group(place.group, copies),), entries=tuple(map(_full_name, entries)))


def _full_name(entry: Entry) -> Entry:
    path = "OneEgress.inner" if entry.table == "receivers" else "OneIngress.inner.rule"
    return replace(entry, table=f"{path}.{entry.table}", action=f"{path}.{entry.action}")


class Chip:
    """Four pipes with one program, and the loopbacks between them."""

    def __init__(self, program: ir.Program, *changes: Changes) -> None:
        self.pipes = [switch_on(Interpreter, program) for _ in range(PIPES)]
        for pipe in self.pipes:
            for its in (switch_changes(), *changes):
                p4_programming.apply(pipe.state, its)

    def receive(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """(port, frame) of all that leaves for a frame that comes in, without padding."""
        under_way, left = deque([(port, frame)]), []
        while under_way:
            at, data = under_way.popleft()
            for to, sent in self.pipes[at >> 7].receive(at, data):
                if to & LOOPBACK:
                    under_way.append((to, sent))
                else:
                    left.append((to, unpadded(sent)))
        return left


def unpadded(frame: bytes) -> bytes:
    """A frame without what follows its IPv4 packet."""
    return frame[: 14 + int.from_bytes(frame[16:18], "big")] if frame[12:14] == b"\x08\0" else frame


def on_the_model(harness: str, image: Path, folder: Path, job: Job) -> Model:
    """The model of a Tofino with the program of `model_image` and what a job needs."""
    changes = (switch_changes(), job_changes(job))
    model = Model(harness, image, folder, (group for its in changes for group in its.groups))
    station = Entry("stations", (MARK_MAC,), "forward", (MARK_PORT,))
    for entry in (*(entry for its in changes for entry in its.entries), station):
        table = re.sub(r"^One(\w+)\.inner\.", r"Switch\1.", entry.table)
        action = entry.action.rpartition(".")[2]
        key = dict(zip(model.key_names(table), entry.key, strict=True))
        model.add(table, key, action, dict(zip(model.param_names(table, action), entry.params, strict=True)))
    return model


def model_image(protocol: int, folder: Path, compiler: str, assembler: str) -> Path:
    """The folder with the image of the program for a protocol."""
    _sources(folder, _without_value_set)
    source = folder / "tna" / "switchml.p4"
    return image(source, folder / "image", compiler, assembler, f"-DPROTOCOL={protocol}")


def _without_value_set(text: str) -> str:
    """The model's harness has no command for the parser's value set."""
    for pattern, replacement in MASK_FOR_VALUE_SET:
        text = re.sub(pattern, replacement, text)
    return text
