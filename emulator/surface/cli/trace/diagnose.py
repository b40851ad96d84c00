"""`switchml trace diagnose`: reasons why a traced job is slow, and recommended changes."""

from pathlib import Path

import click

from emulator.surface.cli.options import ANY_PATH, REPORT, json_option, output, timeline_option, trace_options
from switchml.terminal import progress


@click.command()
@click.argument("path", type=ANY_PATH)
@click.option(
    "--report",
    "report_file",
    type=REPORT,
    metavar="FILE",
    help="Write a self-contained page (.html): findings, where the time goes, the timeline with its critical path; or "
    "a picture of the first two (.png, .svg, .pdf).",
)
@timeline_option
@click.option("--iteration", type=click.IntRange(min=0), help="Which traced iteration; default: the mean of all.")
@click.option(
    "--least",
    type=click.FloatRange(min=0, max=1),
    default=0.01,
    show_default=True,
    help="Omit findings that would save a smaller share of the iteration.",
)
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    metavar="CODEC",
    default=("fp16",),
    show_default=True,
    help="Codec to consider (docs/codecs.md); its speed is measured here. May be repeated.",
)
@trace_options
@json_option
def diagnose(
    path: Path,
    report_file: Path | None,
    timeline: Path | None,
    iteration: int | None,
    least: float,
    codecs: tuple[str, ...],
    rank: int | None,
    salvage: bool,
    as_json: bool,
) -> None:
    """Diagnose why the job traced in PATH (a directory with a trace of each rank) is slow and recommend changes.

    The gain of a change is the time saved when the job is replayed with that change. Changes are sorted by gain; gains
    don't add up. The answer may be that there is nothing to change. The timeline has the critical path as a separate
    track.
    """
    from emulator.jobs.replay.perfetto import write_timeline
    from emulator.traces.diagnosis.checks import diagnose as run
    from emulator.traces.diagnosis.terminal import show
    from emulator.traces.join import join
    from emulator.traces.readers.read import read
    from emulator.traces.whatif.codec_costs import measure

    joined = join(read(path, rank=rank, salvage=salvage), iteration=iteration)
    with progress("replaying with one thing changed at a time"):
        diagnosis = run(joined, least, lambda: measure(codecs, len(joined.graph.ranks)))
    if timeline is not None:
        context = diagnosis.context
        write_timeline(context.played, timeline, critical=context.path, source="switchml trace diagnose")
    if report_file is not None:
        from emulator.surface.report.diagnosis import write_report

        write_report(diagnosis, report_file, title=f"Diagnosis of {path.resolve().name}")
    output(as_json, diagnosis.to_json, lambda: show(diagnosis))
