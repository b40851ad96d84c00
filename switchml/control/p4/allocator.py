"""The allocation of a P4 switch's resources: rows of its registers, workers' numbers and multicast groups, and the
generations that distinguish the remains of an earlier job in the same rows."""

import secrets
from collections.abc import Iterable

from switchml.control.dataplane import JobSpec
from switchml.control.p4.tables import FLOOD_GROUP, RegisterPlace, rows
from switchml.errors import ConfigError

WORKER_NUMBERS = range(1, 1024)
GENERATIONS = 1 << 31
"""Generations are the top bits of a 64-bit register, and Thrift integers have 63."""
GROUPS = range(FLOOD_GROUP + 1, 1024)


class PlaceAllocator:
    """Allocator for one switch with `n_rows` rows. Not thread-safe."""

    def __init__(self, n_rows: int):
        self._rows = range(n_rows)
        self._used: dict[int, tuple[range, range, int]] = {}  # job id → rows, workers' numbers, group
        # Another controller may have numbered jobs on this switch before.
        self._generation = secrets.randbits(31)

    def take(self, spec: JobSpec) -> RegisterPlace:
        """Allocate a place for a job. Raises ConfigError if there is none."""
        places = list(self._used.values())
        row = _first_gap(self._rows, rows(spec), (rows_of for rows_of, _, _ in places))
        worker = _first_gap(WORKER_NUMBERS, spec.workers, (numbers for _, numbers, _ in places))
        group = _first_gap(GROUPS, 1, (range(number, number + 1) for _, _, number in places))
        if row is None:
            left = len(self._rows) - sum(len(rows_of) for rows_of, _, _ in places)
            raise ConfigError(
                f"job {spec.job_id} needs {rows(spec)} rows of the switch's registers in one piece; "
                f"{left} of {len(self._rows)} are free"
            )
        if worker is None or group is None:
            raise ConfigError(
                f"job {spec.job_id}: the switch can't serve {spec.workers} more workers, of {len(WORKER_NUMBERS)}"
            )
        self._used[spec.job_id] = range(row, row + rows(spec)), range(worker, worker + spec.workers), group
        self._generation = (self._generation + 1) % GENERATIONS or 1
        return RegisterPlace(row, worker, group, self._generation)

    def release(self, job_id: int) -> None:
        """Free the job's place; unknown ids are ignored."""
        self._used.pop(job_id, None)


def _first_gap(space: range, size: int, used: Iterable[range]) -> int | None:
    """Start of the first gap of that size, or None."""
    at = space.start
    for span in sorted(used, key=lambda span: span.start):
        if span.start - at >= size:
            return at
        at = max(at, span.stop)
    return at if space.stop - at >= size else None
