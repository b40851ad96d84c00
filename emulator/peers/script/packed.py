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

_KERNELS = ("_flash_attention_", "_efficient_attention_", "_varlen_attn")
"""Beginnings of names of torch's operators of (…, tokens, heads, head)."""

_STARTS = ("cum_seq_", "cu_seqlens_", "cu_seq_")
_LENGTHS = ("seqused_k", "seqlen_k")
"""Names of arguments: the tokens before each sequence, and lengths of the keys that are used."""

Lengths = tuple[tuple[int, int, float], ...]
"""Tokens of queries and of keys, and the sequences that have as many."""


def options_of(known: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the cost of an operator depends on, besides its arguments: the lengths of sequences, unknown ones as
    their mean, and whether it is of the backward pass. None: it is no such operator."""
    names = _names(func)
    if names is None:
        return None
    lengths = _lengths(known, dict(zip(names, args, strict=False)) | kwargs)
    return {"lengths": lengths, "is_backward": "backward" in func._schema.name or "bwd" in func._schema.name}


def _lengths(known: Any, given: dict[str, Any]) -> Lengths:
    query, key = (next(given[one] for one in (name, name[0]) if one in given) for name in ("query", "key"))
    queries = _known_lengths(known, given, "q")
    keys = _known_lengths(known, given, "k")
    starts = _argument(given, _STARTS, "q")
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
        is_paged = any(given.get(one) is not None for one in ("block_table", "block_tables"))
        longest = _argument(given, ("max_", "max_seqlen_"), "k")
        keys = [longest if is_paged else max(1, round(key.shape[:-2].numel() / count))] * count
    return tuple((*both, float(times)) for both, times in sorted(Counter(zip(queries, keys, strict=False)).items()))


@cache
def _names(func: Any) -> list[str] | None:
    """Return the names of an operator's arguments if it is such a kernel: torch's, or a package's that has "flash" in
    its name and FlashAttention's arguments."""
    namespace, _, name = func._schema.name.partition("::")
    names = [one.name for one in func._schema.arguments]
    if namespace in ("aten", "torch_attn"):
        return names if name.startswith(_KERNELS) else None
    return names if "flash" in name and ({"q", "k", "v"} <= {*names} or {"query", "key", "value"} <= {*names}) else None


def _argument(given: dict[str, Any], names: tuple[str, ...], which: str) -> Any:
    return next((given[f"{one}{which}"] for one in names if given.get(f"{one}{which}") is not None), None)


def _known_lengths(known: Any, given: dict[str, Any], which: str) -> list[int] | None:
    used = next((given[one] for one in _LENGTHS if which == "k" and given.get(one) is not None), None)
    starts = _argument(given, _STARTS, which)
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
    is_causal = any(options.get(one) for one in ("is_causal", "causal", "custom_mask_type")) or right == 0
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
    left, right = (options.get(f"window_size_{one}", options.get(f"window_{one}")) for one in ("left", "right"))
    return -1 if left is None else int(left), -1 if right is None else int(right)
