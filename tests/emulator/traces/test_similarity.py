"""What iterations have in common is as much as there is, and stands where it stood."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from emulator.traces.events import What
from emulator.traces.plan import Job
from emulator.traces.similarity import _common, match_segments
from tests.support import ddp_traces

FEW = st.lists(st.integers(0, 3), max_size=12)


def longest(first, second) -> int:
    """Length of a longest common subsequence, by its definition."""
    rows = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, one in enumerate(first, 1):
        for j, other in enumerate(second, 1):
            rows[i][j] = rows[i - 1][j - 1] + 1 if one == other else max(rows[i - 1][j], rows[i][j - 1])
    return rows[-1][-1]


@given(FEW, FEW)
def test_as_much_as_there_is(first, second):
    pairs = _common(first, second, len(first) + len(second))
    assert len(pairs) == longest(first, second)
    assert all(first[x] == second[y] for x, y in pairs)
    assert (np.diff(pairs, axis=0) > 0).all()


@given(FEW, FEW, st.integers(0, 8))
def test_none_where_too_much_differs(first, second, most):
    differ = len(first) + len(second) - 2 * longest(first, second)
    assert len(_common(first, second, most)) == (longest(first, second) if differ <= most else 0)


def test_what_an_iteration_lacks_takes_it_no_time_where_the_next_one_begins(monkeypatch):
    monkeypatch.setitem(match_segments.__globals__, "MAX_DIFFERENT", 0.5)
    typical = Job(ddp_traces.ddp()).cuts(0)[0]
    kept = np.arange(len(typical)) != (gone := int(np.flatnonzero(typical.what == What.COMPUTE)[3]))
    fields = {f.name: getattr(typical, f.name) for f in dataclasses.fields(typical)}
    columns = {name: column[kept] for name, column in fields.items() if isinstance(column, np.ndarray)}
    found = match_segments(typical, dataclasses.replace(typical, **columns))
    assert found.start_s[gone] == found.end_s[gone] == typical.start_s[gone + 1]
    assert np.array_equal(np.delete(found.end_s, gone), columns["end_s"])
