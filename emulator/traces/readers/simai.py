"""Reads SimAI's workload text (github.com/aliyun/SimAI, example/workload_analytical.txt): a line for each layer of one
accelerator's iteration, in nanoseconds and bytes. One rank represents all. Forward: compute, then blocking
communication. Backward, from the last layer: input gradients, compute and blocking communication; weight gradients,
compute and non-blocking communication (astra-sim-alibabacloud, Workload.cc,
iterate_hybrid_parallel_Transformer_fwd_in_bckwd).
"""

import re
from pathlib import Path
from typing import NamedTuple

from emulator.jobs.workload.builder import GraphBuilder
from emulator.jobs.workload.graph import Collective, Kind, Order
from emulator.traces.communication import collective_of
from emulator.traces.limits import check_ranks
from emulator.traces.workload import Workload
from switchml.errors import TraceError
from switchml.files import read_text

COLUMNS = 12
_LOOPS = ("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER", "MICRO")
_SETTING = re.compile(r"(\w+):?\s+(\d+)")
_SUFFIX = re.compile(r"^([A-Z]+?)(_DP_EP|_EP|_TP|_DP)?$")


class Phase(NamedTuple):
    """One of a layer's three phases."""

    compute_s: float
    collective: Collective
    group: str  # tp, dp, ep or dp_ep
    bytes: float


class Layer(NamedTuple):
    """A line of the file."""

    name: str
    forward: Phase
    inputs: Phase
    weights: Phase


def read_simai(path: Path, gpus: int | None = None) -> Workload:
    """Read the workload in `path`. `gpus`: if the first line has no `all_gpus`. Raises TraceError naming the invalid
    line."""
    lines = [line for line in read_text(path, TraceError).splitlines() if line.strip()]
    loop, settings = lines[0].split()[0], {key: int(value) for key, value in _SETTING.findall(lines[0])}
    if loop not in _LOOPS:
        raise TraceError(f"{path}: the training loop {loop} is not known here; expected {' or '.join(_LOOPS)}")
    try:
        count = int(lines[1])
    except (IndexError, ValueError):
        raise TraceError(f"{path}, line 2: expected the number of layers") from None
    if len(lines) - 2 < count:
        raise TraceError(f"{path} is truncated: it announces {count} layers and has {len(lines) - 2}")
    layers = [_layer(path, number + 3, line) for number, line in enumerate(lines[2 : 2 + count])]
    settings["all_gpus"] = _accelerators(path, settings, gpus)
    return _workload(layers, settings)


def _accelerators(path: Path, settings: dict[str, int], gpus: int | None) -> int:
    tp, pp = (settings.get(key, 1) for key in ("model_parallel_NPU_group", "pp"))
    known = settings.get("all_gpus")
    if known is None and gpus is None:
        raise TraceError(
            f"{path}, line 1: no all_gpus, so how many accelerators there are is not known: give --gpus N, a multiple "
            f"of {tp * pp}"
        )
    if known is not None and gpus is not None and known != gpus:
        raise TraceError(f"{path}, line 1: all_gpus is {known}, but --gpus {gpus} was given")
    count = known if known is not None else gpus
    if not count or count % (tp * pp):
        raise TraceError(f"{path}: {count} accelerators are not divisible by tp {tp} × pp {pp}")
    return check_ranks(path, count)


def _layer(path: Path, number: int, line: str) -> Layer:
    words = line.split()
    if len(words) != COLUMNS:
        raise TraceError(f"{path}, line {number}: {len(words)} columns where {COLUMNS} are expected")
    try:
        return Layer(
            words[0], *(_phase(words[at : at + 3], default) for at, default in ((2, "tp"), (5, "tp"), (8, "dp")))
        )
    except ValueError as error:
        raise TraceError(f"{path}, line {number}: {error}") from None


def _phase(words: list[str], default: str) -> Phase:
    matched = _SUFFIX.match(words[1])
    kind = collective_of(matched[1]) if matched else Collective.NONE
    if matched is None or (kind == Collective.NONE and matched[1] != "NONE"):
        raise ValueError(f"unknown communication {words[1]}")
    group = (matched[2] or f"_{default}").lower().removeprefix("_")
    return Phase(int(words[0]) * 1e-9, kind, group, float(words[2]))


def _workload(layers: list[Layer], settings: dict[str, int]) -> Workload:
    tp, ep, pp = (settings.get(key, 1) for key in ("model_parallel_NPU_group", "ep", "pp"))
    world = settings["all_gpus"]
    dp = world // (tp * pp)
    sizes = {"tp": (tp, 1), "ep": (ep, tp), "dp": (dp, tp), "dp_ep": (max(1, dp // ep), tp * ep)}
    builder = GraphBuilder("simai")
    rank = builder.add_rank(weight=float(world))
    compute = builder.add_stream(rank, "compute")
    communicator = builder.add_stream(rank, "communication", Order.READY)
    groups = {name: builder.add_group([rank], name=name, size=size) for name, (size, _) in sizes.items()}
    last: list[int] = []
    unawaited: list[int] = []

    def add(layer: Layer, phase: Phase, what: str, blocks: bool) -> None:
        nonlocal last
        if phase.compute_s > 0:
            op_type = builder.add_op_type(f"{layer.name} {what}", seconds=phase.compute_s)
            last = [builder.add_op(compute, op_type, after=last)]
        if phase.collective == Collective.NONE or not phase.bytes or sizes[phase.group][0] < 2:
            return
        op_type = builder.add_op_type(
            f"{layer.name} {what} {phase.collective.name.lower()}",
            Kind.COLLECTIVE,
            collective=phase.collective,
            bytes=phase.bytes,
            priority=1 if blocks else 0,
            is_source=not last,
        )
        transfer = builder.add_transfers(op_type, groups[phase.group], 1)
        op = builder.add_op(communicator, op_type, after=last, transfer=transfer)
        if blocks:
            last = [op]
        else:
            unawaited.append(op)

    for layer in layers:
        add(layer, layer.forward, "forward", blocks=True)
    for layer in reversed(layers):
        add(layer, layer.inputs, "input gradient", blocks=True)
        add(layer, layer.weights, "weight gradient", blocks=False)
    assumptions = [f"one accelerator stands for all {world}: tp {tp}, ep {ep}, pp {pp}, dp {dp}"]
    if pp > 1:
        assumptions.append(
            f"the file has no pipeline: bubbles and activation p2p of {pp} stages are left out, as by SimAI"
        )
    if settings.get("checkpoints"):
        assumptions.append("activation checkpoints are ignored: nothing is computed again")
    return Workload(builder.build(), {groups[name]: stride for name, (_, stride) in sizes.items()}, world, assumptions)
