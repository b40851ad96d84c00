"""Shares of the cores: whole, disjoint, and what a thread that moves leaves as it was."""

import os
import threading

import pytest

from switchml.runtime import cores


@pytest.mark.parametrize(("mine", "parts", "shares"), [
    ({0, 1}, 1, [{0, 1}]), ({0, 1}, 2, [{0}, {1}]), ({3, 5, 9}, 2, [{3}, {5, 9}]), ({4}, 2, [{4}, {4}]),
    ({0, 1}, 4, [{0}, {0}, {1}, {1}]), (set(range(8)), 2, [{0, 1, 2, 3}, {4, 5, 6, 7}]),
])  # fmt: skip
def test_shares(monkeypatch, mine, parts, shares):
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: mine)
    assert [cores.share_of_cores(part, parts) for part in range(parts)] == shares


def test_a_thread_moves_and_may_leave_again(monkeypatch):
    all_cores, seen = os.sched_getaffinity(0), []
    confine = cores.confine

    def watched(thread: int, chosen: set[int]) -> None:
        confine(thread, chosen)
        seen.append(os.sched_getaffinity(0))

    monkeypatch.setattr(cores, "confine", watched)
    last = {max(all_cores)}
    thread = threading.Thread(target=lambda: [cores.move_to(last), cores.move_to({-1})])
    thread.start()
    thread.join()
    assert seen == [last, all_cores, all_cores, all_cores]


def test_a_thread_that_has_ended_is_left_alone():
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert thread.native_id is not None
    cores.confine(thread.native_id, {0})
