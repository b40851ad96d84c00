"""Common part of the P4 data planes, for one switch or a tree of them: jobs are added and removed under one lock, and a
thread monitors the switches and marks jobs that have lost their slots as failed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from switchml import logs
from switchml.control.dataplane import Address, JobSpec
from switchml.control.p4.driver import Driver, Unreachable
from switchml.control.p4.tables import Changes
from switchml.errors import ConfigError, ControlError
from switchml.protocol.packet import UDP_PORT

if TYPE_CHECKING:
    from typing_extensions import Self

log = logs.of("switchml.control")

WATCH_EVERY_S = 0.25


@dataclass
class Job:
    """A job on the switches. `failure`: why it can't continue."""

    spec: JobSpec
    failure: str = ""


JobType = TypeVar("JobType", bound=Job)


class P4Base(Generic[JobType]):
    """The common part of `Dataplane` around connected `drivers`. A data plane adds the rest, with `_remove`,
    `_check_switches` and `_clear`.

    `address`, `mac`: addresses that ranks send to. `window_bytes`: bytes of one rank's packets that the path to a
    switch can buffer. Methods may be called from any thread.
    """

    kind = "p4"
    authenticates = False
    ends_early = False  # not supported by a tree of switches
    halves = False  # a switch sums integers
    buffer_a_rank = True
    v1_place: tuple[str, int] | None = None
    most_parts = 1
    memory = ""

    def __init__(self, drivers: Sequence[Driver], address: str, mac: int, window_bytes: int):
        self.address: Address = address, UDP_PORT
        self.mac = mac
        self.receive_buffer_bytes = window_bytes
        self.where = ", ".join(driver.where for driver in drivers)
        self.slot_capacity = min(driver.rows for driver in drivers) // 2
        self._drivers = list(drivers)
        self._jobs: dict[int, JobType] = {}
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="switchml-p4-watch", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Remove everything from the switches and disconnect. May be called twice."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock:
            for job_id in list(self._jobs):
                self.stop_job(job_id)
            self._clear()
            for driver in self._drivers:
                driver.close()

    def stop_job(self, job_id: int) -> None:
        with self._lock:
            job = self._jobs.pop(job_id, None)
            if job is not None:
                self._remove(job)

    def failed(self) -> dict[int, str]:
        with self._lock:
            return {job_id: job.failure for job_id, job in self._jobs.items() if job.failure}

    def segment(self, job_id: int, part: int = 0) -> str:
        return ""

    def parts_for(self, wanted: int) -> int:
        return self.most_parts

    def refused(self) -> dict[str, int]:
        with self._lock:
            try:
                unknown = [driver.read_counter("outcomes", 0, 1)[0][0] for driver in self._drivers]
            except (Unreachable, ControlError):
                unknown = []
            return {"refused_address": sum(unknown)}

    # Defined by each data plane

    def _remove(self, job: JobType) -> None:
        """Remove all of a job, even if it was only partly added."""
        raise NotImplementedError

    def _check_switches(self) -> None:
        """Check the switches; called every WATCH_EVERY_S, under the lock."""
        raise NotImplementedError

    def _clear(self) -> None:
        """Remove the configuration that the switches need before any job."""
        raise NotImplementedError

    # Used by each data plane

    @contextlib.contextmanager
    def _adding(self, job: JobType) -> Iterator[None]:
        """Context in which a job is added to the switches: it is listed once it is complete, and removed if an error
        occurs. Raises ConfigError if a switch refuses."""
        try:
            yield
        except BaseException as error:
            self._remove(job)
            if isinstance(error, Unreachable):
                raise ConfigError(str(error)) from error
            if isinstance(error, ControlError):
                raise ConfigError(f"the switch at {self.where}: {error}") from error
            raise
        self._jobs[job.spec.job_id] = job

    def _fail_all(self, reason: str) -> None:
        """Mark all jobs as failed; a job's first reason is kept."""
        for job in self._jobs.values():
            job.failure = job.failure or reason

    def _undo_base(self, driver: Driver, base: Changes) -> None:
        try:
            driver.undo(base)
        except (Unreachable, ControlError) as error:
            log.warning("%s", error)

    def _watch(self) -> None:
        while not self._stopping.wait(WATCH_EVERY_S):
            try:
                with self._lock:
                    self._check_switches()
            except Exception:
                log.exception("watching the switch at %s failed", self.where)
