"""Imported first by the process that forks the workers, so that torch and the kernels are loaded once for all of them.
Must not be imported elsewhere, since it changes the process.
"""

# ruff: noqa: E402 (what changes the process comes before the imports)
import os

from switchml.runtime.children import die_with_parent

die_with_parent(os.getppid())  # even in the middle of compiling
# Several workers share the machine's cores, and sums must not depend on the number of threads.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch._dynamo
import torch.distributed
import torch.nn.parallel

from host_agent.loop import warm_up
from host_agent.pytorch import process_group as torch_process_group  # noqa: F401
from host_agent.training import worker  # noqa: F401

torch.set_num_threads(1)
warm_up()
