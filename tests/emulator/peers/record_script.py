"""The training of training_script.py as a rank of whatever world it is started in; each rank writes its losses."""

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from training_script import train

dist.init_process_group()
found = train(DistributedDataParallel, float(os.environ.get("SLEEP_S", "0")))
Path(sys.argv[1]).with_suffix(f".{dist.get_rank()}").write_text(json.dumps(found))
if len(sys.argv) > 2:
    raise SystemExit(int(sys.argv[2]))
dist.destroy_process_group()
