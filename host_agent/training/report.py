"""Results of the training as a table, as one JSON object, and as a plot of the loss curves."""

import math
from pathlib import Path
from typing import Any

from host_agent.training.progress import TITLES
from host_agent.training.runner import Comparison
from host_agent.training.worker import BACKENDS, TrainingSettings
from switchml import plotting
from switchml.pages.charts import Line
from switchml.pages.panels import Curves
from switchml.tables import Table, number, show, text

SHOWN_DECISIONS = 8
"""Number of the latest codec changes in the table; the JSON has all of them."""
DIGITS_SHOWN = 16
"""Digits of the parameters' checksum in the table; the JSON has all of them."""


def as_json(comparison: Comparison, settings: TrainingSettings, aggregator: str) -> dict[str, Any]:
    """Results for JSON: times in seconds, goodput in bits per second, one loss per step."""

    def each(result: str) -> dict[str, Any]:
        return {backend: getattr(outcome, result) for backend, outcome in comparison.outcomes.items()}

    through = comparison.outcomes["switchml"]
    return {
        "workers": settings.workers,
        "steps": settings.steps,
        "parallel": settings.parallel,
        "pipeline": settings.pipeline,
        "aggregator": aggregator,
        "transport": comparison.transport,
        "wire": settings.wire,
        "sparse": settings.sparse,
        "hierarchy": settings.hierarchy,
        "seed": settings.seed,
        "accuracy": each("accuracy"),
        "max_param_diff": comparison.max_param_diff,
        "seconds": each("seconds"),
        "median_step_seconds": each("median_step_s"),
        "seconds_to_first_step": comparison.seconds_to_first_step,
        "goodput_bps": comparison.goodput_bps,
        "packets": comparison.packets,
        "codec": settings.codec,
        "memory": settings.memory,
        "codec_totals": _codec_totals(comparison),
        "loader": settings.loader,
        "loading": _loading_totals(comparison),
        "activations": settings.activations,
        "activation_totals": _activation_totals(comparison),
        "offload": settings.offload,
        "prune": settings.prune,
        "states": _first_states(comparison),
        "codec_decisions": through.decisions,
        "params_sha256": through.params_sha256,
        "loss": each("losses"),
    }


def _codec_totals(comparison: Comparison) -> dict[str, float]:
    """Total bytes of all ranks, seconds of the slowest; empty without a codec."""
    each = comparison.outcomes["switchml"].codecs
    names = each[0] if each else ()
    return {name: (max if name.endswith("_s") else sum)(stats[name] for stats in each) for name in names}


def _loading_totals(comparison: Comparison) -> dict[str, float]:
    """Total counters of all ranks in the aggregator's phase; empty without a planned loader."""
    each = comparison.outcomes["switchml"].loading
    return {name: sum(counters[name] for counters in each) for name in (each[0] if each else ())}


def _activation_totals(comparison: Comparison) -> dict[str, float | None]:
    """Totals of all ranks in the aggregator's phase, seconds of the slowest; empty without compression. `ratio` is None
    if nothing stayed on the device."""
    each = comparison.outcomes["switchml"].activations
    if not each:
        return {}
    from host_agent.memory.saving import ratio

    totals = {name: (max if name.endswith("_s") else sum)(counters[name] for counters in each) for name in each[0]}
    smaller = ratio(totals)
    return {**totals, "ratio": smaller if math.isfinite(smaller) else None}


def _first_states(comparison: Comparison) -> dict[str, float]:
    """State statistics of the first rank in the aggregator's phase; empty for an ordinary optimizer."""
    each = comparison.outcomes["switchml"].states
    return each[0] if each else {}


