"""`switchml validate iterations|throughput|nccl|megatron|all`: predictions compared with published measurements."""

from pathlib import Path

import click

from emulator.surface.cli.options import FILE, json_option, output, plot_option
from switchml.cli.extras import require
from switchml.cli.output_options import OutputFile
from switchml.terminal import progress, say

PUBLISHED = Path(__file__).parents[3] / "lab" / "validation" / "published"
"""Folder of measurements published by others; its SOURCES.txt lists the sources."""
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


def published(kind: str) -> list[Path]:
    """Return the included tables of a kind."""
    return sorted((PUBLISHED / kind).glob("*.csv"))


write_option = click.option(
    "--write",
    "out_file",
    type=OutputFile({".toml": ""}),
    metavar="FILE.toml",
    help="With --refit: fit the recorded rows, and write the constants here.",
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace files of --write that are there.")


def _refit(
    name: str, files: tuple[Path, ...], is_asked: bool, out_file: Path | None, overwrite: bool, as_json: bool
) -> None:
    """Fit one set of constants again, show each next to the shipped value, and write them."""
    from emulator.lab.validation import refit
    from switchml.errors import ConfigError
    from switchml.tables import show

    if not is_asked or out_file is None:
        raise ConfigError("--refit and --write must be given together, with a FILE.toml for the constants")
    if files:
        raise ConfigError(f"{files[0]}: a refit is to the rows in emulator/cluster/data/fits.toml; give no file")
    fit = refit.fits()[name]
    targets = refit.targets(fit, out_file, overwrite)
    rows = refit.samples(fit)
    with progress("fitting") as task:
        found = refit.refit(fit, task.step, rows=rows)
    refit.write(fit, found, targets)
    result = {"rows": len(rows), "constants": refit.to_json(found), "files": [str(path) for path in targets.values()]}
    output(as_json, lambda: result, lambda: show(refit.table(fit, found, len(rows))))


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="[FILE.csv…]")
@click.option("--cluster", "cluster_name", default="a100-hdr800", help="Cluster that they were measured on.")
@click.option(
    "--recompute",
    type=click.Choice(["auto", "none", "selective", "full"]),
    default="auto",
    help="Recomputation of the jobs; auto: full on more than one node, else none.",
)
@click.option(
    "--refit", is_flag=True, help="Also fit the constants to all model sizes but one, for each in turn (slow; scipy)."
)
@write_option
@overwrite_option
@plot_option
@json_option
def iterations(
    files: tuple[Path, ...],
    cluster_name: str,
    recompute: str,
    refit: bool,
    out_file: Path | None,
    overwrite: bool,
    plot_file: Path | None,
    as_json: bool,
) -> None:
    """Predict the iteration times in FILE.csv, or in the included tables.

    Columns as VIA-Research/vTrain publishes them: accelerators, batch, micro-batch, sizes, tensor, data and pipeline
    parallelism, milliseconds. Jobs on more than one node of 8 recompute all activations, smaller ones none.

    With --refit --write the shipped constants are fitted again, to the rows and with the weights in
    emulator/cluster/data/fits.toml, and shown next to the shipped values. FILE.toml is a constants.toml with the new
    values; clusters whose network they describe are written next to it.
    """
    if out_file is not None:
        _refit("iterations", files, refit, out_file, overwrite, as_json)
        return
    from emulator.cluster import cluster
    from emulator.lab.validation import fitting
    from emulator.lab.validation.iterations import read
    from emulator.lab.validation.report import show
    from emulator.lab.validation.rows import summary

    machine = cluster.load(cluster_name)
    samples = [sample for file in files or published("iterations") for sample in read(file, recompute)]
    with progress(f"predicting {len(samples)} iterations"):
        rows = fitting.predict(machine, samples)
    groups = [(f"{gpus} GPUs", [row for row, (_, job, _) in zip(rows, samples, strict=True) if job.gpus == gpus])
              for gpus in sorted({job.gpus for _, job, _ in samples})]  # fmt: skip
    result = summary(rows) | {"constants": fitting.values(machine)}
    if refit:
        with progress("fitting") as task:
            splits = fitting.split_by_size(machine, samples, task.step)
        result["left_out"] = {
            name: {key: value for key, value in summary(part).items() if key != "rows"} for name, part in splits
        }
        groups += [(f"{name}, constants fitted without it", part) for name, part in splits]
    drawn = groups[: len({job.gpus for _, job, _ in samples})]
    show("iterations", rows, groups, result, plot_file, as_json, drawn=drawn)


