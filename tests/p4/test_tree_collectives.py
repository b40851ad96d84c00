"""Trees of switches with everything but dense sums (docs/protocol.md, section 9): collectives of all kinds and sparse
streams over lossy links, by the slow reference of a switch, and by the P4 program beside it."""

import collections
import functools
import itertools
import random
import struct

import pytest

from emulator.p4switch.engine.engine import CompiledEngine
from emulator.p4switch.interpreter.interpreter import Interpreter
from switchml.protocol.retransmission import SECOND
from tests.p4.test_tree import SHAPES, STORM, Node, Tree, TreeNetwork, check_on_simple_switch, spec_of, two_racks
from tests.support import reference_fixedpoint as numbers
from tests.support.rank_network import CLEAR
from tests.support.reference_tree import ABOVE, ReferenceSwitch
from tests.support.tree_vectors import load_trees
from tests.switchml.protocol.test_collectives import KINDS, Scene


class Reference:
    """The switches of a tree by the slow reference."""

    def __init__(self, root: Node, spec):
        job = spec.workers, spec.slots, spec.payload_bytes, spec.wire, spec.job_tag, spec.isn
        self.switches = {node.name: ReferenceSwitch(node.keys[1:], node.above is not None, *job) for node in root.all()}

    def give(self, node: Node, sender, data: bytes):
        return self.switches[node.name].receive(sender, data).sent


class Beside(Reference):
    """The P4 program and the slow reference: for each packet the same have to leave."""

    def __init__(self, engine: type, root: Node, spec, variant: str = "switchml"):
        super().__init__(root, spec)
        self.p4 = Tree(engine, root, spec, variant)

    def give(self, node: Node, sender, data: bytes):
        sent = super().give(node, sender, data)
        assert self.p4.give(node, sender, data) == sent, (node.name, sender, data[:18].hex(" "))
        return sent


def scenes_of(workers: int, seed: int, kinds=KINDS) -> list[Scene]:
    """Two calls of each kind, in any order."""
    chooser = random.Random(seed)
    wire = chooser.choice([0, 0, 1, 2])
    dtypes = [dtype for dtype in numbers.DENSE if numbers.wire(dtype) in (0, wire)]
    order = [kind for kind in kinds for _ in range(2)]
    chooser.shuffle(order)
    return [Scene(kind, workers, chooser, dtypes) for kind in order]


def run(tree, root: Node, seed: int, weather, kinds=KINDS) -> TreeNetwork:
    workers = len(root.ranks)
    scenes = scenes_of(workers, seed, kinds)
    calls = [[scene.calls[rank] for scene in scenes] for rank in range(workers)]
    wire = max(0 if call.dtype == "raw" else numbers.wire(call.dtype) for call in calls[0])
    isn = (1 << 32) - 32
    network = TreeNetwork(tree, root, calls, slots=8, isn=isn, wire=wire, weather=weather, seed=seed, collectives=True)
    network.run(600 * SECOND)
    for scene in scenes:
        scene.check()
    return network


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("weather", [CLEAR, STORM], ids=["clear", "storm"])
@pytest.mark.parametrize(("seed", "shape"), list(enumerate(SHAPES)))
def test_every_kind_by_the_reference(shape, weather, seed):
    run(Reference, SHAPES[shape](), seed, weather)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("seed", "shape"), list(enumerate(SHAPES)))
def test_every_kind_by_the_program(shape, seed):
    network = run(functools.partial(Beside, CompiledEngine), SHAPES[shape](), seed, STORM)
    assert network.lost_between_switches > 5


@pytest.mark.parametrize("engine", [Interpreter, CompiledEngine], ids=["interpreter", "compiled"])
@pytest.mark.parametrize("scenario", load_trees(), ids=lambda scenario: scenario.job.name)
def test_vectors(scenario, engine):
    names = itertools.count(3)
    node = Node(2, [Node(next(names), list(x)) if isinstance(x, tuple) else x for x in scenario.below])
    here, job = set(node.ranks), scenario.job
    if scenario.above:
        Node(1, [node, Node(next(names), [rank for rank in range(job.workers) if rank not in here])])
    spec = spec_of(job.workers, job.slots, job.isn, job.tag, job.wire, job.payload_bytes)
    tree = Tree(engine, node, spec)
    for step in scenario.steps:
        assert tree.give(node, step.sender, step.data) == step.sent, step.label


# Packet by packet: calls that agree, and calls that do not


