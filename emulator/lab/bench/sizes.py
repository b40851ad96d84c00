"""Sizes in text form, and the cases that are measured: calls per repeat and number of repeats for each size.

A `Case` is one row of the table. Its parts are all-reduced (or run through another collective) one after the other, so
that the time of one is a latency, or `overlapped`: all are started before the first is waited for, as DDP does with its
buckets.
"""

from dataclasses import dataclass

from host_agent import tensors
from switchml import units
from switchml.errors import ConfigError

ITEM_BYTES = 4
"""Bytes of a float32, the default type of measurements."""
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
LARGEST_BYTES = 16 << 30
MAX_CASES = 64
MIN_REPEATS, BUDGET_S = 3, 20.0

_CALLS_BYTES, _MAX_CALLS = 4 << 20, 40
"""A repeat makes as many calls as fit _CALLS_BYTES, at most _MAX_CALLS: the time of a single 4-KiB call is mostly
noise."""

DDP_FIRST_BYTES, DDP_BUCKET_BYTES = 1 << 20, 25 << 20
"""DDP's default bucket sizes: _DEFAULT_FIRST_BUCKET_BYTES of torch.distributed, and DistributedDataParallel's
bucket_cap_mb=25."""
DDP_SMALL_BYTES = tuple(k << 10 for k in (4, 8, 16, 32, 64))
"""Bucket sizes of models with a few layers."""


ALL_REDUCE, FSDP = "all_reduce", "fsdp"
NAMES = {
    ALL_REDUCE: "All-reduce",
    "reduce_scatter": "Reduce-scatter",
    "all_gather": "All-gather",
    "broadcast": "Broadcast",
    FSDP: "All-gather and reduce-scatter at once",
}
DTYPES = tensors.ITEM_BYTES
"""Element types and their size in bytes."""
COLLECTIVES = tuple(NAMES)
"""Collectives that can be measured. FSDP: concurrent all-gather and reduce-scatter, as in its backward pass."""


@dataclass(frozen=True)
class Case:
    """One measured case. `parts`: elements of each collective of a repeat; over all ranks together in a reduce-scatter
    or all-gather."""

    parts: tuple[int, ...]
    overlapped: bool
    repeats: int
    warmup: int
    budget_s: float = float("inf")
    """Time in seconds after which MIN_REPEATS are enough."""
    collective: str = ALL_REDUCE
    """One of COLLECTIVES."""
    dtype: str = "float32"
    """One of DTYPES."""

    @property
    def item(self) -> int:
        """Bytes per element."""
        return DTYPES[self.dtype]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Collectives that one call starts concurrently."""
        return ("all_gather", "reduce_scatter") if self.collective == FSDP else (self.collective,)

    @property
    def moves_bytes(self) -> bool:
        """Whether results are copies of inputs."""
        return self.collective in ("all_gather", "broadcast")

    @property
    def is_same_everywhere(self) -> bool:
        """Whether all ranks get the same result."""
        return "reduce_scatter" not in self.kinds

    @property
    def elements(self) -> int:
        """Elements of one repeat."""
        return sum(self.parts)

    @property
    def calls(self) -> int:
        """Divisor of a repeat's time."""
        return 1 if self.overlapped else len(self.parts)

    @property
    def size_bytes(self) -> int:
        """Bytes that the reported time refers to: one call, or all overlapped ones together."""
        return self.elements // self.calls * self.item


def parse_size(text: str) -> int:
    """Bytes of "64M", "1MiB", "4096". Raises ConfigError unless it is a positive multiple of 4."""
    try:
        size = units.SIZE.parse(text, bare=1)
    except ConfigError as error:
        raise ConfigError(f"size {error}") from None
    if not 0 < size <= LARGEST_BYTES or size % ITEM_BYTES:
        raise ConfigError(f"size {text!r}: expected a multiple of {ITEM_BYTES} bytes (float32) from 4 to 16G")
    return int(size)


def parse_sweep(text: str) -> list[int]:
    """Bytes of "1K:256M:4" (from, to, factor; factor 2 if left out) or of a list like "4K,64K". Raises ConfigError."""
    if ":" not in text:
        return [parse_size(part) for part in text.split(",")]
    first, last, *factors = text.split(":")
    if len(factors) > 1 or (factors and not (factors[0].isdecimal() and int(factors[0]) >= 2)):
        raise ConfigError(f"sizes {text!r}: expected FROM:TO:FACTOR with a whole factor of at least 2 (1K:256M:4)")
    factor = int(factors[0]) if factors else 2
    size, end = parse_size(first), parse_size(last)
    if size > end:
        raise ConfigError(f"sizes {text!r}: the first is larger than the last")
    sizes = []
    while size <= end:
        sizes.append(size)
        size *= factor
    if len(sizes) > MAX_CASES:
        raise ConfigError(f"sizes {text!r}: {len(sizes)} of them; expected at most {MAX_CASES}")
    return sizes


def text_of(size_bytes: int) -> str:
    """Size in the form that `parse_size` reads: "64M"."""
    for unit, factor in reversed(UNITS.items()):
        if size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def check_shares(size_bytes: int, collective: str, workers: int, dtype: str = "float32") -> None:
    """Raises ConfigError if a tensor has no whole number of elements, or the ranks' shares of it differ in size."""
    item = DTYPES[dtype]
    if size_bytes % item:
        raise ConfigError(f"size {text_of(size_bytes)}: expected a multiple of {item} bytes ({dtype})")
    if collective not in (ALL_REDUCE, "broadcast") and size_bytes % (workers * item):
        raise ConfigError(
            f"size {text_of(size_bytes)}: {collective} gives each of {workers} ranks an equal share, expected a "
            f"multiple of {workers * item} bytes"
        )


def single(
    size_bytes: int,
    repeats: int | None = None,
    warmup: int | None = None,
    collective: str = ALL_REDUCE,
    dtype: str = "float32",
) -> Case:
    """Sequential collectives of one size. Smaller sizes get more repeats, unless `repeats` is given."""
    calls = max(1, min(_CALLS_BYTES // size_bytes, _MAX_CALLS))
    usual = 15 if size_bytes < 1 << 20 else 9 if size_bytes < 16 << 20 else 5
    budget_s = float("inf") if repeats else BUDGET_S
    parts, warmup = (size_bytes // DTYPES[dtype],) * calls, 2 if warmup is None else warmup
    return Case(parts, False, repeats or usual, warmup, budget_s, collective, dtype)


def ddp_buckets(
    model_bytes: int, repeats: int | None = None, warmup: int | None = None, dtype: str = "float32"
) -> list[Case]:
    """Cases of a model's gradients under DDP: all buckets overlapped, each bucket size alone, and small models."""
    rest = max(0, model_bytes - DDP_FIRST_BYTES)
    buckets = [min(DDP_FIRST_BYTES, model_bytes)] + [DDP_BUCKET_BYTES] * (rest // DDP_BUCKET_BYTES)
    if rest % DDP_BUCKET_BYTES:
        buckets.append(rest % DDP_BUCKET_BYTES)
    alone = [*DDP_SMALL_BYTES, *sorted(set(buckets))]
    parts = tuple(each // DTYPES[dtype] for each in buckets)
    together = Case(parts, True, repeats or 5, 2 if warmup is None else warmup, dtype=dtype)
    return [single(size, repeats, warmup, dtype=dtype) for size in alone] + [together]
