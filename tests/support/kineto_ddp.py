"""A small Kineto trace of data-parallel training on accelerators, of which every time is known. Each iteration of 10 ms
computes 3 + 2 + 2 + 1 ms, and all-reduces 25 MiB in 3 ms from 5 ms on, of which 2 ms are hidden.
"""

from tests.support.kineto_data import span

START_US = 1_700_000_000_000_000
STEP_US = 10_000
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
KERNELS = (("forward", 30, 3000), ("backward 1", 3030, 2000), (ALL_REDUCE, 5030, 3000), ("backward 2", 5030, 2000),
           ("optimizer", 8030, 1000))  # fmt: skip
"""Name, start in the iteration, duration, both in µs."""


def rank_events(pid=1000, device=0, *, steps=4, ranks=2, first=1, kernel=ALL_REDUCE, launch_us=4):
    """Events of one process. `first`: its first correlation; `kernel`: the name of the all-reduce."""
    events, number = [], first
    nccl = {"Collective name": "allreduce", "In msg nelems": 6553600, "Out msg nelems": 6553600, "Group size": ranks,
            "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": str(list(range(ranks)))}  # fmt: skip
    for step in range(steps):
        at = START_US + step * STEP_US
        events.append(span(f"ProfilerStep#{step}", at, STEP_US - 10, pid=pid, tid=pid, cat="user_annotation"))
        for place, (name, start, duration) in enumerate(KERNELS):
            call = {"pid": pid, "tid": pid, "correlation": number}
            events.append(span("aten::mm", at + 10 + 10 * place, launch_us + 2, pid=pid, tid=pid))
            events.append(span("cudaLaunchKernel", at + 11 + 10 * place, launch_us, cat="cuda_runtime", **call))
            is_reduce = name == ALL_REDUCE
            stream = 20 if is_reduce else 7
            known = nccl if is_reduce and kernel == ALL_REDUCE else {}
            events.append(
                span(kernel if is_reduce else name, at + start, duration, cat="kernel", pid=device, tid=stream,
                     args={"correlation": number, "device": device, "stream": stream, **known})
            )  # fmt: skip
            number += 1
        wait = span("cudaDeviceSynchronize", at + 60, 8975, cat="cuda_runtime", pid=pid, tid=pid, correlation=number)
        events.append(wait)
        number += 1
    return events


def head(rank=0, ranks=2):
    """What stands beside the events of a rank."""
    return {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks}}


def kernels(events):
    return [event for event in events if event["cat"] == "kernel"]
