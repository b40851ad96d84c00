"""The result of a search, as tables and as JSON."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from emulator.traces.optimizer.objective import Evaluation, Objective
from emulator.traces.optimizer.passes import PASSES, Setting, named
from emulator.traces.optimizer.search import Allowed, SearchResult
from switchml.tables import Table, number, show, text
from switchml.terminal import say
from switchml.units import bytes_text, time_text

SHOWN = 4
"""Maximum number of buckets listed in a table; the rest is counted."""


def words(name: str, value: Any) -> str:
    """Format a field's value."""
    if name == "buckets":
        if len(value) == 1:
            return f"caps of {bytes_text(value[0])}"
        return f"{len(value)} of " + _first(bytes_text(size) for size in value)
    if name == "codec":
        names = [spec or "none" for spec in value]
        return names[0] if len(set(names)) == 1 else _first(names)
    return {
        "allreduce": {"switchml": "the aggregator", "ring": "a ring (Gloo, NCCL)", "ps": "a parameter server"}.get(
            value
        ),
        "accumulate": f"{value} micro-batches",
        "batch": f"{value} times the batch",
    }.get(name) or "yes"


def _first(names: Iterable[str]) -> str:
    """Return the first SHOWN names, and the number of others."""
    listed = list(names)
    return ", ".join(listed[:SHOWN]) + (f" and {len(listed) - SHOWN} others" if len(listed) > SHOWN else "")


def print_table(result: SearchResult, objective: Objective, allowed: Allowed) -> None:
    """Print passes individually and in the setting; predictions; assumptions."""
    chosen = result.best.setting.changed()
    table = Table(
        [
            text("pass"),
            text("best alone", drop=1),
            number("gain alone", "%"),
            number("at worst", "%", drop=2),
            text("in the setting"),
            number("gain there", "%"),
        ],
        title="What each pass gains, in time for a sample",
    )
    titles = {one.name: one.title for one in PASSES}
    for name, best in sorted(result.alone.items(), key=lambda item: item[1].sample_s):
        value = best.setting.changed().get(name)
        gain, at_worst = result.gain_of(best), result.gain_of(best, at_worst=True)
        own = words(name, chosen[name]) if name in chosen else "as it is" if name in allowed.passes else "not allowed"
        there = f"{100 * _without(result, objective, name):.1f}" if name in chosen else ""
        shown = words(name, value) if gain > 0 else "as it is"
        table.add(titles[name], shown, f"{100 * max(gain, 0):.1f}", f"{100 * max(at_worst, 0):.1f}", own, there)
    show(table)
    say()
    for line in too_little(result, objective, allowed):
        say(line)
    for what, evaluation in result.steps:
        say(f"along the critical path, {what}: {time_text(evaluation.sample_s)}")
    rate = result.evaluated / result.wall_s * 60 if result.wall_s else 0
    say(f"{result.evaluated:,} settings in {result.wall_s:.1f} s ({rate:,.0f} a minute); {result.how}")
    samples = f" for {result.best.setting.samples:g} times the samples" if result.best.setting.samples != 1 else ""
    say(
        *("traced ", (time_text(objective.joined.iteration_s), "bold")),
        f", replayed {time_text(result.traced.iteration_s)}; with the setting ",
        *((time_text(result.best.iteration_s), "bold"), f"{samples}: "),
        *((f"{result.gain:.1%}", "bold"), " less time for a sample"),
    )
    rest = "" if result.in_file is result.best else " without what is only advised"
    say("predicted speed-up with the settings file: ", (f"{result.predicted_speedup:.2f}", "bold"), rest)
    for line in assumptions(result, objective):
        say(f"- {line}", style="dim")


def too_little(result: SearchResult, objective: Objective, allowed: Allowed) -> list[str]:
    """Return passes whose gain is uncertain, and which are therefore unchanged."""
    chosen = result.best.setting.changed()
    return [
        f"{one.title} as it is: {result.gain_of(best):.1%} might be gained, but all-reduces may each take "
        f"{time_text(objective.machine.uncertainty_s)} longer than expected, and replaying the job as it is is "
        f"{objective.error:.1%} off"
        for one in named(allowed.passes)
        if (best := result.alone.get(one.name))
        and one.name not in chosen
        and result.gain_of(best) > 0.0005
        and result.gain_of(best, at_worst=True) <= objective.error
    ]


def assumptions(result: SearchResult, objective: Objective) -> list[str]:
    """Return the assumptions of the result, and the error of its codecs."""
    machine = objective.machine
    costs = {spec: machine.codec(spec) for spec in result.best.setting.codec if spec}
    codecs = [
        f"codec {spec}: {cost.wire_share:.1%} of the bytes, {cost.bytes_per_s / 1e6:,.0f} MB/s on one core, "
        f"relative error {cost.error:.2g} of a gradient before what is remembered"
        for spec, cost in costs.items()
    ]
    repeated = machine.repeated_rounds(result.best.setting.allreduce, result.best.setting.codec)
    return machine.assumptions() + repeated + codecs + objective.joined.assumptions


def _without(result: SearchResult, objective: Objective, name: str) -> float:
    """Return the loss without one of the setting's passes, as a share of the traced time."""
    setting = result.best.setting
    bare = dataclasses.replace(setting, **{name: getattr(Setting(), name)})
    if name == "buckets":
        bare = dataclasses.replace(bare, codec=bare.codec[:1])
    return (objective(bare).sample_s - result.best.sample_s) / result.traced.sample_s


def _setting(evaluation: Evaluation) -> dict[str, Any]:
    """Return the changed fields; the all-reduce also under its former name."""
    changed = evaluation.setting.changed()
    return changed | ({"placement": changed["allreduce"]} if "allreduce" in changed else {})


def as_json(result: SearchResult, objective: Objective, tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return plain values: iteration seconds (`_s`), shares (`gain`)."""
    return {
        "traced_s": objective.joined.iteration_s,
        "replayed_s": result.traced.iteration_s,
        "predicted_s": result.best.iteration_s,
        "samples": result.best.setting.samples,
        "gain": result.gain,
        "gain_at_worst": result.gain_of(result.best, at_worst=True),
        "predicted_speedup": result.predicted_speedup,
        "uncertainty_s": objective.machine.uncertainty_s,
        **{"promised": result.predicted_speedup, "doubt_s": objective.machine.uncertainty_s},  # former names
        "replay_error": objective.error,
        "setting": _setting(result.best),
        "settings_file": {name: table for name, table in tables.items() if table},
        "alone": [
            {
                "pass": one.name,
                "setting": _setting(best),
                "iteration_s": best.iteration_s,
                "gain": result.gain_of(best),
                "gain_at_worst": result.gain_of(best, at_worst=True),
                "in_file": one.in_file,
                "keeps_results": one.keeps_results,
            }
            for one in PASSES
            if (best := result.alone.get(one.name))
        ],
        "critical_path_steps": [
            {"pass": name, "iteration_s": evaluation.iteration_s} for name, evaluation in result.steps
        ],
        "how": result.how,
        "evaluated": result.evaluated,
        "wall_s": result.wall_s,
        "settings_per_minute": result.evaluated / result.wall_s * 60 if result.wall_s else None,
        "interrupted": result.interrupted,
        "memory_bytes": result.best.memory_bytes or None,
        "assumptions": assumptions(result, objective),
    }
