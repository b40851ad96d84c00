"""Which event encloses which, beside a search through all of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from emulator.traces.readers.tables import parents

SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 12)), max_size=30)


@st.composite
def nested(draw, depth=3):
    """Spans as a thread makes them: each inside the one that called it."""
    found = []

    def fill(start, end, left):
        at = start
        while at < end and draw(st.booleans()):
            first = draw(st.integers(at, end - 1))
            last = draw(st.integers(first + 1, end))
            found.append((0, first, last - first))
            if left:
                fill(first, last, left - 1)
            at = last

    fill(0, 20, depth)
    return found


def sorted_columns(spans):
    order = sorted(spans, key=lambda span: (span[0], span[1], -span[2]))
    lane, start, duration = np.array(order, float).reshape(-1, 3).T
    return lane.astype(np.int32), start, start + duration


@given(spans=nested())
def test_the_parent_is_the_innermost_that_encloses(spans):
    lane, start, end = sorted_columns(spans)
    for event, parent in enumerate(parents(lane, start, end).tolist()):
        around = [o for o in range(event) if start[o] <= start[event] and end[o] >= end[event] > start[o]]
        assert parent == (around[-1] if around else -1)


@given(spans=SPANS)
def test_spans_that_overlap_anyhow_still_have_parents_that_enclose_them(spans):
    lane, start, end = sorted_columns(spans)
    for event, parent in enumerate(parents(lane, start, end).tolist()):
        if parent >= 0:
            assert parent < event
            assert lane[parent] == lane[event]
            assert start[parent] <= start[event] <= end[event] <= end[parent]
