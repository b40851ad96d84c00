"""Collectives over slow links, beside emulator/networks/netsim playing the same packet by packet. Nothing is
calibrated: what the model leaves out, computing and waking up, is a small part of so long a transfer."""

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
"""By the bench's name, as people call them."""
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
    """Seconds of one, by the network model."""
    job = JobConfig(HOSTS, SIZE_BYTES, collective=collective, repeats=_REPEATS + 1, train_packets=MAX_JOINED)
    seconds = experiment.run(NetworkConfig(jobs=(job,), link=links(RATE_BPS))).jobs[0].seconds
    return median(seconds[1:])  # the first finds full token buckets and timers that know nothing
