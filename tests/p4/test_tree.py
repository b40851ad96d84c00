"""Trees of switches (docs/protocol.md, section 9): what they count, what is refused; and `TreeNetwork`, workers
around a tree over lossy links, with which test_tree_collectives.py plays whole calls and single packets."""

import struct
from dataclasses import dataclass

import pytest

from emulator.p4switch.engine.engine import CompiledEngine
from switchml.control.dataplane import JobSpec
from switchml.control.p4.tables import (
    OUTCOMES,
    Host,
    Neighbour,
    RegisterPlace,
    address_number,
    job_counters,
    switch_changes,
    tree_changes,
)
from switchml.errors import ConfigError
from switchml.protocol.packet import UDP_PORT
from tests.peers import simple_switch
from tests.support import p4_programming
from tests.support.bmv2_engines import switch_on
from tests.support.bmv2_replay import replay
from tests.support.p4_frames import Datagram, read_udp, udp
from tests.support.p4_jobs import COMPILED, program
from tests.support.rank_network import TAG, Network, Weather
from tests.support.reference_tree import ABOVE, Sender

UP = 0
"""The port to the switch above; those below come after it."""


@dataclass
class Node:
    """A switch of a tree: what is attached to its ports from 1 on, ranks or further switches."""

    name: int
    below: list
    above: "Node | None" = None

    def __post_init__(self):
        for child in self.below:
            if isinstance(child, Node):
                child.above = self

    @property
    def address(self) -> str:
        return f"10.200.0.{self.name}"

    @property
    def mac(self) -> int:
        return 0x02_00_00_00_FE_00 + self.name

    @property
    def ranks(self) -> list[int]:
        return [r for child in self.below for r in (child.ranks if isinstance(child, Node) else [child])]

    @property
    def keys(self) -> list[Sender]:
        """The neighbours by port: the switch above, ranks, and the ranks of each switch below."""
        return [ABOVE, *(tuple(child.ranks) if isinstance(child, Node) else child for child in self.below)]

    def at(self, port: int) -> "Node | int | None":
        return self.above if port == UP else self.below[port - 1]

    def all(self) -> list["Node"]:
        return [self] + [node for child in self.below if isinstance(child, Node) for node in child.all()]

    def changes(self, spec: JobSpec, place: RegisterPlace):
        hosts, below, above = {}, [], None
        for port, child in enumerate(self.below, 1):
            if isinstance(child, Node):
                below.append((Neighbour(child.address, Host(port, child.mac)), child.ranks))
            else:
                hosts[child] = Host(port, rank_mac(child))
        if self.above:
            above = Neighbour(self.above.address, Host(UP, self.above.mac))
        return tree_changes(spec, place, hosts, below, above)


def rank_mac(rank: int) -> int:
    return 0x02_00_00_00_00_00 + rank


def spec_of(
    workers: int, slots: int = 4, isn: int = 800, job_tag: int = 77, wire: int = 0, payload: int = 256
) -> JobSpec:
    addresses = tuple((f"10.100.0.{1 + rank}", 5000 + rank) for rank in range(workers))
    return JobSpec(1, 2, workers, slots, payload, addresses, job_tag, isn, wire)


def two_racks() -> Node:
    return Node(1, [Node(2, [0, 1]), Node(3, [2, 3])])


PLACE = RegisterPlace(row=64, worker=3, group=9, generation=1)


