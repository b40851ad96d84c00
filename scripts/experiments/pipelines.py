"""Schedules of a pipeline over slow links: AxoNN's beside torch's 1F1B and GPipe, and what the emulator predicts.

    sudo python scripts/experiments/pipelines.py [--rate 100mbit] [--slow-stage 0] [--micro-batches 16] [--json]

Each rank is a host of its own, in a network namespace; the aggregator is in the switch's place. A stage is two linear
layers, and a pause for each pass in the place of what an accelerator computes meanwhile, so that all ranks fit on few
cores; everything else is what training does. The emulator gets the times of each stage's passes, measured alone.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import click

from emulator.bench.ranks.team import star_with_aggregator
from emulator.testbed.namespaces import check_rights
from emulator.testbed.star import INTERFACE, LinkOptions, Star
from switchml.cli.options import RATE, SECONDS, Count
from switchml.tables import Table, number, show, text

SCHEDULES = ("message-driven", "1f1b", "gpipe")
MORE = "message-driven with more in flight"
TITLES = {"1f1b": "1f1b (torch)", "gpipe": "gpipe (torch)"}
WARM_UP = 2
TCP_SHARE = 1448 / 1514
"""Of a full frame, what TCP carries; tbf counts the Ethernet header."""


def rank_main(plan: dict[str, Any]) -> None:
    """One rank: prints its steps' seconds by schedule, and those of its stage's passes alone, as JSON."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from host_agent.pipeline import Pipeline, pipeline_groups

    class Pause(torch.autograd.Function):
        """The identity, which takes its time forward and backward."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
            ctx.backward_s = backward_s
            time.sleep(forward_s)
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            time.sleep(ctx.backward_s)
            return gradients[0], None, None

    class Stage(nn.Module):
        def __init__(self, number: int):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
            self.factor = plan["slowness"] if number == plan["slow_stage"] else 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            times = plan["forward_s"] * self.factor, plan["backward_s"] * self.factor
            return Pause.apply(self.layers(x), *times)

    width, samples, count = plan["width"], plan["samples"], plan["micro_batches"]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group(
        "switchml", init_method=plan["rendezvous"], rank=int(os.environ["RANK"]), world_size=plan["ranks"]
    )
    parts = [Stage(number) for number in range(plan["stages"])]
    groups = pipeline_groups(plan["stages"])
    x = torch.randn(count * samples, width)
    pipelines = {name: Pipeline(parts, count, nn.MSELoss(), schedule=name, groups=groups) for name in SCHEDULES}
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
    alone_s = [median(times) for times in zip(*passes, strict=True)]
    print(json.dumps({"stage": groups.stage, "alone_s": alone_s, "seconds": seconds}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def measured(star: Star, plan: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank has printed."""
    command = [sys.executable, __file__, "--role", json.dumps(plan)]
    ranks = []
    for rank, host in enumerate(star.hosts):
        environment = os.environ | {
            "RANK": str(rank),
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "SWITCHML_AGGREGATOR": plan["aggregator"],
            "SWITCHML_TRANSPORT": "udp",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        ranks.append(host.popen(command, stdout=subprocess.PIPE, text=True, env=environment))
    printed = [rank.communicate()[0] for rank in ranks]
    failed = [number for number, rank in enumerate(ranks) if rank.returncode]
    if failed:
        raise click.ClickException(f"ranks {failed} failed; their messages are above")
    return [json.loads(lines.splitlines()[-1]) for lines in printed]


def predicted(plan: dict[str, Any], found: list[dict[str, Any]], rate_bps: float, folder: Path) -> float:
    """Seconds of a step by `switchml emulate --schedule axonn`."""
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
        f"[between]\nport_bps = {rate_bps:g}\nefficiency = {TCP_SHARE:.3f}\n"
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
        raise click.ClickException("switchml emulate failed; its message is above")
    return float(json.loads(done.stdout)["iteration_s"])


@click.command(help=__doc__)
@click.option("--ranks", type=Count(2), default=4)
@click.option("--stages", type=Count(2), default=2, help="The rest of the ranks are replicas.")
@click.option("--rate", type=RATE, default="100mbit", help="Of each rank's link.")
@click.option("--micro-batches", type=Count(1), default=16)
@click.option("--samples", type=Count(1), default=160, help="Of a micro-batch.")
@click.option("--width", type=Count(1), default=256, help="Of a layer.")
@click.option("--forward", "forward_s", type=SECONDS, default="10ms", help="A stage's pause forward.")
@click.option("--backward", "backward_s", type=SECONDS, default="20ms", help="A stage's pause backward.")
@click.option("--in-flight", type=click.IntRange(0), default=0, help="A row with so many micro-batches in flight.")
@click.option("--slow-stage", type=click.IntRange(0), default=0, help="From 0.")
@click.option("--slowness", type=click.FloatRange(1.0), default=1.5, help="The slow stage's factor on both.")
@click.option("--steps", type=Count(1), default=10, help="Of each schedule, taken in turns.")
@click.option("--json", "as_json", is_flag=True)
@click.option("--role", hidden=True)
def main(rate: float, as_json: bool, role: str, **plan: Any) -> None:
    if role:
        return rank_main(json.loads(role))
    check_rights()
    with tempfile.TemporaryDirectory() as folder:
        with star_with_aggregator(plan["ranks"], LinkOptions(rate_bps=rate)) as (star, aggregator):
            plan |= {"rendezvous": f"file://{folder}/rendezvous", "aggregator": aggregator.address}
            found = measured(star, plan)
        emulated_s = predicted(plan, found, rate, Path(folder))
    rows = []
    for name in found[0]["seconds"]:
        steps = [
            max(times) for times in zip(*(one["seconds"][name] for one in found), strict=True)
        ]  # the slowest rank's
        rows.append({"schedule": name, "step_s": median(steps), "least_s": min(steps), "most_s": max(steps)})
    ours = rows[0]["step_s"]
    if as_json:
        print(
            json.dumps({"schedules": rows, "emulated_s": emulated_s, "emulated_off": emulated_s / ours - 1}, indent=2)
        )
        return
    title = (
        f"{plan['ranks']} ranks, {plan['stages']} stages, {rate / 1e6:g} Mbit/s, {plan['micro_batches']} micro-batches"
    )
    table = Table(
        [text("schedule"), number("step", "ms"), text("least – most"), number("over message-driven's")], title=title
    )
    for row in rows:
        spread = f"{row['least_s'] * 1e3:.0f} – {row['most_s'] * 1e3:.0f}"
        name = TITLES.get(row["schedule"], row["schedule"])
        name = f"message-driven, {plan['in_flight']} in flight" if name == MORE else name
        table.add(name, f"{row['step_s'] * 1e3:.0f}", spread, f"{row['step_s'] / ours:.2f}")
    table.add("emulate --schedule axonn", f"{emulated_s * 1e3:.0f}", "", f"{emulated_s / ours:.2f}")
    show(table)


if __name__ == "__main__":
    main()
