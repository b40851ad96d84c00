"""The data plane of a tree of P4 switches: what it puts where, and that it takes it out again."""

import json
from dataclasses import replace

import pytest

from emulator.p4switch.interpreter.interpreter import Interpreter
from switchml.control.dataplane import JobSpec
from switchml.control.p4 import tree as p4_tree
from switchml.control.p4.driver import AttachedPort, Unreachable
from switchml.control.p4.tree import P4TreeDataplane, TreeSwitch, read_tree
from switchml.errors import ConfigError
from tests.support import p4_programming
from tests.support.bmv2_engines import switch_on
from tests.support.p4_jobs import program

MACS = {rank: 0x02_00_00_00_00_01 + rank for rank in range(4)}


class InProcess:
    """A driver of a switch in this process. `state_lost`: what `has_state` says; `is_silent`: it raises Unreachable."""

    rows, where, collectives, only_sums = 65536, "here", True, False

    def __init__(self, ports):
        self.state = switch_on(Interpreter, program("switchml")).state
        self._ports, self.applied, self.state_lost, self.is_silent = ports, [], False, False

    def apply(self, changes):
        self._check()
        p4_programming.apply(self.state, changes)
        self.applied.append(changes)

    def undo(self, changes):
        self._check()
        if changes in self.applied:
            self.applied.remove(changes)
            p4_programming.undo(self.state, changes)

    def reset(self):
        for changes in list(self.applied):
            self.undo(changes)

    def ports(self):
        return [AttachedPort(port, f"eth{port}") for port in self._ports]

    def has_state(self):
        self._check()
        lost, self.state_lost = self.state_lost, False
        return not lost

    def reconnect(self):
        self._check()

    def read_counter(self, name, start, end):
        return [self.state.counter(name).read(index) for index in range(start, end)]

    def close(self):
        pass

    def entries(self):
        return sum(len(table.all_entries()) for table in self.state.tables), len(self.state.replication.groups)

    def _check(self):
        if self.is_silent:
            raise Unreachable("no switch there")


def two_racks() -> list[TreeSwitch]:
    def switch(number, name, above, ports, stations):
        address, mac = f"10.0.255.{number}", 0x02_00_00_00_FF_00 + number
        return TreeSwitch(name, InProcess([1, 2, 3]), address, mac, above, ports, stations)

    return [
        switch(1, "s1", None, {"r1": 1, "r2": 2}, {}),
        switch(2, "r1", "s1", {"s1": 3}, {MACS[0]: 1, MACS[1]: 2}),
        switch(3, "r2", "s1", {"s1": 3}, {MACS[2]: 1, MACS[3]: 2}),
    ]


def spec(ranks=(0, 1, 2, 3), job_id=1, job_tag=77) -> JobSpec:
    addresses = tuple((f"10.0.0.{1 + rank}", 5000 + job_id) for rank in ranks)
    macs = tuple(MACS[rank] for rank in ranks)
    return JobSpec(job_id, 2, len(ranks), 8, 256, addresses, job_tag, 0, macs=macs)


@pytest.fixture
def switches():
    return two_racks()


@pytest.fixture
def plane(switches):
    tree_plane = P4TreeDataplane(switches).start()
    yield tree_plane
    tree_plane.stop()


def entries(switches):
    return [switch.driver.entries() for switch in switches]


def test_jobs_come_and_go(plane, switches):
    before = entries(switches)
    plane.start_job(spec())
    plane.start_job(spec((0, 2), job_id=2, job_tag=78))
    # own address; two racks (or four ranks, or the root's) with a receiver each, twice; groups: flood, down, up
    assert entries(switches) == [(1 + 4 + 4, 3), (1 + 6 + 4, 5), (1 + 6 + 4, 5)]
    plane.stop_job(1)
    plane.stop_job(1)
    plane.stop_job(2)
    assert entries(switches) == before
    plane.start_job(spec())
    plane.stop()
    assert entries(switches) == [(0, 0)] * 3


def test_ranks_receive_their_own_switch(plane):
    plane.start_job(spec())
    own = [plane.address_for(address)[0] for address in spec().addresses]
    assert own == ["10.0.255.2", "10.0.255.2", "10.0.255.3", "10.0.255.3"]
    assert plane.link(1, 2).switch_mac == 0x02_00_00_00_FF_03
    assert plane.address_for(("10.9.9.9", 1)) == plane.address


def test_racks_without_ranks_have_nothing(plane, switches):
    before = entries(switches)
    plane.start_job(spec((0, 1)))
    assert entries(switches)[2] == before[2]
    assert entries(switches)[0] != before[0]


def test_what_is_refused(plane, switches):
    before = entries(switches)
    unknown = JobSpec(1, 2, 1, 8, 256, (("10.0.0.9", 1),), 77, 0, macs=(9,))
    with pytest.raises(ConfigError, match="rank 0 .*at no port that the tree's file names"):
        plane.start_job(unknown)
    with pytest.raises(ConfigError, match="does not support jobs with a deadline"):
        plane.start_job(replace(spec(), has_deadline=True))
    plane.start_job(spec())
    with pytest.raises(ConfigError, match="tag of another job"):
        plane.start_job(spec((0, 2), job_id=2))
    plane.stop_job(1)
    switches[2].driver.is_silent = True
    with pytest.raises(ConfigError, match="no switch there"):
        plane.start_job(spec())
    switches[2].driver.is_silent = False
    assert entries(switches) == before


def test_a_restarted_switch_costs_its_jobs(plane, switches):
    plane.start_job(spec())
    assert plane.failed() == {}
    assert p4_tree.P4TreeDataplane._fault_of(plane, switches[1]) == ""
    with plane._lock:
        switches[1].driver.state_lost = True
        assert "r1 was restarted" in plane._fault_of(switches[1])
    switches[1].driver.is_silent = True
    assert "r1: no switch there" in plane._fault_of(switches[1])
    switches[1].driver.is_silent = False


def test_counters(plane):
    plane.start_job(spec())
    assert [rank["accepted"] for rank in plane.counters(1).ranks] == [0] * 4
    assert plane.refused() == {"refused_address": 0}
    with pytest.raises(KeyError):
        plane.counters(9)


def tree_file(**changes):
    root = {"name": "s1", "switch": "thrift://127.0.0.1:1", "address": "10.0.255.1", "mac": "2:0:0:0:0:1",
            "ports": {"r1": 1}}  # fmt: skip
    rack = root | {"name": "r1", "above": "s1", "ports": {"s1": 1, "2:0:0:0:0:9": 2}} | changes
    return {"switches": [rack, root]}


@pytest.mark.parametrize(("what", "says"), [
    ("[", "is not JSON"),
    (json.dumps({"switches": [{}]}), "expected switches"),
    (json.dumps(tree_file(above="s7")), "expected switches"),
    (json.dumps(tree_file(above=None)), "one switch with none above"),
    (json.dumps(tree_file(ports={})), "no port leads from r1 to s1"),
    (json.dumps(tree_file()), "no switch at thrift://127.0.0.1:1"),
])  # fmt: skip
def test_files(tmp_path, what, says):
    (tmp_path / "tree.json").write_text(what)
    with pytest.raises((ConfigError, Unreachable), match=says):
        read_tree(tmp_path / "tree.json")


def test_a_tree_takes_what_all_of_its_switches_take(plane, switches):
    assert plane.collectives and not plane.only_sums
    switches[-1].driver.only_sums = True  # a program with a register a lane
    with_lanes = P4TreeDataplane(switches)
    assert with_lanes.collectives and with_lanes.only_sums
