"""The packet path's operations on one packet, as kernels (documented in packet_path.engine.Operations).

The current packet is in the VM's frame; a waiting or saved packet is a copy of the frame's system cells and headers
elsewhere. In kernels, a packet is therefore the address of such a block, and an engine the address of its plan."""

from emulator.p4switch.engine import pool
from emulator.p4switch.engine.layout import CELL, PHV
from emulator.p4switch.engine.plan import PLAN
from emulator.p4switch.engine.raw import call2, clear_block, copy_block, ld64, st8, st64
from emulator.p4switch.engine.vm.bits import copy, load_bits, store_bits
from emulator.p4switch.engine.vm.vm import STUCK
from emulator.p4switch.packet_path.fields import FIRST_REGISTER
from switchml.runtime.jit import kernel

REGISTERS_AT = CELL.received_at
"""Offset of the first register."""


@kernel
def now(plan: int) -> int:
    return ld64(plan + PLAN.now)


@kernel
def drop_port(plan: int) -> int:
    return ld64(plan + PLAN.drop_port)


@kernel
def n_priorities(plan: int) -> int:
    return ld64(plan + PLAN.n_priorities)


@kernel
def get(plan: int, packet: int, field: int) -> int:
    if field >= FIRST_REGISTER:
        return ld64(packet + REGISTERS_AT + 8 * (field - FIRST_REGISTER))
    offset = ld64(plan + 16 * field)
    return ld64(packet + offset) if offset >= 0 else 0


@kernel
def set(plan: int, packet: int, field: int, value: int) -> None:
    if field >= FIRST_REGISTER:
        st64(packet + REGISTERS_AT + 8 * (field - FIRST_REGISTER), value)
        return
    offset = ld64(plan + 16 * field)
    if offset >= 0:
        st64(packet + offset, value & ld64(plan + 16 * field + 8))


# Blocks


@kernel
def run(plan: int, packet: int, block: int) -> bool:
    st64(packet + CELL.loops, 0)
    status = call2(ld64(plan + PLAN.vm), packet, ld64(plan + PLAN.ingress_parser + 8 * block))
    if status == STUCK:
        st64(plan + PLAN.lost, ld64(plan + PLAN.lost) + 1)
    elif status:
        st64(plan + PLAN.status, status)
    return status == 0


@kernel
def parse(plan: int, packet: int, block: int) -> bool:
    st64(packet + CELL.cursor, 0)
    st64(packet + CELL.parser_error, ld64(plan + PLAN.no_error))
    st64(packet + CELL.checksum_error, 0)
    st64(packet + CELL.states, 0)
    return run(plan, packet, block)


@kernel
def deparse(plan: int, packet: int, block: int) -> bool:
    out, cursor = ld64(plan + PLAN.out), ld64(packet + CELL.cursor)
    rest = ld64(packet + CELL.length) - cursor
    if out + ld64(plan + PLAN.header_bytes) + rest > ld64(plan + PLAN.out_end):
        st64(plan + PLAN.lost, ld64(plan + PLAN.lost) + 1)
        return False
    st64(packet + CELL.out, out)
    if not run(plan, packet, block):
        return False
    end = ld64(packet + CELL.out)
    copy(end, ld64(packet + CELL.packet) + cursor, rest)
    st64(packet + CELL.packet, out)
    st64(packet + CELL.length, end + rest - out)
    st64(packet + CELL.cursor, 0)
    st64(plan + PLAN.out, end + rest)
    return True


@kernel
def learn(plan: int, packet: int) -> None:
    for i in range(ld64(plan + PLAN.n_digests)):
        row = ld64(plan + PLAN.digests) + 16 * i
        if ld64(row) == ld64(packet + CELL.digest):
            call2(ld64(plan + PLAN.vm), packet, ld64(row + 8))


# Packets


@kernel
def begin(plan: int, packet: int, address: int, length: int, port: int, counted_length: int) -> None:
    """Initialize a packet of these bytes, unparsed; all metadata is 0, or from the pool."""
    if ld64(plan + PLAN.pool):
        pool.begin(plan, packet)
    else:
        clear_block(packet + 8, ld64(plan + PLAN.phv_end) - 8)
    _validate_metadata(plan, packet)
    st64(packet + CELL.packet, address)
    st64(packet + CELL.length, length)
    st64(packet + CELL.packet_length, length)
    st64(packet + CELL.ingress_length, counted_length)
    st64(packet + CELL.received_at, port)
    st64(packet + CELL.now, ld64(plan + PLAN.now))


@kernel
def _validate_metadata(plan: int, packet: int) -> None:
    headers = ld64(plan + PLAN.metadata_headers)
    for i in range(ld64(plan + PLAN.n_metadata_headers)):
        st8(packet + ld64(headers + 8 * i), 1)


@kernel
def reset_metadata(plan: int, packet: int) -> None:
    start = ld64(plan + PLAN.metadata)
    clear_block(packet + start, ld64(plan + PLAN.metadata_end) - start)


@kernel
def keep_fields(plan: int, packet: int, source: int, field_list: int) -> None:
    reset_metadata(plan, packet)
    if field_list >= ld64(plan + PLAN.n_field_lists):
        return
    row = ld64(plan + PLAN.field_lists) + 16 * field_list
    piece = ld64(row)
    for _ in range(ld64(row + 8)):
        _copy_bits(packet + ld64(piece), source + ld64(piece), ld64(piece + 8), ld64(piece + 16))
        piece += 24


@kernel
def _copy_bits(to: int, source: int, bit: int, width: int) -> None:
    """Copy `width` bits that begin `bit` bits after the addresses."""
    if bit == 0 and width & 7 == 0:
        copy(to, source, width >> 3)
        return
    while width > 0:
        part, at = min(width, 32), bit >> 3
        store_bits(to + at, bit & 7, part, load_bits(source + at, bit & 7, part))
        bit += part
        width -= part


@kernel
def strip(plan: int, packet: int) -> None:
    clear_block(packet + PHV, ld64(plan + PLAN.metadata) - PHV)
    _validate_metadata(plan, packet)


@kernel
def forget_requests(packet: int) -> None:
    st64(packet + CELL.clone, 0)
    st64(packet + CELL.digest, 0)
    st64(packet + CELL.resubmit, 0)
    st64(packet + CELL.recirculate, 0)
    st64(packet + CELL.truncate, 0)
    st64(packet + CELL.exit, 0)


# Copies of packets


@kernel
def save(plan: int, packet: int) -> int:
    aside = ld64(plan + PLAN.saved)
    copy_block(aside, packet, ld64(plan + PLAN.phv_end))
    return aside


@kernel
def unparsed(plan: int, aside: int) -> int:
    packet = ld64(plan + PLAN.frame)
    begin(
        plan, packet, ld64(aside + CELL.packet), ld64(aside + CELL.length), ld64(aside + CELL.received_at),
        ld64(aside + CELL.ingress_length),
    )  # fmt: skip
    return packet


@kernel
def duplicate(plan: int, aside: int) -> int:
    packet = ld64(plan + PLAN.frame)  # which still holds the saved packet
    forget_requests(packet)
    pool.become_copy(plan, packet)
    return packet


@kernel
def end(plan: int, packet: int) -> None:
    pool.end_packet(plan, packet)
