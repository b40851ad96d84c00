"""An agent in virtual time: which wait packets mean that a peer that left is missed, and turns that never end."""

import numpy as np
import pytest
import simpy

from emulator.networks.faults.agent import VirtualAgent
from emulator.networks.faults.checks import Violation
from emulator.networks.netsim.packets import Packet
from host_agent.calls import Request
from host_agent.core import Core
from switchml.control.client import JobInfo
from switchml.control.membership import PeerLeft
from switchml.errors import PeerLost
from tests.support.packets import WaitPacket

MS = 1_000_000


class Session:
    info = JobInfo(1, 7, 0, 4, 4, 256, 0, ("10.0.0.1", 1), (), "", job="j", rank=0, world_size=2)

    def events(self, callback):
        self.report = callback

    def leave(self):
        pass

    def waiting(self, report):
        pass


class Alone:
    """Rank 0 of a job of two whose peer leaves at 0 ms, with an all-reduce of ones under way."""

    def __init__(self):
        self.env, self.ended = simpy.Environment(1000 * MS), []
        session = Session()
        self.agent = VirtualAgent(
            self.env, session, rank=0, world_size=2, job="j", endpoint=1, send=lambda packet: None, inbox_packets=9
        )
        session.events(self.agent.on_event)
        x, self.sums = np.ones(8, np.float32), np.zeros(8, np.float32)
        self.agent.submit(Request(x.ctypes.data, self.sums.ctypes.data, 8, "float32", "sum", self.done, keep=(x,)))
        session.report(PeerLeft((1,), "rank 1 left the job"))

    def done(self, error):
        self.ended.append(type(error))

    def at_ms(self, time_ms, action):
        self.env.timeout(time_ms * MS).callbacks.append(lambda _: action())

    def receive_wait(self):
        wait = np.frombuffer(WaitPacket(seq=0, job_tag=7, missing=(1,)).pack(), np.uint8)
        self.agent.receive(Packet(wait, 0, 0))

    def run_ms(self, time_ms):
        self.env.run(until=self.env.now + time_ms * MS)


@pytest.mark.parametrize(("wait_at_ms", "is_lost"), [(100, False), (400, False), (1500, True)])
def test_a_late_wait_packet_proves_nothing(wait_at_ms, is_lost):
    """The peer contributed before it left; a wait packet from before that names it."""
    alone = Alone()
    alone.at_ms(wait_at_ms, alone.receive_wait)
    alone.run_ms(4000)
    assert alone.ended == ([PeerLost] if is_lost else [])


@pytest.mark.parametrize("stopped_ms", [(50, 800), (50, 5000), (300, 1200)])
def test_a_stopped_process_finds_wait_packets_from_before_its_peers_left(stopped_ms):
    """They were in its socket, or read already; the result comes when it probes again."""
    begin_ms, end_ms = stopped_ms
    for wait_at_ms in (begin_ms - 10, begin_ms + 10):
        alone = Alone()
        alone.at_ms(begin_ms, alone.agent.pause)
        alone.at_ms(wait_at_ms, alone.receive_wait)
        alone.at_ms(end_ms, alone.agent.resume)
        alone.run_ms(end_ms + 2000)
        assert alone.ended == []


def test_a_process_that_was_stopped_learns_of_missing_peers():
    alone = Alone()
    alone.at_ms(50, alone.agent.pause)
    alone.at_ms(2000, alone.agent.resume)
    for time_ms in range(2100, 4000, 200):  # answers to its probes
        alone.at_ms(time_ms, alone.receive_wait)
    alone.run_ms(3500)
    assert alone.ended == [PeerLost]


def test_turns_without_end_are_a_livelock(monkeypatch):
    monkeypatch.setattr(Core, "finish_turn", lambda core, now: setattr(core, "calls", core.calls + 1))
    with pytest.raises(Violation, match=r"livelock: rank 0 of j still has work after 1,000 turns"):
        Alone()
