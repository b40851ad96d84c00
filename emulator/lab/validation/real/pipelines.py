"""Pipeline schedules over slow links, compared with `emulate --schedule axonn`.

Each rank is its own host, in a network namespace; the aggregator is in the switch's place. A stage is two linear
layers, and each pass includes a sleep that stands in for accelerator compute, so that all ranks fit on few cores;
everything else is as in training. The emulator is given the times of each stage's passes, measured alone.
"""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from emulator.lab.bench.ranks.team import at_hosts, star_with_aggregator
from emulator.lab.validation.rows import Row
from emulator.networks.testbed.star import LinkOptions
from switchml.errors import JobError
from switchml.protocol import sizes
from switchml.runtime.folders import TemporaryFolder

SCHEDULES = ("message-driven", "1f1b", "gpipe")
MORE = "message-driven with more in flight"
WARM_UP = 2


def rank_main(plan: dict[str, Any]) -> dict[str, Any]:
    """One rank: seconds of its steps by schedule, and of its stage's passes alone."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from emulator.lab.bench.ranks.pause import pause
    from host_agent.pipeline import Pipeline, pipeline_groups

    class Stage(nn.Module):
        def __init__(self, number: int):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
            self.factor = plan["slowness"] if number == plan["slow_stage"] else 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            times = plan["forward_s"] * self.factor, plan["backward_s"] * self.factor
            return pause(self.layers(x), *times)

    width, samples, count = plan["width"], plan["samples"], plan["micro_batches"]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group(
        "switchml", init_method=plan["rendezvous"], rank=int(os.environ["RANK"]), world_size=plan["ranks"]
    )
    parts = [Stage(number) for number in range(plan["stages"])]
    groups = pipeline_groups(plan["stages"])
    x = torch.randn(count * samples, width)
    pipelines = {name: Pipeline(parts, count, nn.MSELoss(), schedule=name, groups=groups) for name in plan["schedules"]}
    if plan["in_flight"]:
        pipelines[MORE] = Pipeline(parts, count, nn.MSELoss(), in_flight=plan["in_flight"], groups=groups)

    def alone(module: nn.Module) -> tuple[float, float]:
        one = x[:samples].clone().requires_grad_()
        began = time.perf_counter()
        y = module(one)
        between = time.perf_counter()
        y.sum().backward()
        return between - began, time.perf_counter() - between

    passes = [alone(parts[groups.stage]) for _ in range(10)][3:]
    seconds: dict[str, list[float]] = {name: [] for name in pipelines}
    for step in range(WARM_UP + plan["steps"]):
        for name, pipeline in pipelines.items():
            pipeline.module.zero_grad()
            dist.barrier()
            began = time.perf_counter()
            pipeline.step(x, target=x)
            if step >= WARM_UP:
                seconds[name].append(time.perf_counter() - began)
    dist.barrier()
    dist.destroy_process_group()
    alone_s = [median(times) for times in zip(*passes, strict=True)]
    return {"stage": groups.stage, "alone_s": alone_s, "seconds": seconds}


def predicted(plan: dict[str, Any], found: list[dict[str, Any]], rate_bps: float, folder: Path) -> float:
    """Seconds of a step according to `switchml emulate --schedule axonn`."""
    rows = ["layer_index,numel,forward_pass_ns,backward_pass_ns,stage,output_elements"]
    for stage in range(plan["stages"]):
        times = [one["alone_s"] for one in found if one["stage"] == stage]
        forward, backward = (1e9 * sum(each) / len(each) for each in zip(*times, strict=True))
        numel = 2 * plan["width"] * (plan["width"] + 1)
        rows.append(f"{stage},{numel},{forward:.0f},{backward:.0f},{stage},{plan['samples'] * plan['width']}")
    model, cluster = folder / "stages.csv", folder / "cluster.toml"
    model.write_text("\n".join(rows) + "\n")
    cluster.write_text(
        f'extends = "cpu-10g"\ntitle = "one rank a host"\naccelerators_per_node = 1\n'
        f"[between]\nport_bps = {rate_bps:g}\nefficiency = {sizes.TCP_SHARE:.3f}\n"
    )
    batch = plan["micro_batches"] * plan["ranks"] // plan["stages"]
    options = {
        "--model": model, "--cluster": cluster, "--gpus": plan["ranks"], "--pp": plan["stages"], "--batch": batch,
        "--micro-batch": 1, "--schedule": "axonn", "--precision": "fp32", "--gradient-bytes": 4,
        "--optimizer": "sgd", "--allreduce": "switchml", "--hierarchy": "none",
    }  # fmt: skip
    command = [sys.executable, "-m", "switchml", "emulate", "--json", *map(str, itertools.chain(*options.items()))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise JobError("switchml emulate failed; its message is above")
    return float(json.loads(done.stdout)["iteration_s"])


def compare(plan: dict[str, Any], rate_bps: float) -> tuple[dict[str, list[float]], float]:
    """Seconds of each step of the slowest rank, by schedule, and the emulator's prediction for AxoNN. Needs root."""
    with TemporaryFolder("pipelines") as folder:
        with star_with_aggregator(plan["ranks"], LinkOptions(rate_bps=rate_bps)) as (star, aggregator):
            plan["rendezvous"] = f"file://{folder}/rendezvous"
            found = at_hosts(star, aggregator.address, rank_main, plan)
        emulated_s = predicted(plan, found, rate_bps, Path(folder))
    steps = {
        name: [max(times) for times in zip(*(one["seconds"][name] for one in found), strict=True)]
        for name in found[0]["seconds"]
    }
    return steps, emulated_s


def rows(progress: Callable[[str], None] = lambda line: None) -> list[Row]:
    """Steps of two stages on four ranks, with one stage slower than the other."""
    progress("a message-driven pipeline over 100 Mbit/s")
    plan = {
        "ranks": 4, "stages": 2, "micro_batches": 16, "samples": 160, "width": 256, "forward_s": 10e-3,
        "backward_s": 20e-3, "in_flight": 0, "slow_stage": 0, "slowness": 1.5, "steps": 5, "schedules": SCHEDULES[:1],
    }  # fmt: skip
    steps, emulated_s = compare(plan, 100e6)
    return [Row("pipeline, message-driven: step", median(steps[SCHEDULES[0]]), emulated_s, "s")]