class Tree:
    """The switches of `root` on one engine, and how frames pass between them and the ranks. `variant`: of their
    program."""

    def __init__(self, engine: type, root: Node, spec: JobSpec, variant: str = "switchml"):
        self.spec, self.nodes = spec, root.all()
        self.switches = {}
        self.received: dict[int, list[tuple[int, bytes]]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            switch = switch_on(engine, program(variant))
            p4_programming.apply(switch.state, switch_changes(node.address, node.mac, range(len(node.below) + 1)))
            p4_programming.apply(switch.state, node.changes(spec, PLACE))
            self.switches[node.name] = switch

    def end(self, rank: int) -> tuple[int, int, int]:
        address, port = self.spec.addresses[rank]
        return rank_mac(rank), address_number(address), port

    def give(self, node: Node, sender: Sender, data: bytes) -> dict[Sender, bytes]:
        """What a switch makes of a packet of a neighbour: what leaves, by receiver."""
        port = node.keys.index(sender)
        there = node.at(port)
        end = (there.mac, address_number(there.address), UDP_PORT) if isinstance(there, Node) else self.end(there)
        frame = udp(Datagram(end, (node.mac, address_number(node.address), UDP_PORT), data))
        self.received[node.name].append((port, frame))
        left = {}
        for there, *what in self.pass_on(node, port, frame):
            is_rank = not isinstance(there, Node)
            key = there if is_rank else ABOVE if there is node.above else tuple(there.ranks)
            assert key not in left
            left[key] = what[0] if is_rank else read_udp(what[1]).payload
        return left

    def pass_on(self, node: Node, port: int, frame: bytes) -> list[tuple]:
        """What a switch makes of a frame: (rank, datagram) or (switch, port, frame) of each that leaves."""
        left = []
        for out, sent in self.switches[node.name].receive(port, frame):
            there = node.above if out == UP else node.below[out - 1]
            if isinstance(there, Node):
                read = read_udp(sent)
                assert read.src == (node.mac, address_number(node.address), UDP_PORT)
                assert read.dst == (there.mac, address_number(there.address), UDP_PORT)
                left.append((there, 1 + there.below.index(node) if out == UP else UP, sent))
            else:
                read = read_udp(sent)
                assert read.src == (node.mac, address_number(node.address), UDP_PORT)
                assert read.dst == self.end(there)
                left.append((there, read.payload))
        return left


def test_counters():
    tree = Tree(CompiledEngine, two_racks(), spec_of(4))
    node = tree.nodes[1]
    for sender, first, value in ((0, 0x81, 1), (1, 0x81, 2), (1, 0x89, 2), (ABOVE, 0xC1, 3)):
        tree.give(node, sender, struct.pack(">BbIHbb", first, 0, 800, 77, 0, 0) + struct.pack(">i", value) * 64)
    state = tree.switches[node.name].state
    n_numbers = 4 + 1
    cells = [state.counter("outcomes").read(OUTCOMES * PLACE.worker + i) for i in range(OUTCOMES * n_numbers)]
    counted = job_counters(spec_of(n_numbers), cells)
    assert [rank["accepted"] for rank in counted] == [1, 1, 0, 0, 1]
    assert [rank["completed"] for rank in counted] == [0, 1, 0, 0, 1]
    assert counted[1]["duplicates"] == counted[1]["retransmissions"] == 1


def test_trees_that_make_no_sense():
    host, other = Host(1, 2), Neighbour("10.0.0.9", Host(0, 9))
    with pytest.raises(ConfigError, match="at most once"):
        tree_changes(spec_of(2), PLACE, {0: host}, [(other, [0])])
    with pytest.raises(ConfigError, match="0 to 1"):
        tree_changes(spec_of(2), PLACE, {2: host})
    with pytest.raises(ConfigError, match="at most once"):
        tree_changes(spec_of(2), PLACE, {}, [], other)
    with pytest.raises(ConfigError, match="33 workers"):
        tree_changes(spec_of(33), PLACE, {0: host}, [], other)
    with pytest.raises(ConfigError, match="protocol 2"):
        tree_changes(JobSpec(1, 1, 1, 8192, 256, (None,)), PLACE, {0: host})


# Workers around a tree


class TreeNetwork(Network):
    """Workers around a tree of switches; whatever passes between any two of them meets the weather."""

    def __init__(self, tree, root: Node, calls, *, slots: int, isn: int, wire: int = 0, **options):
        """`tree`: makes the switches, see `p4` and `Reference`."""
        self.tree = tree(root, spec_of(len(calls), slots, isn, TAG, wire))
        self.rack = {child: node for node in root.all() for child in node.below if isinstance(child, int)}
        self.lost_between_switches = 0
        super().__init__(calls, slots=slots, windows=[slots] * len(calls), isn=isn, **options)

    def reach_aggregator(self, rank, data):
        node, sender, packet = data if isinstance(data, tuple) else (self.rack[rank], rank, data)
        for receiver, sent in self.tree.give(node, sender, packet).items():
            there = node.at(node.keys.index(receiver))
            if isinstance(there, Node):
                before = len(self.events)
                self.travel("up", rank, (there, ABOVE if node is there.above else tuple(node.ranks), sent))
                self.lost_between_switches += len(self.events) == before
            else:
                self.travel("down", there, sent)

    def check_end(self):
        """The results are compared with those of one aggregator."""


STORM = Weather(loss=0.1, double=0.05, late=0.05)
SHAPES = {
    "two racks": two_racks,
    "three racks of one to three": lambda: Node(1, [Node(2, [3, 1, 5]), Node(3, [0]), Node(4, [2, 4])]),
    "three levels": lambda: Node(1, [Node(2, [Node(3, [0, 1]), Node(4, [2])]), Node(5, [3]), 4]),
}


# On simple_switch


def check_on_simple_switch(programs, root: Node, tree: Tree) -> None:
    for node in root.all():
        ports = len(node.below) + 1
        itself = switch_changes(node.address, node.mac, range(ports))
        lines = p4_programming.commands([itself, node.changes(tree.spec, PLACE)])
        received = tree.received[node.name]
        sent, _, _ = simple_switch.run(*programs, COMPILED / "switchml.json", lines, received, ports)
        ours = replay(program("switchml"), lines, received, ports=ports)
        assert all(ours.accepted)
        assert sent == ours.sent
        assert sum(map(len, sent.values())) > 20
