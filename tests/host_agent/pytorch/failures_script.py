"""Run by pytorch/test_backend.py in three processes: one thing goes wrong, and each rank reports what it was told.

kill RANK      that rank is killed in the middle of its all-reduces
stall          rank 1 lives but does not call the all-reduce in time
aggregator     the aggregator that rank 0 started is killed
forget         nobody calls destroy_process_group
"""

import json
import os
import signal
import sys
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from host_agent.pytorch import rendezvous
from tests.support.group import RANK, SIZE, init

MODE = sys.argv[1]
torch.set_num_threads(1)


def error_of(action) -> dict:
    """What `action()` raises."""
    try:
        action()
    except Exception as error:
        return {"type": type(error).__name__, "message": str(error), "ranks": list(getattr(error, "ranks", ()))}
    return {"type": "nothing"}


def await_reports(ranks) -> None:
    """Until these ranks have reported their errors: a rank that leaves before would be their reason."""
    store = dist.distributed_c10d._get_default_store()
    store.wait([f"reported {rank}" for rank in ranks], timedelta(minutes=2))


def reduce_forever() -> None:
    while True:
        works = [dist.all_reduce(torch.ones(50_000), async_op=True) for _ in range(4)]
        for work in works:
            work.wait()


init(seconds=120)
model = DistributedDataParallel(torch.nn.Linear(300, 300))
child = [process.pid for process in psutil.Process().children()]
for _ in range(5):
    dist.all_reduce(torch.ones(1000))
report: dict = {"rank": RANK, "aggregator_pid": child[0] if child else None}

if MODE == "kill":
    if int(sys.argv[2]) == RANK:
        dist.all_reduce(torch.ones(50_000), async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
    report["wait"] = error_of(reduce_forever)
    # Whatever comes later is told the same.
    report["later"] = error_of(lambda: dist.all_reduce(torch.ones(3)))
    report["future"] = error_of(lambda: dist.all_reduce(torch.ones(3), async_op=True).get_future().wait())
    report["backward"] = error_of(lambda: model(torch.ones(300)).sum().backward())
elif MODE == "stall":
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=2))  # not before: a busy machine takes long to start
    if RANK == 1:
        await_reports(rank for rank in range(SIZE) if rank != RANK)
        report["wait"] = error_of(reduce_forever)  # what the others began may still be completed
    else:
        report["wait"] = error_of(lambda: dist.all_reduce(torch.ones(50_000)))
    dist.distributed_c10d._get_default_store().set(f"reported {RANK}", "")
    await_reports(range(SIZE))
elif MODE == "aggregator":
    if RANK == 0:
        os.kill(child[0], signal.SIGKILL)
    report["wait"] = error_of(reduce_forever)

json.dump(report, sys.stdout, allow_nan=False)
sys.stdout.flush()
if MODE != "forget":
    rendezvous.FAREWELL_S = 600.0  # who waits for ranks that are gone misses the test's deadline
    dist.destroy_process_group()
