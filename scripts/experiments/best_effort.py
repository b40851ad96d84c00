#!/usr/bin/env python3
"""Jobs with bursts of all-reduces on a switch with few slots: fixed partitions compared with best-effort slots
(docs/protocol.md, section 14). Simulates packets in virtual time and checks every sum.

    scripts/experiments/best_effort.py
    scripts/experiments/best_effort.py --behind 10e9 --window 16
    scripts/experiments/best_effort.py --late 0 --loss 0.001
"""

import argparse
import json

from emulator.networks.netsim.config import BehindConfig, JobConfig, LinkConfig, NetworkConfig, SwitchConfig
from emulator.networks.netsim.experiment import Result, run
from switchml import tables

RANKS, PAUSE_S = 4, 1.5e-3
WAYS = ("fixed", "best-effort")


def play(way: str, jobs: int, slots: int, options: argparse.Namespace) -> Result:
    """Simulate all jobs at once: `way` is one of WAYS, `slots` is the switch's total."""
    late = {rank: options.late * rank**2 / (RANKS - 1) ** 2 for rank in range(1, RANKS)}
    config = NetworkConfig(
        jobs=tuple(
            JobConfig(
                name=f"job {job}",
                workers=RANKS,
                size_bytes=options.size,
                repeats=options.repeats,
                slots=slots // jobs if way == "fixed" else 0,
                window=options.window,
                start_s=PAUSE_S / 5 * job,
                pause_s=PAUSE_S * (1 + job / 10),
                late_ranks=late,
            )
            for job in range(jobs)
        ),
        link=LinkConfig(rate_bps=10e9, delay_s=5e-6, loss=options.loss),
        switch=SwitchConfig(slots=slots),
        behind=None if way == "fixed" else BehindConfig(rate_bps=options.behind, loss=options.loss),
        seed=options.seed,
    )
    return run(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--slots", type=int, nargs="+", default=[32, 64, 256], help="of the switch, for all jobs")
    parser.add_argument("--size", type=int, default=1 << 19, help="bytes of each all-reduce")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--late", type=float, default=1e-4, help="by how many seconds the last rank begins later")
    parser.add_argument("--behind", type=float, default=40e9, help="bits a second of the link behind the switch")
    parser.add_argument("--window", type=int, default=64, help="rounds that a rank may have under way")
    parser.add_argument("--loss", type=float, default=0.0, help="on every link")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for slots in options.slots:
        for jobs in options.jobs:
            for way in WAYS:
                result = play(way, jobs, slots, options)
                durations_s = [seconds for job in result.jobs for seconds in job.seconds]
                counts, packets = result.best_effort, sum(job.sent for job in result.jobs)
                rows.append(
                    {
                        "slots": slots,
                        "jobs": jobs,
                        "way": way,
                        "mean_s": sum(durations_s) / len(durations_s),
                        "worst_s": max(durations_s),
                        "in_switch": counts["summed"] / packets if counts else 1.0,
                        "behind_used": result.utilisation("behind up") if counts else 0.0,
                        "resent": sum(job.retransmitted for job in result.jobs),
                    }
                )
    if options.json:
        print(json.dumps(rows))
        return
    columns = [tables.number("slots"), tables.number("jobs"), tables.text("way"), tables.number("mean", "us")]
    columns += [tables.number("worst", "us"), tables.number("in the switch"), tables.number("link behind")]
    columns += [tables.number("resent")]
    shown = [
        (str(row["slots"]), str(row["jobs"]), row["way"], f"{1e6 * row['mean_s']:.0f}", f"{1e6 * row['worst_s']:.0f}",
         f"{row['in_switch']:.0%}", f"{row['behind_used']:.0%}", str(row["resent"])) for row in rows
    ]  # fmt: skip
    tables.show(tables.Table(columns, shown))


if __name__ == "__main__":
    main()
