"""Attention over sequences of different lengths, packed one after the other (FlashAttention's `varlen` functions,
nested tensors): their lengths, which follow from known values, and the pairs of tokens that it computes.
"""

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from emulator.jobs.workload.implementations import attended
from emulator.peers.script.operators import Operator

KERNELS = {
    f"{name}{way}": is_backward
    for name, ways in {
        "_flash_attention": ("_forward", "_forward_no_dropout_inplace", "_backward"),
        "_efficient_attention": ("_forward", "_backward"),
        "_varlen_attn": ("", "_out", "_backward"),
    }.items()
    for way in ways
    for is_backward in (way == "_backward",)
}
"""Operators of (…, tokens, heads, head), and whether they are of the backward pass."""

_STARTS = ("cum_seq_", "cu_seqlens_", "cu_seq_")
_LENGTHS = ("seqused_k", "seqlen_k")
"""Names of arguments: the tokens before each sequence, and lengths of the keys that are used."""

Lengths = tuple[tuple[int, int, float], ...]
"""Tokens of queries and of keys, and the sequences that have as many."""


def lengths_of(known: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Lengths | None:
    """Return the lengths of an operator's sequences, unknown ones as their mean; None: it has none."""
    names = _names(func)
    if names is None:
        return None
    given = dict(zip(names, args, strict=False)) | kwargs
    query, key = given["query"], given["key"]
    queries = _known_lengths(known, given, "q")
    keys = _known_lengths(known, given, "k")
    starts = _argument(given, "q")
    count = query.size(0) if starts is None else starts.numel() - 1
    if count <= 0:
        return ()
    if queries is None:
        known.assumed_lengths += starts is not None
        tokens = query.shape[:-2].numel()
        queries = [max(1, round(tokens / count))] * count
        if starts is not None and keys is None:
            mean = max(1, round(key.shape[:-2].numel() / count))
            return ((queries[0], mean, tokens / queries[0]),)
    if keys is None:
        paged = given.get("block_table") is not None
        keys = [given["max_k"] if paged else max(1, round(key.shape[:-2].numel() / count))] * count
    return tuple((*both, float(times)) for both, times in sorted(Counter(zip(queries, keys, strict=False)).items()))


@cache
def _names(func: Any) -> list[str] | None:
    """Return the names of an operator's arguments if it is one of KERNELS."""
    if func._schema.name.partition("::")[2] not in KERNELS:
        return None
    return [one.name for one in func._schema.arguments]


def _argument(given: dict[str, Any], which: str) -> Any:
    return next((given[f"{one}{which}"] for one in _STARTS if given.get(f"{one}{which}") is not None), None)


def _known_lengths(known: Any, given: dict[str, Any], which: str) -> list[int] | None:
    used = next((given[one] for one in _LENGTHS if which == "k" and given.get(one) is not None), None)
    starts = _argument(given, which)
    read: tuple[tuple[Any, Callable[[Any], Any]], ...] = ((used, lambda each: each), (starts, torch.diff))
    for tensor, of in read:
        if tensor is not None and known.are_known([tensor]):
            with torch.utils._python_dispatch._disable_current_modes():
                return [int(one) for one in of(known.real(tensor)).tolist()]
    return None


def work(operator: Operator) -> tuple[bool, list[tuple[float, int, int]]]:
    """Return whether attention is causal, and for each length of sequences: its pairs of tokens, its longer side, and
    the window."""
    options = operator.options
    left, right = _window(options)
    is_causal = bool(options.get("is_causal")) or bool(options.get("custom_mask_type")) or right == 0
    found = []
    for queries, keys, count in options["lengths"]:
        if not queries or not keys:
            continue
        window = 0 if left < 0 else left + 1 if is_causal else left + 1 + (keys if right < 0 else right)
        if queries == keys:
            pairs = attended(keys, window, is_causal)
        else:  # the last query sees the last key
            seen = min(keys, window or keys)
            pairs = float(queries * seen)
            if is_causal and not 0 < window < keys - queries:
                pairs -= min(queries, seen) ** 2 / 2
        found.append((pairs * count, max(queries, keys), window))
    return is_causal, found


def _window(options: dict[str, Any]) -> tuple[int, int]:
    """Return the keys before and after a query that it sees; -1: all."""
    both = options.get("window_size")
    if isinstance(both, (tuple, list)):
        return int(both[0]), int(both[1])
    left, right = options.get("window_size_left"), options.get("window_size_right")
    return -1 if left is None else int(left), -1 if right is None else int(right)
