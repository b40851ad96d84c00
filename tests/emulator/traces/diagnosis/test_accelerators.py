"""What is said of training on accelerators: on small traces of which every time is known."""

import pytest

from emulator.traces.diagnosis.checks import diagnose
from emulator.traces.join import join
from emulator.traces.readers.read import read
from emulator.traces.summary import of_job
from tests.support.kineto_data import write
from tests.support.kineto_ddp import ALL_REDUCE, START_US, STEP_US, head, kernels, rank_events

pytest.importorskip("scipy", reason="needs scipy (pip install 'switchml[trace]')")


def traced_on_accelerators(tmp_path, change=lambda events: events, **more):
    """Joined traces of two ranks (`tests/support/kineto_ddp.py`)."""
    for rank in range(2):
        write(tmp_path / f"rank-{rank}.json", change(rank_events(**more)), **head(rank))
    return join(read(tmp_path))


def advice(joined, kind):
    """The settings of a finding."""
    return " ".join(one for each in diagnose(joined).findings if each.kind == kind for one in each.settings)


def test_kernels_beside_each_other_keep_an_accelerator_busy_once(tmp_path):
    """The same again on two further streams."""

    def beside(events):
        more = [dict(event, tid=stream, args=event["args"] | {"stream": stream})
                for event in kernels(events) for stream in (30, 31) if event["name"] != ALL_REDUCE]  # fmt: skip
        return events + more

    joined = traced_on_accelerators(tmp_path, beside)
    (found,) = (each for each in diagnose(joined).findings if each.kind == "starved accelerator")
    assert "kernels keep an accelerator busy 80% of the iteration" in found.evidence
    rank = of_job(read(tmp_path))["ranks"][0]
    assert rank["device_busy_s"] == pytest.approx(0.036)
    assert sum(lane["busy_s"] for lane in rank["lanes"] if lane["kind"] == "device") == pytest.approx(0.108)


def test_launches_that_load_their_kernels_are_a_first_iterations(tmp_path):
    def loading(events):
        late_us = 0
        for event in events:
            event["ts"] += late_us
            if event["name"] == "cudaLaunchKernel":
                event["dur"] += 20_000
                late_us += 20_000
        events[0]["dur"] += late_us
        return events

    joined = traced_on_accelerators(tmp_path, loading, steps=1)
    found = {each.kind: each for each in diagnose(joined).findings}
    assert "trace later iterations" in found["first use"].settings[0]
    assert "starved accelerator" not in found  # what loading leaves says nothing about launches
    without_s = joined.iteration_s - found["first use"].gain_s
    assert without_s == pytest.approx(0.018, rel=0.05)  # one after the other, but for what hid behind 20 ms


def test_advice_is_not_what_the_job_does_already(tmp_path):
    assert "CUDA graphs" in advice(traced_on_accelerators(tmp_path), "starved accelerator")

    def of_one_graph(events):
        first, kept = {}, []
        for event in events:
            step = (event["ts"] - START_US) // STEP_US
            if event["name"] == "cudaLaunchKernel":
                if step in first:
                    continue
                first[step] = event["args"]["correlation"]
                event["name"] = "cudaGraphLaunch"
            if event["cat"] == "kernel":
                event["args"]["correlation"] = first[step]
            kept.append(event)
        return kept

    said = advice(traced_on_accelerators(tmp_path, of_one_graph), "starved accelerator")
    assert "torch.compile" not in said
    assert "in one CUDA graph" in said
    bound = advice(traced_on_accelerators(tmp_path), "network bound")
    assert "bf16 lanes" in bound
    assert "copies through hosts" not in bound  # NCCL makes none

    def in_halves(events):
        for event in events:
            event["name"] = event["name"].replace("f32", "bf16")
        return events

    assert "bf16 lanes" not in advice(traced_on_accelerators(tmp_path, in_halves), "network bound")
