"""Spans of time: the union of spans, and the share of spans covered by others."""

import numpy as np

TOUCHING_S = 1e-6
"""Spans that overlap by less count as consecutive, as clocks and profilers round."""


def stretches(began_s: np.ndarray, elapsed_s: np.ndarray) -> list[np.ndarray]:
    """Return the indexes of the spans in each contiguous stretch of time, int64 each, in order of their starts."""
    order = np.argsort(began_s, kind="stable")
    reach_s = np.maximum.accumulate((began_s + elapsed_s)[order])
    cuts = np.flatnonzero(began_s[order][1:] >= reach_s[:-1] - TOUCHING_S) + 1
    return np.split(order, cuts)


def busy(began_s: np.ndarray, elapsed_s: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each stretch the number of spans, the sum of their `size`, and its seconds, float64 (stretches,)
    each."""
    end_s = began_s + elapsed_s
    rows = [
        (len(stretch), size[stretch].sum(), end_s[stretch].max() - began_s[stretch[0]])
        for stretch in stretches(began_s, elapsed_s)
    ]
    count, total, seconds = np.array(rows, float).T
    return count, total, seconds


def under_way_s(began_s: np.ndarray, elapsed_s: np.ndarray) -> float:
    """Return the length of the union of these spans."""
    return float(busy(began_s, elapsed_s, np.zeros(len(began_s)))[2].sum())


def covered(start_s: np.ndarray, end_s: np.ndarray, from_s: np.ndarray, until_s: np.ndarray) -> np.ndarray:
    """Return the share of each span within any of [from_s, until_s], float64 (spans,); 0 for spans without length."""
    if not len(from_s):
        return np.zeros(len(start_s))
    order = np.argsort(from_s)
    # The length of the union before a time: a line that rises with slope 1 within the union, else not.
    reach_s = np.maximum.accumulate(until_s[order])
    from_s = np.maximum(from_s[order], np.concatenate([[-np.inf], reach_s[:-1]]))
    width_s = np.maximum(reach_s - from_s, 0.0)
    at_s = np.stack([reach_s - width_s, reach_s], axis=1).ravel()
    before_s = np.stack([np.cumsum(width_s) - width_s, np.cumsum(width_s)], axis=1).ravel()
    within_s = np.interp(end_s, at_s, before_s) - np.interp(start_s, at_s, before_s)
    length_s = end_s - start_s
    return np.divide(within_s, length_s, out=np.zeros(len(length_s)), where=length_s > 0).clip(0.0, 1.0)
