"""What every worker process needs, imported once: the process that forks the workers imports this module first.

So torch is read and the kernels are loaded (or compiled, the first time on a machine) once and not once a worker. Not
to be imported anywhere else: it changes its process.
"""

# ruff: noqa: E402 (what changes the process comes before the imports)
import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

# With the command gone there is nothing to fork for, and compiling may take a while. Workers don't inherit this.
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
# Several workers share the machine's cores, and sums must not depend on how many threads made them.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch._dynamo
import torch.distributed
import torch.nn.parallel

from host_agent.pytorch import process_group as torch_process_group  # noqa: F401
from host_agent.training import worker  # noqa: F401
from host_agent.warmup import warm_up

torch.set_num_threads(1)
warm_up()
