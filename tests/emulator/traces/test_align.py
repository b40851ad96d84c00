"""Clocks recovered from traces whose clocks a test has moved."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.jobs.replay.engine import replay
from emulator.lab.validation.clocks import recovered
from emulator.traces.align import align, both_ways, message_ends
from emulator.traces.events import Pings, Wire, WireWhat
from emulator.traces.join import join
from emulator.traces.readers.read import read
from switchml.errors import ConfigError
from tests.support import ddp_traces as traces
from tests.support.examples import examples


@examples(15)
@given(st.floats(-0.5, 0.5), st.integers(0, 1000))
def test_a_moved_clock_is_found(ahead_s, seed):
    """50 ms and more, from collectives whose ends are recorded up to milliseconds late."""
    given_traces = traces.ddp(
        iterations=20, clocks=[0.0, ahead_s], hosts=True, slowness=[1.0, 1.05], jitter=0.3, seed=seed
    )
    clocks = align(given_traces)
    assert clocks.offset_s == pytest.approx([0.0, -ahead_s], abs=2e-4)


def test_three_hosts_and_two_ranks_on_one():
    given_traces = traces.ddp(ranks=4, iterations=20, clocks=[0.0, 0.05, 0.05, -0.02], hosts=True, jitter=0.1)
    given_traces[2] = dataclasses.replace(given_traces[2], host=given_traces[1].host)
    clocks = align(given_traces)
    assert clocks.offset_s == pytest.approx([0.0, -0.05, -0.05, 0.02], abs=2e-4)
    assert clocks.offset_s[1] == clocks.offset_s[2]


def test_one_host_has_one_clock():
    assert align(traces.ddp(late_end=[0.0, 3.0])).offset_s.tolist() == [0.0, 0.0]


def test_clocks_that_drift():
    """100 ppm over 25 s: 2.5 ms, which no single offset could mend."""
    job = dataclasses.replace(traces.Job(), forward=400.0, optimizer=100.0)
    given_traces = traces.ddp(job, iterations=45, drifts=[0.0, 1e-4], clocks=[0.0, 0.03], hosts=True, jitter=0.1)
    clocks = align(given_traces)
    for step in (0, 44):
        at_s = [float(trace.steps[step, 0]) for trace in given_traces]
        shift_s = clocks.shift_s(given_traces, at_s)
        assert at_s[1] + shift_s[1] == pytest.approx(at_s[1] / (1 + 1e-4), abs=3e-4)
    assert clocks.drift[1] == pytest.approx(-1e-4, rel=0.05)


def test_packets_tell_more_than_collectives():
    """Ends differ by 3 ms on one side; packets took 100 µs both ways at best."""
    rng = np.random.default_rng(1)
    given_traces = traces.ddp(iterations=6, clocks=[0.0, 0.05], hosts=True, late_end=[0.0, 3.0])
    sent_s = np.sort(rng.uniform(0, 0.4, (2, 400)), axis=1)
    last_s = sent_s.max(axis=0)
    wires = []
    for rank in range(2):
        got_s = last_s + 100e-6 + rng.exponential(300e-6, 400)
        at_s = np.concatenate([sent_s[rank], got_s])
        order = np.argsort(at_s)
        zeros = np.zeros(800)
        wires.append(
            Wire(
                at_s=at_s[order],
                what=np.repeat([WireWhat.SENT, WireWhat.RECEIVED], 400)[order].astype(np.int8),
                job=zeros.astype(np.int32),
                tensor=zeros.astype(np.int64),
                chunk=np.tile(np.arange(400), 2)[order],
                version=zeros.astype(np.int8),
                bytes=zeros.astype(np.int32),
            )
        )
    with_packets = [dataclasses.replace(trace, wire=wire) for trace, wire in zip(given_traces, wires, strict=True)]
    assert align(with_packets).offset_s[1] == pytest.approx(-0.05, abs=1e-4)


def pinged(given_traces, clocks, seed, delay_s=(100e-6, 100e-6), moments_s=(0.0, 1.0), drift=0.0):
    """The traces, and pings of rank 0 by the others at some moments, 12 each time: at least `delay_s` there and back,
    and up to milliseconds more."""
    rng = np.random.default_rng(seed)
    rows = [[] for _ in given_traces]
    number = 0
    for at_s in moments_s:
        for rank in range(1, len(given_traces)):
            for _ in range(12):
                left_s = at_s + rng.uniform(0, 0.02)
                asked_s, answered_s = left_s + np.cumsum(delay_s + rng.exponential(5e-4, 2))
                for one, message, moment_s, is_sent in (
                    (rank, 2 * number, left_s, True),
                    (0, 2 * number, asked_s, False),
                    (0, 2 * number + 1, asked_s, True),
                    (rank, 2 * number + 1, answered_s, False),
                ):
                    rows[one].append((moment_s * (1 + drift * (one > 0)), message, is_sent))
                number += 1
    found = []
    for trace, ahead_s, own in zip(given_traces, clocks, rows, strict=True):
        at_s, message, is_sent = (np.array(column) for column in zip(*own, strict=True))
        shifted = dataclasses.replace(trace, epoch_s=trace.epoch_s + ahead_s)
        found.append(dataclasses.replace(shifted, pings=Pings(at_s, message.astype(np.int64), is_sent.astype(bool))))
    return found


@examples(15)
@given(st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=3), st.integers(0, 1000))
def test_pings_tell_more_than_collectives(ahead_s, seed):
    """To 0.2 ms, though all-reduces end up to 3 ms later on one rank than on another."""
    late_s = np.linspace(0.0, 3.0, 1 + len(ahead_s)).tolist()
    given_traces = traces.ddp(ranks=1 + len(ahead_s), iterations=6, hosts=True, late_end=late_s, seed=seed)
    clocks = align(pinged(given_traces, [0.0, *ahead_s], seed))
    assert clocks.offset_s == pytest.approx([0.0, *(-np.array(ahead_s))], abs=2e-4)
    assert clocks.error_s < 1e-3


def test_pings_at_both_ends_tell_how_clocks_drift():
    job = dataclasses.replace(traces.Job(), forward=400.0, optimizer=100.0)
    given_traces = traces.ddp(job, iterations=45, drifts=[0.0, 1e-4], hosts=True, late_end=[0.0, 3.0])
    clocks = align(pinged(given_traces, [0.0, 0.03], 1, moments_s=(0.0, 25.0), drift=1e-4))
    assert clocks.drift[1] == pytest.approx(-1e-4, rel=0.05)
    shift_s = clocks.shift_s(given_traces, [0.0, 25.0])
    assert shift_s[1] + 25.0 * 1e-4 == pytest.approx(-0.03, abs=3e-4)


def test_transactions_that_were_repeated_tell_nothing():
    """A version bit has two values: the third round of a slot looks like the first."""
    wire = {"job": 1, "tensor": 0, "chunk": 3, "version": 0}
    given_traces = []
    for trace in traces.ddp(hosts=True):
        count = 4 if trace.rank == 0 else 2
        columns = {name: np.full(count, value) for name, value in wire.items()}
        what = np.array([WireWhat.SENT, WireWhat.RECEIVED] * (count // 2), np.int8)
        wires = Wire(at_s=np.arange(count) * 1e-3, what=what, bytes=np.zeros(count, np.int32), **columns)
        given_traces.append(dataclasses.replace(trace, wire=wires))
    one, other = message_ends(given_traces, np.zeros(2)).values()
    assert (len(one.sent), len(one.came), len(other.sent), len(other.came)) == (0, 0, 1, 1)
    assert both_ways(one, other, 10.0) == []


@pytest.mark.parametrize(
    ("capture", "told_by"), [("switchml-2-ranks", ["pings", "packets"]), ("gloo-4-ranks", ["pings"])]
)
def test_recorded_captures(capture, told_by):
    """All-reduces of 1 MB over links of 200 Mbit/s between namespaces, on a machine with much else to do. The ends of a
    ring among four lie milliseconds apart: by themselves they tell less."""
    found = recovered(capture, read(Path(__file__).with_name("captures") / capture))
    errors_s = {row.told_by: row.error_s for row in found}
    assert list(errors_s) == [*told_by, "collectives"]
    assert all(errors_s[what] < 2e-4 for what in told_by)
    assert errors_s["collectives"] < 2e-3


def test_clocks_that_may_differ_are_not_shifted():
    with pytest.raises(ConfigError, match="on one machine"):
        recovered("two machines", traces.ddp(hosts=True))


def test_files_that_do_not_say_when_they_began():
    given_traces = [dataclasses.replace(trace, epoch_s=0.0) for trace in traces.ddp(iterations=10, hosts=True)]
    moved = given_traces[1]
    events = dataclasses.replace(moved.events, start_s=moved.events.start_s + 7.0)
    given_traces[1] = dataclasses.replace(moved, events=events, steps=moved.steps + 7.0)
    joined = join(given_traces)
    assert replay(joined.graph, joined.costs).makespan_s == pytest.approx(joined.iteration_s, rel=1e-3)


def test_the_joined_graph_does_not_depend_on_clocks():
    straight = join(traces.ddp(iterations=10, hosts=True, slowness=[1.0, 1.2]))
    moved = join(traces.ddp(iterations=10, hosts=True, slowness=[1.0, 1.2], clocks=[0.0, 0.05]))
    played, still = replay(moved.graph, moved.costs), replay(straight.graph, straight.costs)
    assert played.makespan_s == pytest.approx(still.makespan_s, abs=1e-5)
    assert moved.costs.transfer_fixed_s == pytest.approx(straight.costs.transfer_fixed_s, abs=1e-5)


def test_nothing_tells():
    given_traces = traces.ddp(hosts=True, clocks=[0.0, 0.05])
    silent = []
    for trace in given_traces:
        events = trace.events
        blank = np.zeros_like(events.what)
        silent.append(dataclasses.replace(trace, events=dataclasses.replace(events, what=blank)))
    clocks = align(silent)
    assert clocks.offset_s.tolist() == [0.0, 0.0]
    assert "nothing in the traces tells" in clocks.assumptions[0]
