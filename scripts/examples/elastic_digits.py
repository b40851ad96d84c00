"""Data-parallel training that continues when a replica dies, and takes it back when it returns (torchft). Start one
process per replica, with torchft's lighthouse and an aggregator running:

torchft_lighthouse --min_replicas 1 --join_timeout_ms 1000
TORCHFT_LIGHTHOUSE=http://localhost:29510 SWITCHML_AGGREGATOR=localhost:50099 python elastic_digits.py --replica 0

scripts/run --elastic starts all of these, kills replicas and restarts them.
"""

import argparse
import hashlib
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torchft
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from host_agent.torchft import ProcessGroupSwitchML
from host_agent.training.data import load_digits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replica", type=int, required=True, help="this process's number, from 0 on")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-time", type=float, default=0.0, help="seconds that a step takes at least")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds for whatever waits for other replicas")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    images, labels = load_digits()
    train = TensorDataset(torch.tensor(images, dtype=torch.float32) / 8 - 1, torch.tensor(labels))
    sampler = torchft.DistributedSampler(
        train, replica_rank=arguments.replica, num_replica_groups=arguments.replicas, group_rank=0, num_replicas=1
    )
    loader = DataLoader(train, batch_size=16, sampler=sampler)

    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    sgd = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)

    def state() -> dict[str, object]:
        return {"model": network.state_dict(), "optimizer": sgd.state_dict()}

    def load(state: dict[str, dict]) -> None:
        network.load_state_dict(state["model"])
        sgd.load_state_dict(state["optimizer"])

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # Of this replica's ranks: only one
    timeout = timedelta(seconds=arguments.timeout)
    manager = torchft.Manager(
        pg=ProcessGroupSwitchML(timeout),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=1,
        timeout=timeout,
        quorum_timeout=timeout,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        replica_id=f"digits_{arguments.replica}",
        hostname="localhost",
    )
    model = torchft.DistributedDataParallel(manager, network)
    optimizer = torchft.Optimizer(manager, sgd)

    batches = iter(())
    while (step := manager.current_step()) < arguments.steps:
        began = time.monotonic()
        if (batch := next(batches, None)) is None:
            sampler.set_epoch(step)
            batches = iter(loader)
            batch = next(batches)
        optimizer.zero_grad()  # Here the replicas agree on the quorum
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()  # No update if a replica has died meanwhile
        done = "done" if manager.current_step() > step else "dropped"
        print(f"step {step}: {done}, {manager.num_participants()} replicas, loss {loss.item():.3f}", flush=True)
        time.sleep(max(0.0, began + arguments.step_time - time.monotonic()))

    digest = hashlib.sha256()
    for parameter in network.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    print(f"sha256 {digest.hexdigest()}", flush=True)
    manager.shutdown()


if __name__ == "__main__":
    main()
