"""Imports that every all-reduce rank needs; the fork server imports this module once, before it forks the ranks."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # the ranks share the machine's cores; must be set before torch is imported

from emulator.lab.bench.ranks import reducing  # noqa: F401 - for the ranks
from host_agent.loop import warm_up

warm_up()
