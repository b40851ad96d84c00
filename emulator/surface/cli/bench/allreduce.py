"""`switchml bench allreduce`: time collectives of several ranks on this machine, compared with Gloo."""

import json
import os
from pathlib import Path
from typing import Any

import click

from emulator.lab.bench.sizes import ALL_REDUCE, COLLECTIVES, DTYPES
from emulator.surface.cli.options import (
    TENSOR_SIZE,
    TENSOR_SIZES,
    Many,
    against_option,
    agent_wire_option,
    authenticate_option,
    json_option,
    plot_option,
    repeats_options,
    sparsity_options,
)
from switchml.cli.options import Count, option


@click.command()
@click.option(
    "--collective",
    type=click.Choice(COLLECTIVES),
    default=ALL_REDUCE,
    help="Collective to measure. fsdp: an all-gather and a reduce-scatter at once, each of --size bytes.",
)
@click.option(
    "--dtype",
    "dtypes",
    type=Many(click.Choice(list(DTYPES)), "dtype", "float32,bfloat16"),
    default="float32",
    help="Dtype of the elements, or several: " + ", ".join(DTYPES) + ".",
)
@option("--ranks", "workers", type=Count(1, 256), default=4, help="Ranks, one process each.")
@option("--size", type=TENSOR_SIZE, show_default="64MiB", help="Bytes of the tensor.")
@click.option("--sizes", type=TENSOR_SIZES, help="Measure several sizes: 1K:256M:4, or a list (4K,64K).")
@click.option(
    "--buckets",
    type=click.Choice(["ddp"]),
    help="Measure DDP's buckets for a model of --size bytes: all at once, each size alone, and small ones.",
)
@click.option(
    "--transport",
    type=click.Choice(["auto", "udp", "shm", "zmq", "frames", "raw"]),
    default="auto",
    help="Transport of the packets.",
)
@agent_wire_option
@click.option(
    "--api",
    type=click.Choice(["agent", "torch"]),
    help="API to call: agent (HostAgent with NumPy arrays, the default) or torch (torch.distributed with the "
    "backend switchml).",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    help="Device of the tensors. cuda: this machine's GPUs, assigned to ranks round-robin; needs --api torch.",
)
@against_option
@sparsity_options
@authenticate_option
@click.option(
    "--aggregator",
    default="software",
    metavar="KIND|HOST:PORT",
    help="Aggregator to start: software, p4 (our P4 switch), bmv2 (simple_switch, root), p4-lanes or bmv2-lanes (one "
    "register for each lane); or the address of a running aggregator.",
)
@click.option(
    "--beside",
    "background",
    type=Count(0, 256),
    default=0,
    metavar="N",
    help="Busy processes to run meanwhile, as background load.",
)
@repeats_options(None, 2, "Pairs at each size; by default 5 to 15, or 3 if they are slow.")
@plot_option
@json_option
def allreduce(
    collective: str,
    dtypes: tuple[str, ...],
    workers: int,
    size: int | None,
    sizes: list[int] | None,
    buckets: str | None,
    transport: str,
    wire: str,
    api: str | None,
    device: str,
    against: str | None,
    density: tuple[float, ...] | None,
    authenticate: bool,
    aggregator: str,
    background: int,
    repeats: int | None,
    warmup: int,
    plot_file: Path | None,
    as_json: bool,
    **blocks: Any,
) -> None:
    """Time all-reduces, or other collectives, between processes on this machine, alternating with Gloo's.

    --size is the total over all ranks for a tensor that is gathered or scattered, as in nccl-tests. Every result is
    checked against the exact one. A time is that of the slowest rank; small tensors are reduced several times in a row.
    The bound below the table is the upper limit of this machine's cores, from the measured cost of each step.
    """
    from emulator.lab.bench import allreduce as bench
    from emulator.lab.bench import limits, report
    from emulator.lab.bench import sizes as cases_of
    from emulator.lab.bench.ranks.reducing import Calls
    from emulator.lab.bench.sparsity import Sparsity
    from switchml.errors import ConfigError
    from switchml.protocol.sizes import EXACT, lanes_of
    from switchml.tables import Stream
    from switchml.terminal import progress

    if sizes and (size or buckets):
        raise click.UsageError("--sizes can't be combined with --size or --buckets")
    if density and buckets:
        raise click.UsageError("--density can't be combined with --buckets")
    if density and len(density) > 1 and (sizes or plot_file):
        raise click.UsageError("several densities can't be combined with --sizes or --plot")
    if collective != ALL_REDUCE and (density or buckets or aggregator in bench.AGGREGATORS[1:]):
        raise click.UsageError(
            f"--collective {collective}: of dense tensors through a software aggregator, without --density and "
            "--buckets"
        )
    if dtypes != ("float32",) and (density or plot_file):
        raise click.UsageError("--dtype can't be combined with --density or --plot")
    if authenticate and (density or transport not in ("auto", "udp", "zmq") or aggregator in bench.AGGREGATORS[1:]):
        raise click.UsageError(
            "--authenticate: only the software aggregator checks packets' tags, by udp or zmq, here of dense tensors"
        )
    if device == "cuda" and api == "agent":
        raise click.UsageError("--device cuda: HostAgent supports only CPU arrays; expected --api torch")
    calls = Calls(api or ("torch" if device == "cuda" else "agent"), device)
    if calls.api == "torch" and (density or authenticate or wire == EXACT):
        raise click.UsageError("--api torch can't be combined with --density, --authenticate or --wire exact")
    if authenticate and transport == "auto":
        transport = "udp"  # auto would choose shared memory, whose packets have no tags
    try:
        bench.check_choice(transport, wire)
        for each in sizes or [size or 64 << 20]:
            for dtype in dtypes:
                cases_of.check_shares(each, collective, workers, dtype)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    if aggregator not in bench.AGGREGATORS and not aggregator.rpartition(":")[2].isdecimal():
        kinds = ", ".join(bench.AGGREGATORS)
        raise click.BadParameter(f"{aggregator!r}: expected HOST:PORT or one of {kinds}", param_hint="--aggregator")

    if buckets:
        cases = [case for dtype in dtypes for case in cases_of.ddp_buckets(size or 64 << 20, repeats, warmup, dtype)]
    else:
        cases = [
            cases_of.single(each, repeats, warmup, collective, dtype)
            for each in sizes or [size or 64 << 20]
            for dtype in dtypes
        ]
    grid = [Sparsity(share, **blocks) for share in density] if density else [None]
    cores = len(os.sched_getaffinity(0))
    longest = max(case.elements for case in cases)
    results = []
    stream: Stream | None = None
    with progress("all-reduces", len(cases) * len(grid)) as task:
        for sparsity in grid:
            backends = bench.backends_of(sparsity, against, authenticate, wire)

            def show_header(chosen: str, backends=backends) -> None:
                nonlocal stream
                if stream is None and not as_json:
                    stream = Stream(
                        report.columns(backends, dtypes),
                        report.title(workers, chosen, wire, cores, background, collective, dtypes, calls),
                    )

            def show_line(measurement, backends=backends, sparsity=sparsity) -> None:
                union = bench.union_of_case(sparsity, workers, longest, measurement.case)
                if stream is not None:
                    stream.add(*report.cells(measurement, workers, backends, union))
                task.advance()

            result = bench.measure(
                cases,
                workers=workers,
                transport=transport,
                wire=wire,
                against=against,
                aggregator=aggregator,
                sparsity=sparsity,
                authenticate=authenticate,
                background=background,
                calls=calls,
                on_start=show_header,
                on_result=show_line,
            )
            results.append(result)
    limit = None
    is_bound_known = collective == ALL_REDUCE and wire != EXACT and dtypes == ("float32",) and device == "cpu"
    if aggregator not in bench.AGGREGATORS[1:] and is_bound_known:  # one round each, in the software aggregator's loop
        limit = limits.measure(workers=workers, transport=result.transport, wire=lanes_of(wire), cores=cores)
    if plot_file is not None:
        report.draw(result, limit, plot_file)
    if stream is None:
        objects = [report.as_json(each, limit, is_sweep=bool(sizes or buckets or len(dtypes) > 1)) for each in results]
        click.echo(json.dumps(report.all_as_json(objects)))
        return
    stream.close(*report.notes(result))
    report.print_footer(result, limit)
