"""What goes between program and controller: packets with their metadata (section 16.1), and digests (9.8)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from emulator.bmv2.digests import Digest, DigestList
from emulator.bmv2.p4runtime.p4info import Info
from emulator.bmv2.p4runtime.protos import messages
from emulator.bmv2.p4runtime.values import decode, encode, invalid
from emulator.bmv2.values import mask

INSERT, MODIFY, DELETE = 1, 2, 3


def packet_in(info: Info, frame: bytes) -> Any:
    """The PacketIn for a frame that left by the CPU port: its first header becomes metadata."""
    described = info.named("controller_packet_metadata", "packet_in")
    told = messages().PacketIn()
    if described is None:
        told.payload = frame
        return told
    bits = sum(item.bitwidth for item in described.metadata)
    n_bytes = (bits + 7) // 8
    number, left = int.from_bytes(frame[:n_bytes], "big"), 8 * n_bytes
    for item in described.metadata:
        left -= item.bitwidth
        told.metadata.add(metadata_id=item.id, value=encode(number >> left & mask(item.bitwidth)))
    told.payload = frame[n_bytes:]
    return told


def packet_out(info: Info, packet: Any) -> bytes:
    """The frame that comes in by the CPU port for a PacketOut: metadata become its first header."""
    described = info.named("controller_packet_metadata", "packet_out")
    if described is None:
        return packet.payload
    given = {item.metadata_id: item.value for item in packet.metadata}
    number = bits = 0
    for item in described.metadata:
        value = 0
        if item.id in given:
            value = decode(given.pop(item.id), item.bitwidth, f"packet_out.{item.name}")
        number, bits = number << item.bitwidth | value, bits + item.bitwidth
    if given:
        raise invalid(f"packet_out has no metadata with id {min(given)}")
    n_bytes = (bits + 7) // 8
    return (number << (8 * n_bytes - bits)).to_bytes(n_bytes, "big") + packet.payload


class Digests:
    """Digests of a program; `send` gets each DigestList. One that the controller did not ask for is not sent."""

    def __init__(self, info: Info, send: Callable[[Any], None]) -> None:
        self.info = info
        self.send = send
        self._configs: dict[int, Any] = {}
        self._lock = threading.Lock()

    def _list(self, number: int) -> DigestList:
        name = self.info.get("digests", number).preamble.name
        for digest in self.info.state.digests:
            if digest.list.name == name:
                return digest
        raise invalid(f"the program has no digest {name!r}")

    def write(self, kind: int, entity: Any) -> None:
        """INSERT, MODIFY or DELETE a DigestEntry."""
        found = self._list(entity.digest_id)
        if kind == DELETE:
            found.on_digest = None
            self._configs.pop(entity.digest_id, None)
            return
        found.set_timeout(entity.config.max_timeout_ns // 1_000_000)
        found.set_max_samples(max(entity.config.max_list_size, 1))
        self._configs[entity.digest_id] = entity
        found.on_digest = lambda digest: self._tell(entity.digest_id, digest)

    def read(self, wanted: Any) -> Iterator[Any]:
        """The DigestEntries that were written (id 0: all)."""
        for number, entity in sorted(self._configs.items()):
            if wanted.digest_id in (0, number):
                yield entity

    def acknowledge(self, ack: Any) -> None:
        """Let the samples of a DigestList be sent again."""
        self._list(ack.digest_id).acknowledge(ack.list_id - 1)

    def _tell(self, number: int, digest: Digest) -> None:
        told = messages().DigestList(digest_id=number, list_id=digest.buffer_id + 1, timestamp=time.time_ns())
        is_struct = self.info.get("digests", number).type_spec.WhichOneof("type_spec") != "bitstring"
        for sample in digest.samples:
            data = told.data.add()
            for value in sample:
                if is_struct:
                    data.struct.members.add().bitstring = encode(value)
                else:
                    data.bitstring = encode(value)
        self.send(told)
