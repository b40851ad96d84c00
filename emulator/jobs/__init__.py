"""A training job on a cluster, from its description to its result.

The input is a `Request` (description.py: model, cluster, parallelism, options). `emulate.py`, the place to start
reading, turns it into a job and a cluster, a graph of operations (`workload/`, rank_program.py), their costs
(costing.py), their start and end times (`replay/`), and the resulting `Emulation` (emulation.py): iteration time and
its parts, memory, throughput, and assumptions. `sweep.py` emulates many jobs, `tenants.py` several on one cluster.
"""
