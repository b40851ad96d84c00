"""What every rank of a measurement needs, imported once: the process that forks the ranks imports this module first."""

import os

# The ranks share the machine's cores; must be set before torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # all ranks run here; the host's own name need not even resolve

from emulator.bench import rank
from host_agent.warmup import warm_up

warm_up()
rank.warm_up()
