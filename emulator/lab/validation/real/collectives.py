"""Collectives over slow links, compared with a packet-by-packet simulation in emulator/networks/netsim. Nothing is
calibrated: computation and wake-ups, which the model omits, are a small part of such long transfers."""

from collections.abc import Callable
from statistics import median

from emulator.lab.bench.network.measure import Experiment, measure
from emulator.lab.bench.ranks.reducing import SWITCHML
from emulator.lab.bench.sizes import FSDP
from emulator.lab.validation.real.measure import links
from emulator.lab.validation.rows import Row
from emulator.networks.netsim import experiment
from emulator.networks.netsim.config import JobConfig, NetworkConfig
from emulator.networks.testbed.star import LinkOptions
from switchml.net.trains import MAX_JOINED

HOSTS = 4
RATE_BPS = 200e6
SIZE_BYTES = 8 << 20
COLLECTIVES = {
    "reduce_scatter": "reduce-scatter",
    "all_gather": "all-gather",
    "broadcast": "broadcast",
    FSDP: "all-gather and reduce-scatter at once",
}
"""Display name, by the benchmark's name of the collective."""
_REPEATS = 5


def rows(progress: Callable[[str], None] = lambda line: None) -> list[Row]:
    """Each collective of 8 MiB among 4 hosts at 200 Mbit/s."""
    found = []
    for name, spoken in COLLECTIVES.items():
        progress(f"{spoken} over 200 Mbit/s")
        plan = Experiment(
            HOSTS, LinkOptions(rate_bps=RATE_BPS), SIZE_BYTES, backends=(SWITCHML,), repeats=_REPEATS, collective=name
        )
        measured_s = measure(plan, progress).tallies[SWITCHML].median_s
        found.append(Row(f"collectives, {spoken}", measured_s, played_s(name), "s"))
    return found


def played_s(collective: str) -> float:
    """Seconds of one collective in the network model."""
    job = JobConfig(HOSTS, SIZE_BYTES, collective=collective, repeats=_REPEATS + 1, train_packets=MAX_JOINED)
    seconds = experiment.run(NetworkConfig(jobs=(job,), link=links(RATE_BPS))).jobs[0].seconds
    return median(seconds[1:])  # the first repeat starts with full token buckets and untrained timers
