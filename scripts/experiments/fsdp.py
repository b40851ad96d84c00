"""A transformer under torch's fully_shard over slow links: steps through the aggregator compared with steps over Gloo
and with the emulator's prediction.

    sudo python scripts/experiments/fsdp.py [--hosts 8] [--rate 100mbit] [--loss 0.01] [--layers 4] [--json]

Each rank is a host in its own network namespace; the aggregator takes the switch's place. Every layer is an FSDP unit:
all-gathered in the forward and again in the backward pass, with its gradients reduce-scattered. Steps over Gloo and
over the aggregator alternate in the same processes, with models that start from the same weights. "ahead": a unit is
gathered while the previous one computes and scatters its gradients (`FSDPModule._set_unshard_async_op`), as on GPUs;
without it, torch waits for each collective of CPU tensors. The batch is small, so that all ranks fit on few cores. The
emulator gets the times of a layer's passes, measured without collectives in all ranks at once.
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

from emulator.lab.bench.ranks.team import at_hosts, star_with_aggregator
from emulator.networks.testbed.namespaces import check_rights
from emulator.networks.testbed.star import LinkOptions
from switchml.cli.options import RATE, Count
from switchml.errors import JobError
from switchml.tables import Table, number, show, text

GLOO, SWITCHML = "gloo", "switchml"
AHEAD = {"ahead": True, "one by one": False}
WARM_UP = 1
LEARNING_RATE = 0.01
MAX_DIFFERENCE = 1e-4
"""Maximum difference between the losses of both trainings, whose sums are rounded differently."""


def rank_main(plan: dict[str, Any]) -> dict[str, Any]:
    """Run one rank. Returns the seconds and losses of each step by backend and by AHEAD."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn import functional

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = plan["width"]
            self.embedding = nn.Embedding(plan["words"], width)
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
                for _ in range(plan["layers"])
            )
            self.head = nn.Linear(width, plan["words"])

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            """The loss of predicting each word from the previous one."""
            x = self.embedding(words[:, :-1])
            for layer in self.layers:
                x = layer(x)
            return functional.cross_entropy(self.head(x).flatten(0, 1), words[:, 1:].flatten())

    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group(SWITCHML, init_method=plan["rendezvous"], rank=rank, world_size=plan["hosts"])
    groups = {GLOO: dist.new_group(backend=GLOO), SWITCHML: dist.group.WORLD}

    def sharded(group: Any, ahead: bool) -> Any:
        torch.manual_seed(1)
        model: Any = Transformer()
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model._set_unshard_async_op(ahead)
        return model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    torch.manual_seed(2 + rank)
    words = torch.randint(plan["words"], (plan["batch"], plan["length"] + 1))
    found: dict[str, Any] = {"seconds": {}, "losses": {}}
    for name, ahead in AHEAD.items():
        trainings = {backend: sharded(group, ahead) for backend, group in groups.items()}
        found["parameters"] = sum(p.numel() for p in trainings[GLOO][0].parameters())
        seconds = found["seconds"][name] = {backend: [] for backend in trainings}
        losses = found["losses"][name] = {backend: [] for backend in trainings}
        for step in range(WARM_UP + plan["pairs"]):
            for backend, (model, optimizer) in trainings.items():
                dist.barrier()
                began = time.perf_counter()
                optimizer.zero_grad()
                loss = model(words)
                loss.backward()
                optimizer.step()
                losses[backend].append(loss.item())
                if step >= WARM_UP:
                    seconds[backend].append(time.perf_counter() - began)
    layer = Transformer().layers[0]
    x = torch.randn(plan["batch"], plan["length"], plan["width"], requires_grad=True)
    passes = []
    for _ in range(WARM_UP + plan["pairs"]):
        dist.barrier()
        began = time.perf_counter()
        y = layer(x)
        between = time.perf_counter()
        y.sum().backward()
        passes.append((between - began, time.perf_counter() - between))
    found["layer_s"] = [median(times) for times in zip(*passes[WARM_UP:], strict=True)]
    found["layer_parameters"] = sum(p.numel() for p in layer.parameters())
    dist.barrier()
    dist.destroy_process_group()
    return found


