"""`switchml train`: train a small model with several workers, first over Gloo, then through an aggregator."""

from pathlib import Path
from typing import Any

import click

from emulator.surface.cli import emulated
from emulator.surface.cli.options import (
    AGENT_WIRE,
    FILE,
    OUTPUT_FOLDER,
    authenticate_option,
    json_option,
    output,
    plot_option,
)
from switchml.cli.extras import require
from switchml.cli.options import TIME, Count, given_parameters, option
from switchml.runtime import cache

AGGREGATORS = ["p4", "bmv2", "software"]
MAX_ON_A_SWITCH = 32
SGD_LR, ADAM_LR = 0.05, 0.005
PROBABILITY = click.FloatRange(0.0, 1.0, max_open=True)


@click.command()
@option("--ranks", "workers", type=Count(1, 256), default=4, help="Ranks, one process each.")
@click.option("--steps", type=Count(1), default=300, help="Training steps of each of the two runs.")
@option("--micro-batch", "batch_size", type=Count(1), default=32, help="Images of each rank in a step.")
@click.option(
    "--parallel",
    type=click.Choice(["ddp", "fsdp"]),
    default="ddp",
    help="How ranks share the model: each has all of it and sums gradients, or a part of each layer, which all-gathers "
    "put together and reduce-scatters give gradients for.",
)
@click.option(
    "--pipeline",
    type=Count(1),
    default=1,
    metavar="STAGES",
    help="Split the model into stages, each on as many ranks; micro-batches pass through them, and ranks of a stage "
    "sum gradients (docs/pipelines.md).",
)
@click.option(
    "--lr",
    type=click.FloatRange(0.0, min_open=True),
    default=SGD_LR,
    show_default=f"{SGD_LR}; {ADAM_LR} with --offload or --prune",
    help="Learning rate.",
)
@click.option(
    "--momentum",
    type=PROBABILITY,
    default=0.9,
    help="Momentum of the optimizer; 0 for codecs with a momentum of their own (dgc, signum).",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=1,
    help="Seed of the initial parameters, the order of images and the packet losses.",
)
@option(
    "--aggregator",
    type=click.Choice(AGGREGATORS),
    default="p4",
    show_default="p4; software for --parallel fsdp and --pipeline",
    help="What sums the packets: our P4 switch, BMv2's simple_switch (from PATH, root) or the software aggregator.",
)
@click.option("--standby", is_flag=True, help="Start a standby software aggregator, to which training fails over.")
@click.option(
    "--transport",
    type=click.Choice(["auto", "shm", "udp", "zmq", "frames"]),
    default="auto",
    help="How ranks reach the aggregator. auto: a switch by Ethernet frames, the software aggregator by shared "
    "memory where that is possible, else by UDP. zmq: ZeroMQ.",
)
@option(
    "--wire",
    type=AGENT_WIRE,
    show_default="int32; int16 for --codec fp16, bf16, auto",
    help="Integers that gradients are sent as: narrower ones are less precise; exact: sums within a unit in the last "
    "place, in further rounds.",
)
@click.option(
    "--codec",
    metavar="NAME[:KEY=VALUE,…]",
    help="Compress gradients in the aggregator's run (topk:ratio=0.01, …; docs/codecs.md lists them), "
    "or auto[:error=0.9]: whatever is fastest for the network at the time (docs/compression.md).",
)
@option(
    "--memory",
    metavar="NAME[:KEY=VALUE,…]",
    show_default="the codec's own",
    help="Error feedback of the codec (none, residual, …).",
)
@click.option(
    "--settings",
    "settings_file",
    type=FILE,
    metavar="FILE",
    help="Settings from `switchml trace optimize`: bucket sizes for both runs, compression for the aggregator's.",
)
@click.option(
    "--sparse",
    default="off",
    metavar="MODE",
    help="Skip blocks of gradients that are zero on all ranks: off, on, or auto (where it pays); "
    "auto:block=64,threshold=1e-6 says how blocks are formed.",
)
@option(
    "--loss",
    "loss_rate",
    type=PROBABILITY,
    default=0.0,
    help="Share of packets that the aggregator loses, in and out (a switch: by its program's drop simulator).",
)
@option(
    "--reorder",
    "reorder_rate",
    type=PROBABILITY,
    default=0.0,
    help="Share of packets that are reordered, in each direction.",
)
@click.option(
    "--loader",
    type=click.Choice(["plain", "planned"]),
    default="plain",
    help="planned: images come from files, by a plan for the whole run, in the same global batches (docs/loading.md).",
)
@click.option(
    "--activations",
    type=click.Choice(["none", "levels", "szx", "int8", "fp16", "host"]),
    default="none",
    help="Storage of saved activations, in both runs: as they are, compressed, or off the device "
    "(docs/activations.md).",
)
@click.option(
    "--offload", is_flag=True, help="Train by AdamW with its states in host memory, in both runs (docs/states.md)."
)
@click.option(
    "--prune",
    type=PROBABILITY,
    default=0.0,
    help="Prune this share of each layer's weights, and train the others by AdamW, in both runs: gradients that are "
    "summed are theirs alone (docs/states.md).",
)
@click.option(
    "--deadline",
    "deadline_s",
    type=TIME,
    help="Sums of gradients in the aggregator's run wait so long for a late rank, whose gradient then goes into a "
    "later one (docs/reliability.md); by default without end.",
)
@authenticate_option
@plot_option
@option(
    "--emulated-ranks", "world_size", type=Count(1), help="Emulate a cluster of this many ranks; only a few are real."
)
@emulated.options(network="switchml", values=["own", "noise", "zeros"], needs="--emulated-ranks")
@click.option(
    "--trace",
    type=OUTPUT_FOLDER,
    metavar="DIR",
    help="Profile ten steps of each run on every rank, into DIR/gloo and DIR/switchml (docs/trace-capture.md).",
)
@json_option
@click.pass_context
def train(
    ctx: click.Context,
    workers: int,
    lr: float,
    aggregator: str,
    standby: bool,
    transport: str,
    wire: str | None,
    sparse: str,
    codec: str | None,
    memory: str | None,
    settings_file: Path | None,
    loss_rate: float,
    reorder_rate: float,
    loader: str,
    deadline_s: float | None,
    authenticate: bool,
    plot_file: Path | None,
    world_size: int | None,
    trace: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a small convolutional network on handwritten digits on several ranks: first with gradients summed by Gloo,
    then by an aggregator, from the same seeds. Shows both side by side.

    With --emulated-ranks, train on one or a few real ranks of an emulated cluster instead (`switchml peers` does that
    with any script).
    """
    _check_emulated(ctx, world_size)
    if options["parallel"] == "fsdp" or options["pipeline"] > 1:
        split = _split(workers, options["parallel"], options["pipeline"])
        aggregator = _for_split_models(ctx, split, aggregator, settings_file, codec)
    if options["offload"] or options["prune"]:
        _check_states(options, settings_file, codec)
        if ctx.get_parameter_source("lr") is click.core.ParameterSource.DEFAULT:
            lr = ADAM_LR
    cluster = {name: options.pop(name) for name in emulated.NAMES}
    steps, batch_size, seed = options["steps"], options["batch_size"], options["seed"]
    if world_size is not None:
        from emulator.surface.cli import peers

        emulation = peers.settings_of(world_size=world_size, seed=seed, **cluster)
        peers.train_digits(emulation, as_json, lr=lr, **{name: options[name] for name in _OF_BOTH})
        return
    require("torch")
    cache.share()  # Called before the imports below, which take seconds

    from host_agent import density
    from host_agent.pytorch.aggregator import options_for
    from host_agent.training import data, report, runner
    from host_agent.training.progress import progress
    from host_agent.training.worker import TrainingSettings

    density.choice(sparse)  # Raises for unknown modes
    data.BatchOrder(rank=0, workers=workers, batch_size=batch_size, seed=seed)  # Raises for sizes that can't work
    halves = False
    if settings_file is not None:
        from host_agent.pytorch.settings import load

        file = load(settings_file)
        if file.codec and codec is not None:
            raise click.UsageError(f"--codec: {settings_file} names codecs, too; expected one of the two")
        wire = wire or file.environment.get("SWITCHML_WIRE")
        settings_file = settings_file.absolute()
    if memory is not None and codec is None:
        raise click.UsageError("--memory needs --codec")
    if codec is not None:
        from host_agent.compression.adaptive.policy import check_error_feedback, is_auto, parse_auto
        from switchml import codecs

        if is_auto(codec):
            parse_auto(codec)
            check_error_feedback(memory)
        halves = is_auto(codec) or codecs.parse(codec).is_half
        codecs.parse_error_feedback(memory or "none")
    is_software = aggregator == "software"
    if transport != "auto" and (transport == "frames") == is_software:
        raise click.UsageError(f"--transport {transport}: {aggregator} does not support it; use auto")
    if not is_software and workers > MAX_ON_A_SWITCH:
        raise click.UsageError(f"--ranks {workers}: a P4 switch supports {MAX_ON_A_SWITCH}; use --aggregator software")
    if transport == "shm" and (loss_rate or reorder_rate):
        raise click.UsageError("--transport shm: shared memory can't lose or reorder packets; use udp or auto")
    if authenticate and not is_software:
        raise click.UsageError("--authenticate: a P4 switch can't compute packets' tags; use --aggregator software")
    if deadline_s is not None:
        _check_deadline({
            "--standby": standby,
            "--settings": settings_file is not None,
            "--codec": codec is not None,
            "--loader planned": loader == "planned",
            "--hierarchy node": cluster["hierarchy"] == "node",
            "--parallel fsdp": options["parallel"] == "fsdp",
            "--pipeline": options["pipeline"] > 1,
            "--prune": options["prune"] > 0,
            "--transport shm": transport == "shm",
            "--wire exact": wire == "exact",
            "--sparse on": sparse.startswith("on"),
        })  # fmt: skip
    aggregator_options = ["--loss", str(loss_rate)] if loss_rate else []
    if is_software:
        aggregator_options += ["--seed", str(seed), "--reorder", str(reorder_rate), *options_for(transport)]
    settings = TrainingSettings(
        workers=workers,
        learning_rate=lr,
        transport=transport,
        wire=wire or ("int16" if halves else "int32"),
        codec=codec or (", ".join(dict.fromkeys(file.codec)) or None if settings_file is not None else None),
        memory=memory,
        file=str(settings_file) if settings_file is not None else None,
        sparse=sparse,
        deadline_s=deadline_s or 0.0,
        authenticate=authenticate,
        loader=loader,
        hierarchy="node" if cluster["hierarchy"] == "node" else "none",
        trace=trace.absolute() if trace is not None else None,
        reorder_rate=0.0 if is_software else reorder_rate,
        **options,
    )
    if standby and settings.hierarchy == "node":
        raise click.UsageError(
            "--standby can't be combined with --hierarchy node, whose ranks stay with their aggregator"
        )
    with progress(steps) as show:
        comparison = runner.compare(settings, aggregator_options, show, aggregator, standby)
    if plot_file is not None:
        report.plot(comparison, plot_file)
    output(
        as_json,
        lambda: report.as_json(comparison, settings, aggregator),
        lambda: report.print_table(comparison, settings, aggregator),
    )


def _split(workers: int, parallel: str, stages: int) -> str:
    """Return the option that splits the model. Raises UsageError if the ranks cannot be split that way."""
    if stages == 1:
        return f"--parallel {parallel}"
    if parallel != "ddp":
        raise click.UsageError(
            f"--pipeline {stages} can't be combined with --parallel {parallel}; expected one of the two"
        )
    if workers % stages:
        raise click.UsageError(f"--pipeline {stages}: {workers} ranks cannot be split into {stages} stages evenly")
    return f"--pipeline {stages}"


def _for_split_models(
    ctx: click.Context, split: str, aggregator: str, settings_file: Path | None, codec: str | None
) -> str:
    """Return the aggregator to train with under the option `split`. Raises UsageError for options that conflict with
    it."""
    if ctx.get_parameter_source("aggregator") is click.core.ParameterSource.DEFAULT:
        aggregator = "software"
    for given, name in ((settings_file, "--settings"), (codec, "--codec")):
        if given is not None:
            raise click.UsageError(f"{split} can't be combined with {name}, which is for DDP's gradients")
    return aggregator


def _check_deadline(given: dict[str, bool]) -> None:
    """Raises UsageError for options that conflict with --deadline."""
    for name in (name for name, is_given in given.items() if is_given):
        raise click.UsageError(f"--deadline can't be combined with {name}")


def _check_states(options: dict[str, Any], settings_file: Path | None, codec: str | None) -> None:
    """Raises UsageError for options that conflict with --offload or --prune."""
    prune = f"--prune {options['prune']:g}"
    if options["prune"] and options["offload"]:
        raise click.UsageError(f"{prune} can't be combined with --offload; expected one of the two")
    if options["prune"] and (options["parallel"] == "fsdp" or options["pipeline"] > 1):
        split = f"--pipeline {options['pipeline']}" if options["pipeline"] > 1 else "--parallel fsdp"
        raise click.UsageError(f"{prune} can't be combined with {split}; expected ranks that have the whole model")
    if options["prune"] and (settings_file is not None or codec is not None):
        raise click.UsageError(
            f"{prune} can't be combined with --settings and --codec, whose hooks take the same gradients"
        )


_OF_BOTH = ("steps", "batch_size", "momentum", "seed")
"""Options that apply whether peers are emulated or not."""


def _check_emulated(ctx: click.Context, world_size: int | None) -> None:
    """Raises UsageError for options that do not apply to the kind of run."""
    both = {*_OF_BOTH, "lr", "as_json", "world_size", "hierarchy"}
    for parameter in given_parameters(ctx):
        if parameter.name in both or (parameter.name in emulated.NAMES) == (world_size is not None):
            continue
        goes = "needs" if parameter.name in emulated.NAMES else "can't be combined with"
        raise click.UsageError(f"{parameter.opts[0]} {goes} --emulated-ranks")
