"""The scenarios of tests/vectors as jobs on a P4 switch: which frames are sent from where, and the expected replies."""

import functools
from dataclasses import dataclass
from pathlib import Path

from emulator.p4switch.program import ir
from emulator.p4switch.program.loader.loader import load
from switchml.control.dataplane import JobSpec
from switchml.control.p4.tables import (
    MAX_WORKERS,
    Changes,
    Host,
    RegisterPlace,
    address_number,
    job_changes,
    rows,
    switch_changes,
)
from switchml.protocol.packet import UDP_PORT
from tests.support.p4_frames import SWITCH_ADDRESS, SWITCH_MAC, Datagram, read_udp, udp
from tests.support.vectors_io import Scenario, Step

COMPILED = Path(__file__).parents[2] / "p4" / "compiled"
PORTS = 4
V1_SOURCE_PORT = 4000


def switch_itself() -> Changes:
    """A switch with an address and PORTS ports."""
    return switch_changes(SWITCH_ADDRESS, SWITCH_MAC, range(PORTS))


@functools.cache
def program(variant: str) -> ir.Program:
    """The program of p4/compiled with this name."""
    return load(COMPILED / f"{variant}.json")


def fits(scenario: Scenario) -> bool:
    """Whether the P4 program takes as many workers."""
    return scenario.workers <= MAX_WORKERS


@dataclass(frozen=True)
class Job:
    """A scenario at a place of a switch. `number` tells jobs of one switch apart; `may_expire`: rounds may end without
    some ranks though the scenario has no expiry."""

    scenario: Scenario
    place: RegisterPlace
    number: int = 0
    may_expire: bool = False

    @property
    def spec(self) -> JobSpec:
        s = self.scenario
        v1 = s.protocol == 1
        addresses = tuple((f"10.{1 + self.number}.0.{1 + rank}", 0 if v1 else 5000 + rank) for rank in range(s.workers))
        return JobSpec(
            self.number, s.protocol, s.workers, 8192 if v1 else s.slots, s.payload_bytes, addresses, s.tag, s.isn,
            s.wire, has_deadline=s.has_expiries or self.may_expire,
        )  # fmt: skip

    @property
    def rows(self) -> int:
        return rows(self.spec)

    def changes(self) -> Changes:
        hosts = [Host(self.port(rank), self.end(rank)[0]) for rank in range(self.scenario.workers)]
        return job_changes(self.spec, self.place, hosts)

    def port(self, rank: int) -> int:
        """The switch's port that a rank is attached to."""
        return rank % PORTS

    def end(self, rank: int) -> tuple[int, int, int]:
        """A rank's (MAC, IPv4 number, UDP port)."""
        address, port = self.spec.addresses[rank]
        return 0x02_00_00_01_00_00 + (self.number << 8) + rank, address_number(address), port or V1_SOURCE_PORT

    def frame(self, step: Step) -> tuple[int, bytes]:
        """(port, frame) of what a step sends."""
        switch = SWITCH_MAC, address_number(SWITCH_ADDRESS), UDP_PORT
        return self.port(step.rank), udp(Datagram(self.end(step.rank), switch, step.data))

    def replies(self, step: Step) -> list[tuple[int, Datagram]]:
        """(port, datagram) of the expected replies, by receiving rank."""
        ranks = step.to if step.action == "multicast" else [step.rank]
        switch = SWITCH_MAC, address_number(SWITCH_ADDRESS), UDP_PORT
        replies = [(rank, step.reply_to(rank)) for rank in ranks if step.reply]
        return [(self.port(rank), Datagram(switch, self.end(rank), reply)) for rank, reply in replies]


def read(sent: list[tuple[int, bytes]]) -> list[tuple[int, Datagram]]:
    """The datagrams that hosts receive in frames from the switch."""
    return [(port, read_udp(frame)) for port, frame in sent]
