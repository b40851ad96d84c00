"""Similarity of iterations. Most differ in a few calls, such as an allocator's polls. An iteration in which nearly all
segments are the same, in the same order on each lane, counts as typical: its additional segments become gaps, and
missing ones have no duration.
"""

import dataclasses
from itertools import pairwise

import numpy as np

from emulator.traces.events import LaneKind, What
from emulator.traces.segments import Segments

MAX_DIFFERENT = 0.05
"""Maximum share of different segments, and of host or device time, for iterations to count as similar."""


def match_segments(typical: Segments, other: Segments) -> Segments | None:
    """Return the segments of `typical` with their times in the iteration of `other`; None if that one differs too much.
    Segments missing in `other` have no duration, and are placed where the next one on their lane begins."""
    mine, its = typical.signature(), other.signature()
    if np.array_equal(mine, its):
        at = place = np.arange(len(mine))
    else:
        numbers = np.unique(np.concatenate([mine, its]), axis=0, return_inverse=True)[1].reshape(-1).tolist()
        at, place = _pairs(numbers[: len(mine)], numbers[len(mine) :], typical.what, other.what)
        if not (_is_most(typical, at) and _is_most(other, place)):
            return None
    lane, (start_s, end_s) = typical.lane.copy(), np.full((2, len(mine)), np.nan)
    lane[at], start_s[at], end_s[at] = other.lane[place], other.start_s[place], other.end_s[place]
    absent = np.flatnonzero(np.isnan(start_s)).tolist()
    same_lane = np.append(typical.lane[1:] == typical.lane[:-1], False)
    for one in reversed(absent):
        if same_lane[one]:
            start_s[one] = end_s[one] = start_s[one + 1]
    for one in absent:
        if np.isnan(start_s[one]):  # the last on its lane
            start_s[one] = end_s[one] = end_s[one - 1] if one and same_lane[one - 1] else other.step_s[0]
    return dataclasses.replace(typical, lane=lane, start_s=start_s, end_s=end_s, step=other.step)


def _is_most(segments: Segments, common: np.ndarray) -> bool:
    """Return whether the common segments include all communication, and nearly all host and device time."""
    rest = np.ones(len(segments), bool)
    rest[common] = False
    if rest.sum() > MAX_DIFFERENT * len(rest) or np.any(rest & (segments.lane_kind == LaneKind.TRANSPORT)):
        return False
    duration_s = segments.end_s - segments.start_s
    return all(
        duration_s[rest & (segments.lane_kind == kind)].sum()
        <= MAX_DIFFERENT * duration_s[segments.lane_kind == kind].sum()
        for kind in (LaneKind.HOST, LaneKind.DEVICE)
    )


def _pairs(first: list[int], second: list[int], what: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the indexes of common elements of both sequences, int64 (2, common); `what` and `other` are the `What` of
    their members. Waits are matched first, then everything between them, as short calls may move across a wait."""
    most = int(2 * MAX_DIFFERENT * max(len(first), len(second)))
    waits, its = np.flatnonzero(what == What.SYNC), np.flatnonzero(other == What.SYNC)
    common = _common([first[one] for one in waits], [second[one] for one in its], most)
    ends = [(-1, -1), *zip(waits[common[:, 0]].tolist(), its[common[:, 1]].tolist(), strict=True)]
    pairs = [np.array(ends[1:], np.int64).reshape(-1, 2)]
    for (x, y), (next_x, next_y) in pairwise([*ends, (len(first), len(second))]):
        pairs.append(_common(first[x + 1 : next_x], second[y + 1 : next_y], most) + (x + 1, y + 1))
    return np.sort(np.concatenate(pairs), axis=0).T


def _common(first: list[int], second: list[int], most: int) -> np.ndarray:
    """Return the indexes of a longest common subsequence, int64 (common, 2); empty if more than `most` members of both
    are not in it (E. W. Myers, An O(ND) Difference Algorithm, 1986)."""
    reach, rounds = {1: 0}, []
    for different in range(most + 1):
        rounds.append(dict(reach))
        for diagonal in range(-different, different + 1, 2):
            before = _before(reach, diagonal, different)
            x = reach[before] + (before < diagonal)
            while x < len(first) and x - diagonal < len(second) and first[x] == second[x - diagonal]:
                x += 1
            reach[diagonal] = x
            if x >= len(first) and x - diagonal >= len(second):
                return _walk_back(rounds, x, x - diagonal)
    return np.empty((0, 2), np.int64)


def _before(reach: dict[int, int], diagonal: int, different: int) -> int:
    """Return the diagonal from which one more difference leads furthest."""
    if diagonal == -different or (diagonal < different and reach[diagonal - 1] < reach[diagonal + 1]):
        return diagonal + 1
    return diagonal - 1


def _walk_back(rounds: list[dict[int, int]], x: int, y: int) -> np.ndarray:
    pairs = []
    for different in reversed(range(len(rounds))):
        before = _before(rounds[different], x - y, different)
        from_x = rounds[different][before]
        while x > from_x and y > from_x - before:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = from_x, from_x - before
    return np.array(pairs[::-1], np.int64).reshape(-1, 2)
