"""`switchml bench kernels`: time PyTorch's operators on this machine's GPU, and write an accelerator file."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emulator.surface.cli.options import ACCELERATOR_FILE, json_option, output
from switchml import tables
from switchml.cli.extras import require
from switchml.errors import ConfigError
from switchml.terminal import progress, say

if TYPE_CHECKING:
    from emulator.lab.bench.kernels.measure import Row


@click.command()
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", help="Device that runs the operators.")
@click.option(
    "--out",
    "out_file",
    type=ACCELERATOR_FILE,
    metavar="FILE.toml",
    help="Write an accelerator file for switchml emulate --accelerator.",
)
@click.option(
    "--from",
    "rows_file",
    type=click.Path(path_type=Path),
    metavar="ROWS.json",
    help="Fit what --json printed on another machine, instead of measuring.",
)
@json_option
def kernels(device: str, out_file: Path | None, rows_file: Path | None, as_json: bool) -> None:
    """Time matrix products, attention and operators bound by memory, and fit the emulator's constants to them.

    Takes about a minute on a GPU. The table compares measured times with the emulator's predictions: with its built-in
    values for this accelerator (its measured peaks, if it is not built in), and with the fitted ones.
    """
    require("torch")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from emulator.lab.bench.kernels import fit

    rows = fit.read_rows(rows_file) if rows_file is not None else _measured(device)
    name, base = fit.base_of(rows)
    table = fit.fit(rows)
    if out_file is not None:
        fit.write(out_file, rows, table)
    built_in = fit.predicted(rows, base)
    fitted = fit.predicted(rows, fit.accelerator_of(table))
    answer: dict[str, Any] = {"accelerator": table, "errors": _errors(built_in, fitted), "rows": rows}
    output(as_json, lambda: answer, lambda: _show(base.title, bool(name), built_in, fitted, answer["errors"]))


def _measured(device: str) -> list["Row"]:
    import torch

    from emulator.lab.bench.kernels.measure import measure

    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"torch {torch.__version__} finds no GPU; expected one, --device cpu or --from ROWS.json")
    rows = []
    with progress("timing operators") as task:
        for row in measure(torch.device(device)):
            rows.append(row)
            task.advance()
    return rows


Pairs = list[tuple["Row", str, float, float]]


def _errors(built_in: Pairs, fitted: Pairs) -> dict[str, dict[str, float]]:
    """Number of rows and mean prediction errors by kind of row."""
    kinds = list(dict.fromkeys(_kind(row) for row, *_ in built_in))
    return {
        kind: {
            "rows": len(_of(kind, built_in)),
            "built_in": _mean_error(_of(kind, built_in)),
            "fitted": _mean_error(_of(kind, fitted)),
        }
        for kind in kinds
    }


def _kind(row: "Row") -> str:
    if row["what"] == "gemm":
        return f"matrix products, {row['dtype']}"
    return "attention" if row["what"] == "attention" else "bound by memory"


def _of(kind: str, pairs: Pairs) -> Pairs:
    return [pair for pair in pairs if _kind(pair[0]) == kind]


def _mean_error(pairs: Pairs) -> float:
    return sum(abs(there / here - 1) for _, _, here, there in pairs) / len(pairs)


def _title(row: "Row", which: str) -> str:
    if row["what"] == "gemm":
        return f"mm ({row['m']} x {row['k']}) ({row['k']} x {row['n']}) {row['dtype']}"
    if row["what"] == "attention":
        size = ", ".join(str(row[name]) for name in ("batch", "heads", "sequence", "head_dim"))
        return f"attention ({size}){' causal' if row['causal'] else ''} {which.removesuffix('_s')}"
    return f"{row['op']} {row['rows']} x {row['cols']}"


def _show(title: str, is_built_in: bool, built_in: Pairs, fitted: Pairs, errors: dict[str, dict[str, float]]) -> None:
    before = "built in" if is_built_in else "by its peaks"
    say((title, "bold"), "\n")
    table = tables.Table(
        [
            tables.name("operator"),
            tables.number("measured", "µs"),
            tables.number(before, "µs"),
            tables.number("fitted", "µs"),
        ]
    )
    for (row, which, here, first), (*_, last) in zip(built_in, fitted, strict=True):
        table.add(_title(row, which), *(f"{1e6 * seconds:,.1f}" for seconds in (here, first, last)))
    tables.show(table)
    say()
    table = tables.Table(
        [tables.text("mean error"), tables.number("rows"), tables.number(before, "%"), tables.number("fitted", "%")]
    )
    for kind, one in errors.items():
        table.add(kind, str(one["rows"]), f"{100 * one['built_in']:.1f}", f"{100 * one['fitted']:.1f}")
    tables.show(table)
