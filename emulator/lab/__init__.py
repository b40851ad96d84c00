"""Benchmarks, validation and reproduction of papers' claims.

An experiment consists of a scenario, a team of ranks that runs it, result rows, and a report of them: a table, JSON, a
plot.

    scenario   what is measured: `bench/sizes.py` (a `Case` of collectives), `bench/sparsity.py`, each command's plan
    team       `bench/ranks/`: processes on this machine or in the hosts of a testbed, joined to all backends
    turns      `bench/tally.py`: backends alternate in each repeat; totals over a backend's repeats
    rows       `validation/rows.py`: measured and predicted values; `validation/predicted.py`: for whole jobs
    report     `bench/report.py`, `validation/report.py`; tables and plots are drawn by switchml

`bench/` runs all-reduces, switches and parts of the emulator on this machine, compared with Gloo or simple_switch.
`validation/` compares predictions with published and measured values. `reproduce/` checks papers' claims by running
switchml commands. Input: options; output: rows. Begin reading with `bench/allreduce.py`.
"""