def contribution(chooser: random.Random, rank: int, root: int, call, spec, seq: int) -> bytes:
    """A rank's packet of a round: dense, sparse (`call` is its columns), or addressed (reach and op)."""
    head = struct.pack(">IH", seq, spec.job_tag)
    need, ahead = chooser.randint(-128, 127), chooser.randint(-128, 127)
    lanes = chooser.randbytes(spec.payload_bytes)
    size = {256: 1, 1024: 3}[spec.payload_bytes]
    if call is None:
        return struct.pack(">Bb", 0x80 | size, ahead) + head + struct.pack(">bb", need, 4) + lanes
    if isinstance(call, int):
        words, columns, need = chooser.randbytes(4 * call), call, 0
        has_data = chooser.random() < 0.5
    else:
        reach, op = call
        words, columns = bytes([reach, root, op, 127 - ahead]), 0
        has_data = chooser.random() < 0.1 or reach == 0 or (reach == 2) == (rank == root)
    if not has_data:
        size, lanes = (2, bytes(512)) if spec.payload_bytes == 1024 else (0, b"")
    return struct.pack(">BB", 0x84 | size, columns) + head + struct.pack(">bb", need, 4) + words + lanes


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("variant", "payload"), [("switchml", 256), ("switchml", 1024), ("switchml_lanes", 256)])
@pytest.mark.parametrize("shape", SHAPES)
def test_rounds_of_any_kind(shape, variant, payload):
    """Random packets of all ranks, of one call in most rounds, lost, doubled and sent again until all have a result.
    With a register a lane the ops are sums."""
    chooser, root = random.Random(f"{shape} {payload}"), SHAPES[shape]()
    workers = len(root.ranks)
    spec = spec_of(workers, 2, 64, payload=payload)
    tree = Beside(CompiledEngine, root, spec, variant)
    rack = {child: node for node in root.all() for child in node.below if isinstance(child, int)}
    calls = [None, 1, 2, 4, 8, *((reach, op) for reach in range(3) for op in range(5 if variant == "switchml" else 1))]
    for number in range(60):
        seq, owner = 64 + 2 * number, chooser.randrange(workers)
        all_call = chooser.choice(calls)
        packets = {}
        for rank in range(workers):
            call = all_call if chooser.random() < 0.95 else chooser.choice(calls)
            packets[rank] = contribution(chooser, rank, owner, call, spec, seq)
        waiting, tries = set(packets), 0
        while waiting:
            rank = chooser.choice(sorted(waiting))
            data = packets[rank]
            under_way = [(rack[rank], rank, bytes([data[0] | (8 if tries else 0)]) + data[1:])]
            while under_way:
                node, sender, sent = under_way.pop(chooser.randrange(len(under_way)))
                for _ in range(chooser.choice([0, 1, 1, 1, 2])):
                    for receiver, left in tree.give(node, sender, sent).items():
                        there = node.at(node.keys.index(receiver))
                        if isinstance(there, Node):
                            under_way.append((there, ABOVE if node is there.above else tuple(node.ranks), left))
                        elif left[0] >> 4 != 15 and chooser.random() < 0.9:
                            waiting.discard(receiver)
            tries += chooser.random() < 0.7
            assert tries < 2000


def packet_of_any_kind(chooser: random.Random, sender, seq: int, job_tag: int) -> bytes:
    """Mostly what a neighbour sends: contributions of a rank, partial sums of a rack, results and waits from above."""
    usual = [12, 12, 15] if sender == ABOVE else [8]
    kind = chooser.choice(usual * 8 + [8, 9, 12, 13, 15])
    codes = [chooser.choice([0, 0, chooser.randint(-128, 127)]) for _ in range(2)]
    last = chooser.choice([0, 0, 0, 1, 2, 3]) if kind == 12 else chooser.choice([4] * 9 + [5])
    job_tag = job_tag if chooser.random() < 0.97 else job_tag ^ 1
    if kind == 15:
        return struct.pack(">BbIHbb", 0xF0, 0, seq, job_tag, 0, 0) + chooser.randbytes(chooser.choice([32] * 9 + [33]))
    is_partial = kind < 12 and isinstance(sender, tuple) ^ (chooser.random() < 0.1)
    first = kind << 4 | chooser.choice([0, 0, 8]) | (5 if is_partial else 1)
    lanes = struct.pack(">i", chooser.choice([1, 2, 0x7FFFFFFF, -0x80000000])) * 64
    trailer = bytes([chooser.choice([0, 0, 0, 1, 2, 3]), 0]) if is_partial else b""
    return struct.pack(">BbIHbb", first, codes[0], seq, job_tag, codes[1], last) + lanes + trailer


@pytest.mark.parametrize(("seed", "isn"), [(0, 800), (1, 2**32 - 16), (2, 0)])
def test_packets_of_any_kind(seed, isn):
    """From each neighbour of a rack's switch and of the root, which has a rank of its own, in and out of turn: those
    that fit nothing change nothing."""
    chooser = random.Random(seed)
    root = Node(1, [Node(2, [0, 1]), 2, Node(3, [3])])
    slots, done = 2, collections.Counter()
    spec = spec_of(4, slots, isn)
    tree, rounds = Beside(CompiledEngine, root, spec), collections.Counter()
    for _ in range(1500):
        node, slot = chooser.choice(root.all()[:2]), chooser.randrange(slots)
        sender = chooser.choice([key for key in node.keys if key is not ABOVE or node.above])
        number = rounds[node.name, slot] + chooser.choice([0] * 12 + [-2, -1, -1, 1, 2])
        data = packet_of_any_kind(chooser, sender, (isn + number * slots + slot) % 2**32, spec.job_tag)
        left = tree.give(node, sender, data)
        kinds = {packet[0] >> 4 for packet in left.values()}
        rounds[node.name, slot] += kinds == {12} and len(left) > 1
        for kind in kinds:
            done[node.name, kind, len(left)] += 1
    # Partial sums go up; results go down, to who asks again, too; and so do waits, the rack's own and the root's.
    usual = {(2, 8, 1), (2, 12, 2), (2, 12, 1), (2, 15, 1), (2, 15, 2), (1, 12, 3), (1, 12, 1), (1, 15, 1)}
    assert min(done[each] for each in usual) >= 3, done


@pytest.mark.slow
def test_collectives_on_simple_switch(require_program):
    programs = require_program("simple_switch"), require_program("simple_switch_CLI")
    root = two_racks()
    kinds = ("sum", "reduce_scatter", "broadcast", "barrier", "sparse")
    network = run(functools.partial(Tree, CompiledEngine), root, 1, STORM, kinds)
    check_on_simple_switch(programs, root, network.tree)
