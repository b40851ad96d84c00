"""What tests of data loading share: data sets that count or fail, and ranks that are threads."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from host_agent.loading.peers import TcpPeers


class Numbers:
    """Sample i is [i, i²]; counts what is read, and fails as told: `failures` has the number of failures to come of
    each sample, or for all reads under None."""

    def __init__(self, samples, failures=()):
        self.samples, self.failures = samples, Counter(dict(failures))
        self.read_counts = Counter()
        self.calls = []
        self._lock = threading.Lock()

    def __len__(self):
        return self.samples

    def __repr__(self):
        return "Numbers"

    def read(self, indices):
        with self._lock:
            self.calls.append(list(indices))
            if self.failures[None] > 0:
                self.failures[None] -= 1
                raise ConnectionError("storage is away")
            return [self._one(index) for index in indices]

    def _one(self, index):
        if self.failures[index] > 0:
            self.failures[index] -= 1
            return ConnectionError("no such luck")
        self.read_counts[index] += 1
        return np.array([index, index * index])


class Ranks:
    """So many threads; `run(function)` calls it with each rank at once and returns their results."""

    def __init__(self, count):
        self.count = count
        self._barrier = threading.Barrier(count)
        self._values = [None] * count
        self._rank = threading.local()

    def run(self, function):
        def one(rank):
            self._rank.number = rank
            return function(rank)

        with ThreadPoolExecutor(self.count) as pool:
            futures = [pool.submit(one, rank) for rank in range(self.count)]
            return [future.result(timeout=100) for future in futures]

    def exchange(self, value):
        """All ranks' values, as torch's all_gather_object."""
        self._barrier.wait(100)
        self._values[self._rank.number] = value
        self._barrier.wait(100)
        found = list(self._values)
        self._barrier.wait(100)
        return found

    def peers(self):
        """Connections between the ranks' buffers, over loopback; each rank calls it."""
        return TcpPeers(self.exchange, b"key of a test")