@click.command()
@click.argument("folder", required=False, type=click.Path(exists=True, path_type=Path), metavar="[DIR]")
@click.option(
    "--cluster", "cluster_name", help="Predict by this cluster's closed form, with nothing fitted to the tables."
)
@plot_option
@json_option
def nccl(folder: Path | None, cluster_name: str | None, plot_file: Path | None, as_json: bool) -> None:
    """Predict the all-reduce tables of nccl-tests in DIR, or the included ones.

    Every other size of each table is used to fit a curve of three segments (latency and bandwidth for each protocol),
    and the sizes between are predicted.
    """
    from emulator.cluster import cluster, tables
    from emulator.lab.validation import nccl as check
    from emulator.lab.validation.report import show
    from emulator.lab.validation.rows import summary

    read = tables.read_all(folder or PUBLISHED / "nccl")
    if cluster_name is None:
        parts = [(table.name, check.held_out(table)) for table in read]
    else:
        parts = [(table.name, check.by_formula(table, cluster.load(cluster_name))) for table in read]
    rows = [row for _, part in parts for row in part]
    small, large = check.split(rows)
    groups = [*parts, ("below 16 MB", small), ("16 MB and more", large)]
    result = summary(rows)
    result["below_16_mb"], result["from_16_mb"] = (summary(part)["mape"] if part else None for part in (small, large))
    result["tables"] = {name: summary(part)["mape"] for name, part in parts}
    groups = [group for group in groups if group[1]]
    show("all-reduces", rows, groups, result, plot_file, as_json, drawn=parts)


@click.command()
@click.option("--cluster", "cluster_name", default="a100-dgx", help="Cluster that they were measured on.")
@plot_option
@json_option
def megatron(cluster_name: str, plot_file: Path | None, as_json: bool) -> None:
    """Predict Megatron-LM's published tables.

    Times and memory of Korthikanti et al. (MLSys 2023), throughput of Narayanan et al. (SC 2021). The summary is of the
    former's table 5; memory and throughput are listed separately.
    """
    from emulator.cluster import cluster
    from emulator.lab.validation import megatron as check
    from emulator.lab.validation.report import show
    from emulator.lab.validation.rows import summary

    machine = cluster.load(cluster_name)
    with progress("predicting"):
        rows = check.times(machine)
    others = [("memory", check.memories()), ("throughput (Narayanan)", check.scaling(machine))]
    seen = [row for row in rows if row.name.endswith("full")]
    unseen = [row for row in rows if not row.name.endswith("full")]
    groups = [("times, fitted", seen), ("times, not fitted", unseen), *others]
    result = summary(rows) | {"memory": summary(others[0][1]), "throughput": summary(others[1][1])}
    show("Megatron", rows, groups, result, plot_file, as_json, shown=[*rows, *others[0][1], *others[1][1]])


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="[FILE.csv…]")
@click.option("--cluster", "cluster_name", help="Cluster that they were measured on; default: by each row's gpu.")
@click.option("--refit", is_flag=True, help="Fit torch's constants to the recorded rows again (with --write; slow).")
@write_option
@overwrite_option
@plot_option
@json_option
def throughput(
    files: tuple[Path, ...],
    cluster_name: str | None,
    refit: bool,
    out_file: Path | None,
    overwrite: bool,
    plot_file: Path | None,
    as_json: bool,
) -> None:
    """Predict the tokens/s in FILE.csv, or in the included tables, torchtitan's and NeMo's among them.

    Columns as mosaicml/llm-foundry publishes them for MPT under FSDP: model, gpu, gpus, sequence, batch, micro-batch,
    precision, sharding, checkpointing. Rows that cannot run according to the emulator are counted.

    With --refit --write the constants of torch and of the clusters that MPT ran on are fitted again, as
    emulator/cluster/data/fits.toml says. FILE.toml is an implementations.toml with the new values; other files are
    written next to it.
    """
    if refit or out_file is not None:
        _refit("throughput", files, refit, out_file, overwrite, as_json)
        return
    from emulator.lab.validation import frameworks
    from emulator.lab.validation import throughput as check
    from emulator.lab.validation.report import show
    from emulator.lab.validation.rows import summary
    from switchml.errors import ConfigError

    measured = [row for file in files or published("throughput") for row in check.read(file, cluster_name)]
    with progress(f"predicting {len(measured)} jobs"):
        predicted = check.predict(measured)
    rows = [one.row for one in predicted if one.row is not None]
    refused = {one.measured.name: one.refused for one in predicted if one.refused}
    if not rows:
        raise ConfigError(f"none of {len(measured)} rows can be predicted: {next(iter(refused.values()))}")
    groups = [
        (name, part)
        for name in dict.fromkeys(row.group for row in measured)
        if (part := [one.row for one in predicted if one.measured.group == name and one.row is not None])
    ]
    result = summary(rows) | {
        "groups": {name: summary(part)["mape"] for name, part in groups},
        "refused": refused,
        "refused_share": len(refused) / len(measured),
    }
    if not files:
        with progress("predicting torchtitan's and NeMo's"):
            others = frameworks.groups()
        result["groups"] |= {name: summary(part)["mape"] for name, part in others}
        groups += others
        rows = [*rows, *(row for _, part in others for row in part)]
    show("throughput", rows, groups, result, plot_file, as_json)
    if not as_json:
        say(f"\nrefused: {len(refused)} of {len(measured)} rows, all of which ran")
        for name, why in refused.items():
            say(f"- {name}: {why}")


