"""What every rank that all-reduces needs, imported once: the process that forks the ranks imports this module first."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # the ranks share the machine's cores; must be set before torch is imported

from emulator.lab.bench.ranks import reducing  # noqa: F401 - for the ranks
from host_agent.loop import warm_up

warm_up()
