#!/usr/bin/env python3
"""The speed of one process group beside many idle ones, whose sizes are between 2 ranks and all: median times of
all-reduces of 1 KB and 4 MB, and the processor time of an idle rank, before the groups exist, beside them, and after.

    torchrun --nproc-per-node 4 scripts/experiments/groups.py --groups 200
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist

from switchml.tables import Table, number, show, text

SMALL, LARGE = 256, 1 << 20


def median_us(elements: int, repeats: int) -> float:
    x, times = torch.ones(elements), []
    for _ in range(repeats):
        started = time.perf_counter()
        dist.all_reduce(x)
        times.append(time.perf_counter() - started)
        x.fill_(1)
    return statistics.median(times) * 1e6


def measured(label: str, idle_s: float) -> tuple[str, list[float]]:
    values = [median_us(SMALL, 300), median_us(LARGE, 15)]
    started = time.process_time()
    time.sleep(idle_s)
    return label, [*values, 100 * (time.process_time() - started) / idle_s]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--backend", default="switchml")
    parser.add_argument("--idle-s", type=float, default=2.0, help="Seconds for which the idle ranks are observed.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    measured("", 0.1)
    rows = [measured("alone", options.idle_s)]
    started = time.perf_counter()
    groups = []
    for index in range(options.groups):
        size = 2 + index % (world - 1)
        members = sorted((index + offset) % world for offset in range(size))
        group = dist.new_group(members)
        if rank in members:
            groups.append(group)
            value = torch.full((5,), float(rank + index))
            dist.all_reduce(value, group=group)
            assert value.tolist() == [float(sum(members) + index * size)] * 5
    created_s = time.perf_counter() - started
    rows.append(measured("beside them", options.idle_s))
    for group in groups:
        dist.destroy_process_group(group)
    rows.append(measured("afterwards", options.idle_s))
    dist.destroy_process_group()
    if rank:
        return
    title = f"{world} ranks, {options.groups} idle groups of 2 to {world} ranks, created in {created_s:.1f} s"
    table = Table([text(""), number("1 KB us"), number("4 MB us"), number("idle CPU %")], title=title)
    for label, (small, large, idle) in rows:
        table.add(label, f"{small:.0f}", f"{large:.0f}", f"{idle:.1f}")
    (_, alone), (_, beside), (_, after) = rows
    ratios = [2 * beside[i] / (alone[i] + after[i]) for i in range(2)]
    show(table)
    print(f"beside them, relative to without: 1 KB {ratios[0]:.2f}, 4 MB {ratios[1]:.2f}")


if __name__ == "__main__":
    main()