@click.command(name="all")
@click.argument("folder", required=False, type=EXISTING_FOLDER, metavar="[DIR]")
@click.option("--measure", is_flag=True, help="Also train small models here, and count what torch allocates.")
@click.option("--refit", is_flag=True, help="Also each model size with constants fitted to the others (slow; scipy).")
@json_option
def everything(folder: Path | None, measure: bool, refit: bool, as_json: bool) -> None:
    """Predict every published measurement in DIR and below (or the included ones), and Megatron's tables.

    The kind of each file is recognized by its content: iterations, tokens/s, or tables of nccl-tests; other files are
    skipped. Next to the errors is the number of rows that lie in their stated interval. The figures of the
    documentation come from this command with --measure --refit.
    """
    from emulator.lab.validation import campaigns
    from switchml.tables import show

    for extra in ["torch"] * measure + ["scipy"] * refit:
        require(extra)
    with progress("predicting") as task:
        found = campaigns.all_of(folder or PUBLISHED, task.step, measure=measure, refit=refit)
    output(as_json, lambda: campaigns.to_json(found), lambda: show(campaigns.table(found)))


@click.command()
@click.argument("folder", required=False, type=EXISTING_FOLDER, metavar="[DIR]")
@click.option(
    "--write", "out_file", type=FILE, metavar="FILE.toml", help="Write the groups as the emulator reads them."
)
@json_option
def intervals(folder: Path | None, out_file: Path | None, as_json: bool) -> None:
    """Check the intervals of predictions: how many measured rows lie in the intervals derived from other rows.

    Rows are the iterations and tokens/s in DIR (or the included tables), and the built-in published tables, without
    rows that constants were fitted to. An interval should hold four of five rows: of rows left out, a tenth at a time,
    and of all rows of a model or a campaign.
    """
    from emulator.lab.validation import coverage
    from switchml.tables import show

    with progress("predicting") as task:
        files = sorted(path for path in (folder or PUBLISHED).rglob("*.csv") if path.is_file())
        rows = coverage.measured(files, task.step)
        found, campaigns = coverage.groups(rows), coverage.by_campaign(rows)
    if out_file is not None:
        coverage.write(found, out_file)

    def print_tables() -> None:
        for one in coverage.tables(found, campaigns):
            show(one)

    output(as_json, lambda: coverage.to_json(found, campaigns), print_tables)
