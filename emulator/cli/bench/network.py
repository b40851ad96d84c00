"""`switchml bench network`: all-reduces over slow, lossy, long links between hosts in network namespaces, beside
Gloo's ring over the same links.
"""

from __future__ import annotations

import json
import re

import click

RATE_UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
"""As tc(8) writes them."""
TIME_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Quantity(click.ParamType):
    """A number with a unit, "200mbit". Converts to a float in the unit whose factor is 1."""

    def __init__(self, name: str, units: dict[str, float], example: str):
        self.name, self.units, self.example = name, units, example

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        match = re.fullmatch(r"([0-9.]+)\s*([a-z]*)", str(value).strip(), re.IGNORECASE)
        units = {unit.lower(): factor for unit, factor in self.units.items()}
        try:
            return round(float(match[1]) * units[match[2].lower()], 12)  # type: ignore[index]
        except (TypeError, ValueError, KeyError):
            known = ", ".join(unit for unit in self.units if unit)
            self.fail(f"{value!r}: expected a number and a unit ({known}), as in {self.example}", param, ctx)


class Counts(click.ParamType):
    """A list of whole numbers, "2,4,8"."""

    name = "N[,N…]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            counts = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            counts = ()
        if not counts or not all(1 <= count <= 256 for count in counts):
            self.fail(f"{value!r}: expected numbers from 1 to 256 with commas between, as in 2,4,8", param, ctx)
        return counts


class Shares(click.ParamType):
    """A list of numbers from 0 to 1, "1,0.4,0.1"."""

    name = "D[,D…]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            shares = tuple(float(part) for part in str(value).split(","))
        except ValueError:
            shares = ()
        if not shares or not all(0 <= share <= 1 for share in shares):
            self.fail(f"{value!r}: expected numbers from 0 to 1 with commas between, as in 1,0.4,0.1,0.01", param, ctx)
        return shares


def sparsity_options(command):
    """Options of tensors with blocks of zeros, for both benchmarks that make them."""
    options = [
        click.option(
            "--density", type=Shares(), help="Share of blocks that are not zero, on each rank: skip those that are."
        ),
        click.option(
            "--block",
            type=click.IntRange(1),
            default=256,
            show_default=True,
            help="Elements of a block, with --density.",
        ),
        click.option(
            "--overlap",
            type=click.Choice(["random", "full", "none"]),
            default="random",
            show_default=True,
            help="How many blocks the ranks have in common, with --density.",
        ),
        click.option(
            "--sparse",
            type=click.Choice(["on", "auto"]),
            default="on",
            show_default=True,
            help="Skip blocks always, or where it has paid before, with --density.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


RATE = Quantity("rate", RATE_UNITS, "200mbit")
TIME = Quantity("time", TIME_UNITS, "100us")
SIZE = Quantity("size", SIZE_UNITS, "16M")


@click.command()
@click.option("--workers", type=Counts(), default="4", show_default=True, help="Hosts; 2,4,8 measures each in turn.")
@click.option("--rate", type=RATE, default="200mbit", show_default=True, help="Of each host's link, both ways.")
@click.option("--delay", type=TIME, default="0us", show_default=True, help="Of each link, each way.")
@click.option(
    "--loss",
    type=click.FloatRange(0.0, 1.0, max_open=True),
    default=0.0,
    show_default=True,
    help="Share of frames that each link loses, each way.",
)
@click.option("--queue", type=SIZE, help="What waits in front of a link at most.  [default: 25 ms at the rate]")
@click.option("--size", type=SIZE, default="16M", show_default=True, help="Of the tensor (float32), in bytes.")
@click.option("--wire", type=click.Choice(["int32", "int16", "int8"]), default="int32", show_default=True)
@click.option(
    "--payload", type=click.Choice(["256", "1024"]), default="1024", show_default=True, help="Bytes in a packet."
)
@click.option(
    "--slots",
    type=click.IntRange(0),
    default=0,
    help="Packets that a rank may have under way, a power of two.  [default: the aggregator's choice]",
)
@click.option(
    "--against", type=click.Choice(["gloo", "none"]), default="gloo", show_default=True, help="What to compare with."
)
@sparsity_options
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Of each, in turn.")
@click.option("--warmup", type=click.IntRange(0), default=1, show_default=True, help="Repeats that do not count.")
@click.option("--tcp", metavar="NAME", help="Gloo's congestion control (cubic, bbr, …).  [default: the machine's]")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Decides which frames are lost.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in place of the table.")
def network(
    workers: tuple[int, ...],
    rate: float,
    delay: float,
    loss: float,
    queue: float | None,
    size: float,
    wire: str,
    payload: str,
    slots: int,
    against: str,
    density: tuple[float, ...] | None,
    block: int,
    overlap: str,
    sparse: str,
    repeats: int,
    warmup: int,
    tcp: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """All-reduce over links of a given rate, delay and loss, beside Gloo's ring over the same links.

    Needs root and iproute2: each host is a network namespace with one link to a bridge, and the aggregator sits at the
    bridge, in the place of a switch. tc limits each link, both ways; a program of ours delays and loses frames. Nothing
    of it remains afterwards.
    """
    from emulator.bench.allreduce import backends_of
    from emulator.bench.network import measure as bench
    from emulator.bench.network import report
    from emulator.bench.ranks.reducing import GLOO
    from emulator.bench.sparsity import Sparsity
    from switchml.errors import ConfigError

    bench.check_rights()
    if size < 4 or size % 4:
        raise ConfigError(f"size of {size:g} bytes: expected a multiple of 4 (float32)")
    link = bench.LinkOptions(rate_bps=rate, delay_s=delay, loss=loss, queue_bytes=int(queue or 0), seed=seed)
    results = []
    grid = [(count, share) for count in workers for share in density or (None,)]
    for count, share in grid:
        sparsity = None if share is None else Sparsity(share, block, overlap, sparse)
        experiment = bench.Experiment(
            workers=count,
            link=link,
            size_bytes=int(size),
            wire=wire,
            payload_bytes=int(payload),
            slots=slots,
            sparsity=sparsity,
            backends=backends_of(sparsity, GLOO if against == "gloo" else None),
            repeats=repeats,
            warmup=warmup,
            tcp=tcp,
        )
        results.append(bench.measure(experiment, lambda line: click.echo(line, err=True)))
    if as_json:
        objects = [report.as_json(result) for result in results]
        click.echo(json.dumps(objects[0] if len(objects) == 1 else {"results": objects}))
    else:
        report.print_table(results)
