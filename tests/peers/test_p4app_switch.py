"""Our agents that speak v1 on p4app-switchML's own switch: its program, compiled by p4c's Tofino back end, on the
model of a Tofino, and its controller, which the agents open their session with.

Put the three programs on PATH and the path of a checkout of p4lang/p4app-switchML in P4APP_SWITCHML.
"""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from host_agent.agent import HostAgent
from tests.support import p4app_switch
from tests.support.launch import ROOT, LocalAggregator, contribution, good, leave_all, on_all
from tests.support.tofino_model import TOOLS, image

pytestmark = [pytest.mark.needs(*TOOLS, "P4APP_SWITCHML"), pytest.mark.timeout(1800)]

BITMAPS = "worker_bitmap", "switchml_md.map_result", "switchml_md.worker_bitmap_before"
KEYLESS = "    table switch_mac_and_ip {\n"
NO_OVERLAY = '@pa_no_overlay("ingress", "ig_md.switchml_md.simulate_egress_drop")\n'
CHANGED = {
    # the model's harness sets the default action of tables with keys only
    "p4/udp_sender.p4": (KEYLESS, KEYLESS + "        key = { eg_md.switchml_md.worker_type : ternary; }\n"),
    # p4c's Tofino back end finds no place for bitmaps that it takes apart
    "p4/types.p4": (
        NO_OVERLAY,
        NO_OVERLAY + "".join(f'@pa_container_size("ingress", "ig_md.{name}", 32)\n' for name in BITMAPS),
    ),
    # HARVEST3 fetches the left half of pipe 2's lanes, which port 448, of pipe 3, does not lead to: elements 128 to 159
    # of each packet of 1024 bytes would be the sums of 192 to 223
    "controller/next_step_selector.py": ("3: 448,", "3: 324,"),
}
"""What is replaced in their files, by what."""
SIZES = [(1, "int32"), (64, "float32"), (5000, "float32"), (3001, "int32")]


@pytest.fixture(scope="module")
def dev_root(require_program, tmp_path_factory):
    """Theirs with `CHANGED`, and the program's image."""
    compiler, assembler, _ = map(require_program, TOOLS)
    copy = tmp_path_factory.mktemp("p4app") / "dev_root"
    for name in ("p4", "controller", "protos"):
        shutil.copytree(Path(os.environ["P4APP_SWITCHML"], "dev_root", name), copy / name)
    for name, (old, new) in CHANGED.items():
        text = (copy / name).read_text()
        assert text.count(old) == 1, name
        (copy / name).write_text(text.replace(old, new))
    # with this option it places tables before fields; in its usual order it finds no allocation
    image(copy / "p4" / "switchml.p4", copy / "image", compiler, assembler, "--alt-phv-alloc")
    return copy


@contextmanager
def their_switch(folder: Path, dev_root: Path, harness: str, ranks: int, lose: int):
    """Address of its controller."""
    (folder / "image").symlink_to(dev_root / "image")
    command = [sys.executable, "-m", p4app_switch.__name__, str(folder), harness, str(dev_root), str(ranks), str(lose)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as switch:
        try:
            yield f"127.0.0.1:{int(switch.stdout.readline())}"
        finally:
            switch.kill()


def sums(address: str, ranks: int, job: str, **options) -> list[np.ndarray]:
    """Rank 0's, after a look that all ranks have the same."""

    def join(rank: int) -> HostAgent:
        ip = p4app_switch.HOST_IPS[rank]
        return HostAgent.join(address, job=job, rank=rank, world_size=ranks, bind_ip=ip, timeout_s=60, **options)

    agents = good(on_all(range(ranks), join, 120))
    found = []
    for seed, (numel, dtype) in enumerate(SIZES):

        def reduce(agent: HostAgent, seed: int = seed, numel: int = numel, dtype: str = dtype) -> np.ndarray:
            return agent.allreduce(contribution(seed, agent.rank, numel, dtype), timeout_s=300)

        first, *others = good(on_all(agents, reduce, 400))
        for other in others:
            np.testing.assert_array_equal(other, first)
        found.append(first)
    leave_all(agents)
    return found


@pytest.mark.parametrize(
    ("ranks", "payload_bytes", "lose"), [(2, 256, 0), (3, 256, 0), (2, 1024, 0), (3, 1024, 0), (2, 256, 61)]
)
def test_the_same_bits_as_our_own_switch_s(ranks, payload_bytes, lose, dev_root, require_program, tmp_path):
    options = {"payload_bytes": payload_bytes, "slots": 8, "protocol": f"v1:timeout={2 if lose else 20}s"}
    with their_switch(tmp_path, dev_root, require_program("tofino_test_harness"), ranks, lose) as address:
        theirs = sums(address, ranks, "theirs", **options)
    with LocalAggregator(v1=True) as ours:
        for its, expected in zip(theirs, sums(ours.address, ranks, "ours", **options), strict=True):
            np.testing.assert_array_equal(its, expected)