def predicted(plan: dict[str, Any], found: list[dict[str, Any]], rate_bps: float, folder: Path) -> float:
    """Seconds of a step with units gathered ahead, as predicted by `switchml emulate --zero 3 --allreduce switchml`."""
    forward, backward = (1e9 * sum(each) / len(each) for each in zip(*(one["layer_s"] for one in found), strict=True))
    each = found[0]["layer_parameters"]
    rest = found[0]["parameters"] - plan["layers"] * each
    parameters = [rest // 2, *[each] * plan["layers"], rest - rest // 2]
    times = [(0.0, 0.0), *[(forward, backward)] * plan["layers"], (0.0, 0.0)]
    rows = ["layer_index,numel,forward_pass_ns,backward_pass_ns"]
    for at, (numel, (one, other)) in enumerate(zip(parameters, times, strict=True)):
        rows.append(f"{at},{numel},{one:.0f},{other:.0f}")
    model, cluster = folder / "transformer.csv", folder / "cluster.toml"
    model.write_text("\n".join(rows) + "\n")
    cluster.write_text(
        f'extends = "cpu-10g"\ntitle = "one rank a host"\naccelerators_per_node = 1\n'
        f"[between]\nport_bps = {rate_bps:g}\nefficiency = 1.0\n"
    )
    options = {
        "--model": model, "--cluster": cluster, "--gpus": plan["hosts"], "--zero": 3, "--unit-parameters": each,
        "--batch": plan["hosts"] * plan["batch"], "--micro-batch": plan["batch"], "--precision": "fp32",
        "--gradient-bytes": 4, "--gather-bytes": 4, "--optimizer": "sgd", "--allreduce": SWITCHML,
        "--hierarchy": "none",
    }  # fmt: skip
    command = [sys.executable, "-m", "switchml", "emulate", "--json", *map(str, itertools.chain(*options.items()))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise click.ClickException("switchml emulate failed; its message is above")
    return float(json.loads(done.stdout)["iteration_s"])


def row_of(name: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the slowest rank's step times, and of the ratios of paired steps."""
    times = {
        backend: [max(step) for step in zip(*(one["seconds"][name][backend] for one in found), strict=True)]
        for backend in (GLOO, SWITCHML)
    }
    ratios = [gloo / ours for gloo, ours in zip(times[GLOO], times[SWITCHML], strict=True)]
    off = max(
        abs(gloo - ours)
        for one in found
        for gloo, ours in zip(one["losses"][name][GLOO], one["losses"][name][SWITCHML], strict=True)
    )
    if off > MAX_DIFFERENCE:
        raise click.ClickException(f"{name}: losses over both differ by {off:.3g}; expected {MAX_DIFFERENCE} at most")
    return {
        "gathered": name,
        "switchml_s": median(times[SWITCHML]),
        "gloo_s": median(times[GLOO]),
        "times_gloo": median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "losses_off": off,
    }


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--hosts", type=Count(2), default=8)
@click.option("--rate", type=RATE, default="100mbit", help="Of each host's link.")
@click.option("--loss", type=click.FloatRange(0.0, 0.5), default=0.0, help="Of each link, each way.")
@click.option("--layers", type=Count(1), default=4)
@click.option("--width", type=Count(4), default=256)
@click.option("--words", type=Count(2), default=1000, help="Of the vocabulary.")
@click.option("--batch", type=Count(1), default=2, help="Sentences of each rank.")
@click.option("--length", type=Count(1), default=16, help="Words of a sentence.")
@click.option("--pairs", type=Count(1), default=5, help="Steps over Gloo and the aggregator in turn.")
@click.option("--json", "as_json", is_flag=True)
def main(rate: float, loss: float, as_json: bool, **plan: Any) -> None:
    check_rights()
    link = LinkOptions(rate_bps=rate, loss=loss)
    with tempfile.TemporaryDirectory() as folder, star_with_aggregator(plan["hosts"], link) as (star, aggregator):
        plan["rendezvous"] = f"file://{Path(folder) / 'rendezvous'}"
        try:
            found = at_hosts(star, aggregator.address, rank_main, plan)
        except JobError as error:
            raise click.ClickException(str(error)) from None
        emulated_s = None if loss else predicted(plan, found, rate, Path(folder))
    rows = [row_of(name, found) for name in AHEAD]
    parameters = found[0]["parameters"]
    if as_json:
        print(json.dumps({"parameters": parameters, "rows": rows, "emulated_s": emulated_s}, indent=2))
        return
    lossy = f", {loss:.1%} loss" if loss else ""
    title = f"{plan['hosts']} hosts, {rate / 1e6:g} Mbit/s{lossy}, {parameters / 1e6:.1f} million parameters"
    columns = [text("units gathered"), number("switchml", "ms"), number("gloo", "ms"), number("times Gloo"), text("")]
    table = Table(columns, title=title)
    for row in rows:
        spread = f"{row['least']:.2f} – {row['most']:.2f}"
        times = (f"{row[name] * 1e3:.0f}" for name in ("switchml_s", "gloo_s"))
        table.add(row["gathered"], *times, f"{row['times_gloo']:.2f}", spread)
    if emulated_s is not None:
        table.add("ahead, emulated", f"{emulated_s * 1e3:.0f}", "", "", "")
    show(table)


if __name__ == "__main__":
    main()
