"""What Python on README and docs takes for granted: a script's usual imports, a model, a process group's environment,
an aggregator, traces, a switch. tests/doc_blocks.toml puts it before a page's blocks."""

import atexit
import os
import pathlib
import socket
import subprocess
import sys
import threading

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from emulator.traces.readers import native
from host_agent import HostAgent
from tests.support import launch, traced_jobs

__all__ = [
    "DistributedDataParallel", "HostAgent", "aggregator", "batch", "beside", "dist", "model", "np", "one_rank",
    "pathlib", "switch_with_a_route", "torch", "traces_of_a_job", "training",
]  # fmt: skip

model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
batch = torch.ones(8, 64)


def one_rank(**variables: str) -> None:
    """The environment that torchrun gives a script's only rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    names = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= names | variables


def aggregator() -> str:
    """The address of one in this process."""
    return launch.LocalAggregator().address


def beside(work, address: str) -> threading.Thread:
    """Rank 1 of two, which does `work(agent)`."""

    def run() -> None:
        with HostAgent.join(address, job="demo", rank=1, world_size=2) as agent:
            work(agent)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def traces_of_a_job(folder: str) -> None:
    """Three iterations of two ranks."""
    pathlib.Path(folder).mkdir()
    job = traced_jobs.Job(ranks=2, bytes_per_s=2e7)  # slower than the page's links
    for trace in traced_jobs.traced(job, iterations=3).traces:
        native.write(trace, pathlib.Path(folder) / f"rank-{trace.rank}{native.SUFFIX}")


def training(ddp: DistributedDataParallel):
    """A function that trains for fifteen steps."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)

    def train() -> None:
        for _ in range(15):
            optimizer.zero_grad()
            ddp(batch).sum().backward()
            optimizer.step()

    return train


def switch_with_a_route() -> None:
    """docs/switch.md's switch, and its route."""
    program = pathlib.Path(__file__).parents[2] / "emulator/lab/bench/switch/programs/l3.json"
    ports = ["-i", "0@udp:127.0.0.1:7000", "-i", "1@udp:127.0.0.1:7001,127.0.0.1:7101"]
    command = [sys.executable, "-m", "switchml", "switch", *ports, "--log-console", "-L", "info", str(program)]
    switch = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while "Thrift server was started" not in switch.stdout.readline():
        assert switch.poll() is None
    threading.Thread(target=switch.stdout.read, daemon=True).start()
    route = "table_add routes route 10.0.0.0/8 => 00:00:00:00:00:02 1\n"
    subprocess.run([sys.executable, "-m", "switchml", "switch-cli"], input=route, text=True, check=True)
    atexit.register(switch.terminate)
