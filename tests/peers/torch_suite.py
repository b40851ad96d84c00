"""PyTorch's own tests of torch.distributed, on the backend `switchml` where they name Gloo.

The wheel of torch has them: `DistributedTest` in torch/testing/_internal/distributed/distributed_test.py. A test there
runs, skips or expects something by the name of the backend, so they are loaded as Gloo's and then told the other name:
which tests run, and what they expect, is what it is for Gloo. No test and no result is changed.

    python tests/peers/torch_suite.py [--backend gloo] [--ranks 2] [NAME …]

runs all cases, or those named, and prints one JSON line a case. Each case gets processes of its own, forked from this
one, which has imported everything already; an aggregator is started for all of them. Tensors are on the CPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
import traceback
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

CASE_TIMEOUT_S = 120.0
"""Of one case on slow cores. Gloo's slowest takes 20 s on idle ones."""
TRIAL_TIMEOUT_S = 5.0
LISTED_AS = "gloo"


class Named(str):
    """The name of our backend, which a test may also take for Gloo's."""

    def __eq__(self, other: object) -> bool:
        return str(self) == other or other == LISTED_AS

    __hash__ = str.__hash__


Outcome = tuple[str, str]
"""passed, skipped or failed; why."""


def load(backend: str, ranks: int) -> tuple[Any, type[unittest.TestCase]]:
    """The module of the tests, told `backend`, and the class of all cases. Once in a process.

    A profiler shows what Gloo does for us under Gloo's name: a test that looks for `switchml:broadcast` finds both.
    """
    os.environ.update(BACKEND=LISTED_AS, WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", CUDA_VISIBLE_DEVICES="")
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test

    find_events = distributed_test.get_profiling_event
    features = common_distributed.DistTestCases.backend_feature
    profiled = (
        distributed_test.PROFILING_SUPPORTED_BACKENDS,
        distributed_test.CUDA_PROFILING_SUPPORTED_BACKENDS,
        distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS,
    )
    for named in features.values():
        if LISTED_AS in named:
            named.add(backend)
    for listed in profiled:
        listed.append(backend)

    def events_of_either(name: str, *others: Any, **options: Any) -> list[Any]:
        by_gloo = find_events(name.replace(f"{backend}:", f"{LISTED_AS}:"), *others, **options)
        for event in by_gloo:
            event.name = event.name.replace(f"{LISTED_AS}:", f"{backend}:")
        return find_events(name, *others, **options)

    if backend != LISTED_AS:
        distributed_test.BACKEND = Named(backend)
        distributed_test.get_profiling_event = events_of_either

    class Cases(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        """All of them; this process forks the ranks, not `setUp`."""

    return distributed_test, Cases


def outcome_of(body: Callable[[], object]) -> Outcome:
    """Of a rank that runs `body`, as `TestDistBackend` judges it."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    try:
        body()
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except SystemExit as left:
        if not left.code:
            return "passed", ""
        reasons = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
        return ("skipped", reasons[left.code]) if left.code in reasons else ("failed", f"exit code {left.code}")
    except BaseException:
        return "failed", traceback.format_exc()
    return "passed", ""


def run_rank(case: Any, name: str, suite: Any) -> None:
    """One rank's part of a case: what `TestDistBackend._run` does."""
    import torch.distributed as dist
    from torch.testing._internal.common_utils import set_rng_seed

    dist.init_process_group(
        init_method=case.init_method,
        backend=str(suite.BACKEND),
        world_size=int(case.world_size),
        rank=case.rank,
        timeout=timedelta(seconds=suite.CUSTOM_PG_TIMEOUT.get(name, suite.default_pg_timeout)),
    )
    case._barrier()
    set_rng_seed()
    getattr(case, name)()
    case._barrier()
    dist.destroy_process_group()


def run_case(name: str, ranks: int, suite: Any, cases: Any) -> Outcome:
    """Fork the ranks of one case and wait for them. Rank 0 decides whether it is skipped, as in PyTorch's runner.

    Most cases are skipped, for want of GPUs, by a decorator: to learn that quickly, one process without a group tries
    first. Whatever else comes of that does not count.
    """

    def part(rank: int, body: Callable[[Any], object]) -> Outcome:
        os.environ["TEMP_DIR"] = str(folder)
        suite.INIT_METHOD = f"file://{folder}/init_dir/shared_init_file"
        case = cases(name)
        case.rank, case.file_name = rank, str(folder / "rendezvous")
        return outcome_of(lambda: body(case))

    with _folder() as folder:
        [alone] = _forked([lambda: part(0, lambda case: getattr(case, name)())], folder, TRIAL_TIMEOUT_S)
    if alone[0] == "skipped":
        return alone
    with _folder() as folder:
        bodies = [lambda rank=rank: part(rank, lambda case: run_rank(case, name, suite)) for rank in range(ranks)]
        outcomes = _forked(bodies, folder, CASE_TIMEOUT_S)
        failed = [f"rank {rank}: {why}" for rank, (what, why) in enumerate(outcomes) if what == "failed"]
        if failed:
            errors = [(folder / f"errors-{rank}").read_text(errors="replace") for rank in range(ranks)]
            return "failed", "\n".join(failed + [text[-3000:] for text in errors])
        return outcomes[0]


@contextmanager
def _folder() -> Iterator[Path]:
    """What `initialize_temp_directories` makes for a case."""
    with tempfile.TemporaryDirectory(prefix="torch-suite-") as temporary:
        folder = Path(temporary)
        for used in ("barrier", "test_dir", "init_dir"):
            (folder / used).mkdir()
        yield folder


def _forked(bodies: list[Callable[[], Outcome]], folder: Path, timeout_s: float) -> list[Outcome]:
    """Run each in a process of its own, whose output goes to errors-N in `folder`; none is left afterwards."""
    context = multiprocessing.get_context("fork")

    def child(number: int, body: Callable[[], Outcome], answers: Any) -> None:
        errors = os.open(folder / f"errors-{number}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        answers.send(body())

    pipes, processes = [], []
    for number, body in enumerate(bodies):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=child, args=(number, body, theirs))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    outcomes = _collect(pipes, time.monotonic() + timeout_s)
    ended_well = all(what != "failed" for what, _ in outcomes)
    for process in processes:
        process.join(5 if ended_well else 0)
        process.kill()
        process.join()
    return outcomes


def _collect(pipes: list[multiprocessing.connection.Connection], deadline: float) -> list[Outcome]:
    """Each rank's outcome. Once a rank has failed the others have five seconds more, to say what they saw."""
    outcomes: list[Outcome] = [("failed", "no answer in time") for _ in pipes]
    waiting = {pipe: rank for rank, pipe in enumerate(pipes)}
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        for pipe in multiprocessing.connection.wait(list(waiting), left_s):
            rank = waiting.pop(pipe)
            try:
                outcomes[rank] = pipe.recv()
            except EOFError:
                outcomes[rank] = "failed", "the process ended"
            if outcomes[rank][0] == "failed":
                deadline = min(deadline, time.monotonic() + 5)
    return outcomes


@contextmanager
def aggregator(backend: str) -> Iterator[None]:
    """One for all jobs of the suite, with everything compiled that ranks need."""
    if backend == LISTED_AS:
        yield
        return
    from host_agent.loop import warm_up
    from host_agent.pytorch.aggregator import ChildAggregator

    child = ChildAggregator()
    try:
        warm_up()
        os.environ["SWITCHML_AGGREGATOR"] = child.address
        yield
    finally:
        child.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases; all if there is none")
    parser.add_argument("--backend", default="switchml", help="switchml (the default), or gloo to compare")
    parser.add_argument("--ranks", type=int, default=4, help="processes of each case; 4 if not given")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    suite, cases = load(options.backend, options.ranks)
    names = unittest.TestLoader().getTestCaseNames(cases)
    unknown = sorted(set(options.names) - set(names))
    if unknown:
        parser.error(f"no such case in this torch: {', '.join(unknown)}")
    with aggregator(options.backend):
        for name in options.names or names:
            begin = time.monotonic()
            what, why = run_case(name, options.ranks, suite, cases)
            seconds = round(time.monotonic() - begin, 2)
            print(json.dumps({"case": name, "outcome": what, "why": why, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main()
