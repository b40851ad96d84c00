"""p4/tna on the model of a Tofino (tests/support/tofino_model.py): the image of a program, and the entries of a switch
and of a job, whose tables are not those of p4/switchml.p4."""

import re
from pathlib import Path

from switchml.control.p4.tables import OUTCOMES, Changes, Entry, Group, address_number
from switchml.protocol.packet import SIZE_CODE_OF, UDP_PORT
from tests.support.p4_frames import SWITCH_ADDRESS, SWITCH_MAC
from tests.support.p4_jobs import PORTS, Job
from tests.support.tofino_model import MARK_MAC, MARK_PORT, PIPES, Model, image

P4 = Path(__file__).parents[2] / "p4"
LOOPBACK = 0x40
"""Bit of a port that leads to the next pass; the two above it number the pipe."""
MASK_FOR_VALUE_SET = [(r"value_set<.*\n", "\n"), (r"loopbacks: next_pass;", f"{LOOPBACK} &&& {LOOPBACK}: next_pass;")]
"""The model's harness has no command for the parser's value set."""


def switch_changes() -> Changes:
    """The switch's own address, and the ports in loopback: four to each pipe."""
    address = address_number(SWITCH_ADDRESS)
    return Changes(
        groups=(Group(1, tuple((0, port) for port in range(PORTS))),),
        entries=(
            Entry("SwitchIngress.own_addresses", (address,), "own", ()),
            Entry("SwitchIngress.own_macs", (address, 1), "answer_arp", (SWITCH_MAC,)),
            *(
                Entry("SwitchIngress.passes.loopbacks", (pipe, row), "through",
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
                entries.append(Entry("SwitchIngress.rule.workers_v1", (ip, version), "v1_worker", params))
            entries.append(Entry("SwitchEgress.receivers", (worker,), "v1_receiver", (mac, ip)))
        else:
            others = ((1 << spec.workers) - 1) & ~me
            minus_origin = (round_ - spec.isn) % 2**32
            params = (cell, me, others, job.number, minus_origin, spec.job_tag, place.group)
            entries.append(
                Entry("SwitchIngress.rule.workers", (address_number(address), port, UDP_PORT), "v2_worker", params)
            )
            entries.append(Entry("SwitchEgress.receivers", (worker,), "receiver", (mac, ip, port)))
    if spec.protocol == 2:
        size = SIZE_CODE_OF[spec.payload_bytes]
        entries.append(Entry("SwitchIngress.rule.jobs", (job.number, size), "find", (rows - 1, 2**32 - rows)))
        entries.append(Entry("SwitchIngress.rule.bases", (job.number,), "place", (place.row, 2**32 - round_)))
    copies = tuple((place.worker + rank, job.port(rank)) for rank in range(spec.workers))
    return Changes(groups=(Group(place.group, copies),), entries=tuple(entries))


def unpadded(frame: bytes) -> bytes:
    """A frame without what follows its IPv4 packet."""
    return frame[: 14 + int.from_bytes(frame[16:18], "big")] if frame[12:14] == b"\x08\0" else frame


def on_the_model(harness: str, image: Path, folder: Path, job: Job) -> Model:
    """The model of a Tofino with the program of `model_image` and what a job needs."""
    changes = (switch_changes(), job_changes(job))
    model = Model(harness, image, folder, (group for its in changes for group in its.groups))
    station = Entry("stations", (MARK_MAC,), "forward", (MARK_PORT,))
    for entry in (*(entry for its in changes for entry in its.entries), station):
        key = dict(zip(model.key_names(entry.table), entry.key, strict=True))
        names = model.param_names(entry.table, entry.action)
        model.add(entry.table, key, entry.action, dict(zip(names, entry.params, strict=True)))
    return model


def model_image(protocol: int, folder: Path, compiler: str, assembler: str) -> Path:
    """The folder with the image of the program for a protocol."""
    (folder / "tna").mkdir(parents=True)
    for path in P4.glob("*.p4"):
        (folder / path.name).write_text(path.read_text())
    for path in (P4 / "tna").glob("*.p4"):
        text = path.read_text()
        for pattern, replacement in MASK_FOR_VALUE_SET:
            text = re.sub(pattern, replacement, text)
        (folder / "tna" / path.name).write_text(text)
    source = folder / "tna" / "switchml.p4"
    return image(source, folder / "image", compiler, assembler, f"-DPROTOCOL={protocol}")
