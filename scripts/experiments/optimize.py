"""Capture a job on a slow network, optimize it, and run it before and after: predicted and measured speed-up.

    sudo python scripts/experiments/optimize.py [--ranks 4] [--rate 100mbit] [--allow buckets] [--json]

Hosts are network namespaces around a switch (emulator/networks/testbed/star.py), one rank of the MLP of
scripts/examples/ddp_models.py in each; the software aggregator runs in the switch's namespace. The script is traced
with DDP's defaults over Gloo, and the optimizer searches for settings with each set of allowed passes; then runs with
these settings and with the defaults alternate.

All hosts share this machine's cores, which the predictions ignore. So layers sleep for the time of an accelerator;
`--device-time 0s --micro-batch 1024` runs without sleeping.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import click

from emulator.lab.bench.ranks.team import star_with_aggregator
from emulator.lab.validation.replay.measure import BURST_S
from emulator.networks.testbed import star as stars
from emulator.traces.join import join
from emulator.traces.optimizer import file, report
from emulator.traces.optimizer.machine import Machine
from emulator.traces.optimizer.measured import SpeedUp, median_step_s
from emulator.traces.optimizer.objective import Objective
from emulator.traces.optimizer.search import Allowed, search
from emulator.traces.readers.read import read
from emulator.traces.whatif import codec_costs
from emulator.traces.whatif.serial import prepared
from host_agent.pytorch.settings_autoload import SETTINGS, STEP_TIMES
from switchml import share
from switchml.cli.options import RATE, SECONDS, option
from switchml.errors import JobError

SCRIPT = share.named("ddp_models.py").path.resolve()
FIRST_PORT = 29600
TRACED = (5, 15)
"""Captured iterations: first, and one past the last."""
TIMEOUT_S = 600.0


class Hosts:
    """Runs the script with one rank on each host."""

    def __init__(self, star: stars.Star, aggregator: str, arguments: list[str]) -> None:
        self.star, self.aggregator, self.arguments = star, aggregator, arguments
        self.port = FIRST_PORT

    def run(self, **environment: str) -> None:
        """Run the script once. Raises JobError if a rank fails."""
        self.port += 1
        common = os.environ | {
            "WORLD_SIZE": str(len(self.star.hosts)),
            "MASTER_ADDR": self.star.address(0),
            "MASTER_PORT": str(self.port),
            "GLOO_SOCKET_IFNAME": stars.INTERFACE,
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            "OMP_NUM_THREADS": "1",
            "SWITCHML_AGGREGATOR": self.aggregator,
            "SWITCHML_TRANSPORT": "udp",
        }
        processes = [
            host.popen(
                [sys.executable, str(SCRIPT), *self.arguments],
                env=common | environment | {"RANK": str(rank), "LOCAL_RANK": "0"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, host in enumerate(self.star.hosts)
        ]
        try:
            for rank, process in enumerate(processes):
                _, stderr = process.communicate(timeout=TIMEOUT_S)
                if process.returncode:
                    last = stderr.strip().splitlines()[-1:] or ["no output"]
                    raise JobError(f"rank {rank} ended with exit code {process.returncode}: {last[0]}")
        finally:
            for process in processes:
                process.kill()

    def step_s(self, settings: Path | None = None) -> float:
        """Run the script and return the median seconds of a step."""
        with tempfile.TemporaryDirectory() as folder:
            self.run(**{STEP_TIMES: folder}, **({SETTINGS: str(settings)} if settings else {}))
            return median_step_s(Path(folder))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@click.command()
@option("--ranks", "workers", default=4, show_default=True)
@click.option("--rate", type=RATE, default="100mbit", show_default=True, help="Rate of each host's link.")
@click.option("--steps", default=25, show_default=True, help="Steps of each run.")
@option("--repeats", "rounds", default=3, show_default=True, help="Runs of each kind.")
@click.option(
    "--allow", multiple=True, default=["buckets", "buckets,allreduce", "buckets,allreduce,codec"], show_default=True
)
@click.option(
    "--codec", "codecs", multiple=True, default=["fp16"], show_default=True, help="Codecs that the optimizer may use."
)
@click.option("--layers", default=8, show_default=True)
@click.option("--width", default=384, show_default=True)
@option("--micro-batch", "batch_size", default=64, show_default=True)
@click.option("--device-time", type=SECONDS, default="5ms", show_default=True, help="Pause of a layer's forward pass.")
@click.option("--trials", default=1000, show_default=True)
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Keep traces and settings here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the table.")
def main(
    workers: int,
    rate: float,
    steps: int,
    rounds: int,
    allow: tuple[str, ...],
    codecs: tuple[str, ...],
    layers: int,
    width: int,
    batch_size: int,
    device_time: float,
    trials: int,
    keep: Path | None,
    as_json: bool,
) -> None:
    """Compare predicted and measured speed-ups of optimized settings on rate-limited links."""
    arguments = ["--model", "mlp", "--steps", str(max(steps, TRACED[1] + 2)), "--layers", str(layers)]
    arguments += ["--width", str(width), "--micro-batch", str(batch_size), "--device-time", str(device_time)]
    with contextlib.ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="switchml-optimize-")))
        folder.mkdir(parents=True, exist_ok=True)
        link = stars.LinkOptions(rate_bps=rate, burst_s=BURST_S)
        star, aggregator = stack.enter_context(star_with_aggregator(workers, link))
        hosts = Hosts(star, aggregator.address, arguments)

        say("capturing with DDP's defaults")
        traces = folder / "traces"
        traces.mkdir(exist_ok=True)
        hosts.run(
            SWITCHML_TRACE_DIR=str(traces),
            SWITCHML_TRACE_STEPS=f"{TRACED[0]}:{TRACED[1]}",
            SWITCHML_TRACE_GRAPH="0",
        )
        joined = prepared(join(read(traces)))
        machine = Machine.of(joined, link_bps=rate, codecs=codec_costs.measure(codecs, workers))
        objective = Objective(joined, machine)
        results = []
        for number, passes in enumerate(allow):
            allowed = Allowed(passes=tuple(passes.split(",")), codecs=codecs)
            result = search(objective, allowed, trials=trials)
            path = folder / f"settings-{number}.toml"
            file.write(path, result, machine, str(traces))
            results.append((passes, result, path))
            say(f"{passes}: {result.best.setting.changed()}, {result.evaluated} settings in {result.wall_s:.1f} s")
            for line in report.too_little(result, objective, allowed):
                say(line)
        measured: dict[str, list[float]] = {"": [], **{passes: [] for passes in allow}}
        for turn in range(rounds):
            for name, path in [("", None), *((passes, path) for passes, _, path in results)]:
                measured[name].append(hosts.step_s(path))
                say(f"round {turn + 1}, {name or 'defaults'}: {measured[name][-1] * 1e3:.1f} ms a step")
    speedups = {passes: SpeedUp.of(result, measured[""], measured[passes]) for passes, result, _ in results}
    if as_json:
        fields = {
            "workers": workers,
            "rate_bps": rate,
            "default_s": median(measured[""]),
            "traced_s": joined.iteration_s,
        }
        fields |= {"replayed_s": results[0][1].traced.iteration_s}
        rows = [{"allowed": passes} | speedup.to_json() for passes, speedup in speedups.items()]
        click.echo(json.dumps(fields | {"rows": rows}))
        return
    click.echo(
        f"{workers} workers, {rate / 1e6:g} Mbit/s: {median(measured['']) * 1e3:.1f} ms a step with DDP's defaults, "
        f"{joined.iteration_s * 1e3:.1f} ms traced, {results[0][1].traced.iteration_s * 1e3:.1f} ms replayed"
    )
    for passes, speedup in speedups.items():
        click.echo(f"{passes:<24} {speedup}")


if __name__ == "__main__":
    main()
