"""What every worker process needs, imported once: the process that forks the workers imports this module first.

So torch is read and the kernels are loaded (or compiled, the first time on a machine) once and not once a worker.
"""

import os

# Several workers share the machine's cores, and sums must not depend on how many threads made them.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch._dynamo
import torch.distributed
import torch.nn.parallel

from host_agent import torch_process_group  # noqa: F401
from host_agent.warmup import warm_up
from switchml.training import worker  # noqa: F401

torch.set_num_threads(1)
warm_up()
