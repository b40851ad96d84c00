"""A training job on a cluster: its costs, its graph, its result; sweeps, and several jobs on one cluster."""
