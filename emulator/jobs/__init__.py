"""A training job on a cluster, from its description to its result.

A `Request` (description.py: model, cluster, parallelism, options) goes in. `emulate.py`, where to begin reading, makes
it a job and a cluster, a graph of operations (`workload/`, rank_program.py), their costs (costing.py), the times at
which each begins and ends (`replay/`), and an `Emulation` (emulation.py), which comes out: iteration, parts, memory,
throughput, and what was assumed. `sweep.py` emulates many jobs, `tenants.py` several on one cluster.
"""
