"""An agent in virtual time whose peer has left: which wait packets mean that nothing more comes."""

import numpy as np
import pytest
import simpy

from emulator.faults.agent import VirtualAgent
from emulator.netsim.packets import Packet
from host_agent.calls import Request
from switchml.control.client import JobInfo
from switchml.control.membership import PeerLeft
from switchml.errors import PeerLost
from switchml.protocol.packet import WaitPacket

MS = 1_000_000


class Session:
    info = JobInfo(1, 7, 0, 4, 4, 256, 0, ("10.0.0.1", 1), (), "", job="j", rank=0, world_size=2)

    def events(self, callback):
        self.report = callback

    def leave(self):
        pass


@pytest.mark.parametrize(("wait_at_ms", "is_lost"), [(100, False), (400, False), (1500, True)])
def test_a_late_wait_packet_proves_nothing(wait_at_ms, is_lost):
    """The peer contributed before it left, at 0 ms; a wait packet from before that names it."""
    env, session, ended = simpy.Environment(1000 * MS), Session(), []
    agent = VirtualAgent(
        env, session, rank=0, world_size=2, job="j", endpoint=1, send=lambda packet: None, inbox_packets=9
    )
    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
    agent.submit(Request(x.ctypes.data, y.ctypes.data, 8, "float32", "sum", ended.append, keep=(x, y)))
    session.report(PeerLeft((1,), "rank 1 left the job"))
    wait = np.frombuffer(WaitPacket(seq=0, tag=7, missing=(1,)).pack(), np.uint8)
    env.timeout(wait_at_ms * MS).callbacks.append(lambda _: agent.receive(Packet(wait, 0, 0)))
    env.run(until=env.now + 4000 * MS)
    assert [type(error) for error in ended] == ([PeerLost] if is_lost else [])