def print_table(comparison: Comparison, settings: TrainingSettings, aggregator: str) -> None:
    """Print the comparison to stdout."""
    table = Table(
        [text(""), *(number(TITLES[backend]) for backend in BACKENDS)],
        title=f"{settings.workers} ranks, {settings.steps} steps, aggregator: {aggregator} over "
        f"{comparison.transport}, {settings.wire}"
        + (", FSDP" if settings.parallel == "fsdp" else "")
        + (f", {settings.pipeline} stages" if settings.pipeline > 1 else ""),
    )
    outcomes = [comparison.outcomes[backend] for backend in BACKENDS]
    table.add("accuracy on test images", *(f"{outcome.accuracy:.2%}" for outcome in outcomes))
    table.add("final loss", *(f"{outcome.losses[-1]:.5f}" for outcome in outcomes))
    table.add("largest parameter difference", "", f"{comparison.max_param_diff:.2e}")
    table.add("time", *(f"{outcome.seconds:.2f} s" for outcome in outcomes))
    table.add("time a step (median)", *(f"{outcome.median_step_s * 1e3:.1f} ms" for outcome in outcomes))
    through = "gradients through all-reduce" if settings.parallel == "ddp" else "through the aggregator"
    table.add(through, "", f"{comparison.goodput_bps / 8e6:.1f} MB/s a rank")
    if codec := _codec_totals(comparison):
        share = codec["bytes_sent"] / codec["bytes_dense"]
        table.add(f"sent after {settings.codec}", "", f"{codec['bytes_sent'] / 1e6:.2f} MB ({share:.1%})")
        table.add("compressing", "", f"{codec['compress_s'] / settings.steps * 1e3:.1f} ms a step")
    if loading := _loading_totals(comparison):
        hits = int(loading["buffer_hits"] + loading["peer_hits"])
        table.add("samples from buffers", "", f"{hits:,} of {hits + int(loading['storage_samples']):,}")
        table.add("read from files", "", f"{loading['read_bytes'] / 1e6:.2f} MB in {int(loading['reads']):,} reads")
        table.add("waits for samples", "", f"{int(loading['waits']):,}, {loading['wait_s'] * 1e3:.0f} ms")
    if activations := _activation_totals(comparison):
        ratio = activations["ratio"]
        smaller = f"{ratio:.1f} times smaller" if ratio else "off the device"
        table.add(f"activations by {settings.activations}", "", smaller)
        seconds = activations["compress_s"] or 0, activations["restore_s"] or 0
        shown = " + ".join(f"{each / settings.steps * 1e3:.1f}" for each in seconds)
        table.add("compressing and restoring them", "", f"{shown} ms a step")
    if states := _first_states(comparison):
        if settings.prune:
            left = states["left"] / states["parameters"]
            table.add("parameters left", "", f"{int(states['left']):,}, {left:.1%}")
        else:
            waited = states["copy_wait_s"] / settings.steps * 1e3
            table.add("states on the host", "", f"{states['host_bytes'] / 1e6:.2f} MB, waits {waited:.1f} ms a step")
    decisions = comparison.outcomes["switchml"].decisions
    for each in decisions[-SHOWN_DECISIONS:]:
        where = f"step {each['step']}, bucket {each['bucket']}"
        table.add(f"{where}: {each['from']} → {each['to']}", "", f"at {each['goodput_bps'] / 1e6:.0f} Mbit/s")
    if len(decisions) > SHOWN_DECISIONS:
        table.add("earlier changes of codec", "", str(len(decisions) - SHOWN_DECISIONS))
    for name, count in comparison.packets.items():
        table.add(f"packets {name}", "", f"{count:,}")
    digest = comparison.outcomes["switchml"].params_sha256
    table.add(f"parameters, SHA-256 ({DIGITS_SHOWN} digits)", "", digest[:DIGITS_SHOWN])
    show(table)


def plot(comparison: Comparison, path: Path) -> None:
    """Write both loss curves to `path`. Raises ConfigError if it cannot be written."""
    steps = range(1, len(comparison.outcomes["switchml"].losses) + 1)
    lines = [
        Line(TITLES[backend], steps, comparison.outcomes[backend].losses, is_dashed=backend == BACKENDS[-1])
        for backend in BACKENDS
    ]
    panel = Curves("Loss", "step", "loss (mean over ranks)", lines, y_log=True)
    plotting.draw(path, "Loss over Gloo and through the aggregator", [panel])
