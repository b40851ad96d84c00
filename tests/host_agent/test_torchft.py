"""The process group for torchft, configured as its Manager does: replicas die, return, and are alone for a while."""

import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchft")

import torch
import torch.distributed as dist

from host_agent.torchft import ProcessGroupSwitchML
from switchml.errors import JobError, PeerLost

PATIENCE = timedelta(seconds=60)


@pytest.fixture
def store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)


@contextmanager
def everywhere(function, *replicas):
    """`function(replica)` on a thread for each; afterwards their results, or the first error."""
    results, errors = {}, []

    def run(replica):
        try:
            results[replica] = function(replica)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(replica,)) for replica in replicas]
    for thread in threads:
        thread.start()
    yield results
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def all_reduce(group, values):
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.SUM
    return group.allreduce([values], options)


def test_replicas_die_and_return(aggregator, store, monkeypatch):
    monkeypatch.setenv("SWITCHML_AGGREGATOR", aggregator.address)
    groups = [ProcessGroupSwitchML(PATIENCE) for _ in range(2)]

    def configure(quorum, *present):
        def join(replica):
            address = f"127.0.0.1:{store.port}/torchft/{quorum}/0"
            groups[replica].configure(address, str(replica), present.index(replica), len(present), quorum, 0, 1, [0, 1])

        with everywhere(join, *present):
            pass

    def sums(*present):
        def add(replica):
            values = torch.full((1000,), 1.0 + replica)
            all_reduce(groups[replica], values).wait()
            return values.unique().tolist()

        with everywhere(add, *present) as results:
            pass
        return results

    assert groups[0].getBackendName() == "torchft-switchml"
    configure(1, 0, 1)
    assert [group.size() for group in groups] == [2, 2]
    assert sums(0, 1) == {0: [3.0], 1: [3.0]}

    work = all_reduce(groups[0], torch.ones(1000))  # replica 1 never answers
    groups[1].abort()
    with pytest.raises(RuntimeError, match="PeerLost"):
        work.get_future().wait()  # as the Manager does
    assert isinstance(groups[0].errored(), PeerLost)
    assert isinstance(groups[1].errored(), JobError)

    configure(2, 0)
    assert groups[0].errored() is None
    assert sums(0) == {0: [1.0]}
    groups[0].barrier().wait()

    configure(3, 0, 1)
    assert sums(0, 1) == {0: [3.0], 1: [3.0]}

    def send(replica):  # as a checkpoint that goes through the group
        values = torch.full((3,), float(replica))
        (groups[0].send([values], 1, 7) if replica == 0 else groups[1].recv([values], 0, 7)).wait()
        return values.tolist()

    with everywhere(send, 0, 1) as results:
        pass
    assert results[1] == [0.0, 0.0, 0.0]
    with everywhere(lambda replica: groups[replica].shutdown(), 0, 1):
        pass
    assert [group.errored() for group in groups] == [None, None]
