"""Which call of the notes an event of the profile is, where either side lacks some."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from emulator.traces.readers.kineto.communication import profiler_args
from emulator.traces.readers.sizes import CollectiveSize, Request, Sizes, match

MS = 1_000_000


def call(at_ns: int, name: str = "gloo:all_reduce", **told) -> CollectiveSize:
    return CollectiveSize(name=name, at_ns=at_ns, group="0", inputs=[[at_ns % 97]], input_types=["Float"], **told)


@given(
    st.lists(
        st.tuples(st.booleans(), st.booleans(), st.sampled_from(["gloo:all_reduce", "gloo:broadcast"])), max_size=30
    )
)
def test_each_event_gets_its_own_call_or_none(present):
    calls = [call(number * MS, name) for number, (noted, _, name) in enumerate(present) if noted]
    requests = [
        Request(number, name, number * MS - 10_000, number * MS + 10_000)
        for number, (_, profiled, name) in enumerate(present)
        if profiled
    ]
    found = match(calls, requests)
    both = {number for number, (noted, profiled, _) in enumerate(present) if noted and profiled}
    assert {event: one.at_ns // MS for event, one in found.items()} == {number: number for number in both}


def test_an_event_without_a_call_takes_the_next_one_before_it_begins():
    calls = [call(at * MS) for at in (1, 2, 3)]
    found = match(calls, [Request(at, "gloo:all_reduce", 0, (at + 0.5) * MS) for at in (1, 2, 3)])
    assert [found[at].at_ns for at in (1, 2, 3)] == [MS, 2 * MS, 3 * MS]


def test_in_the_profilers_words():
    sizes = Sizes({"0": [0, 2]}, [], [], [])
    one = CollectiveSize("gloo:all_gather", 0, "0", [[2, 3], []], ["Half", "Long"], [[2, 2, 3]], ["Half"], peer=2)
    args = profiler_args(sizes, one)
    assert (args.sent, args.received, args.group_ranks, args.destination) == (2 * 6 + 8, 2 * 12, [0, 2], 2)
