"""`switchml validate memory`: predicted, published and measured memory of a training step."""

from pathlib import Path

import click

from emulator.surface.cli.options import json_option, plot_option
from switchml.cli.extras import require
from switchml.terminal import progress


@click.command()
@click.option("--measure/--no-measure", default=True, help="Also train small models here, on the processors (torch).")
@plot_option
@json_option
def memory(measure: bool, plot_file: Path | None, as_json: bool) -> None:
    """Predict torchtitan's published memory, and what torch allocates here for small models.

    Published: GiB reserved by torch's allocator for Llama 3 of 8, 70 and 405 B on 8 to 512 H100. Measured here: MiB of
    all tensors at the peak of a step, counted operator by operator, of small GPTs (fp32 and bf16, Adam and SGD, with
    and without checkpoints) and a convolutional network. The summary is of the published rows.
    """
    if measure:
        require("torch")
    from emulator.lab.validation.memory import published
    from emulator.lab.validation.report import show
    from emulator.lab.validation.rows import summary

    rows = published.rows()
    groups = [("torchtitan, reserved", rows)]
    result = summary(rows)
    if measure:
        from emulator.lab.validation.memory import measure as here

        with progress("measuring") as task:
            measured = here.rows(task.step)
        groups.append(("torch on this machine, allocated", measured))
        result["here"] = summary(measured)
    shown = [row for _, part in groups for row in part]
    show("memory", rows, groups, result, plot_file, as_json, shown=shown)
