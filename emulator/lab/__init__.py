"""What this project measures and compares.

An experiment is a scenario, a team of ranks that runs it, rows of what was found, and a report of them: a table, JSON,
a picture.

    scenario   what is measured: `bench/sizes.py` (a `Case` of collectives), `bench/sparsity.py`, each command's plan
    team       `bench/ranks/`: processes here, or in the hosts of a testbed, with all backends joined
    turns      `bench/tally.py`: backends take turns in each repeat; what the repeats of one add up to
    rows       `validation/rows.py`: measured beside predicted; `validation/predicted.py`: of whole jobs
    report     `bench/report.py`, `validation/report.py`; tables and pictures are switchml's

`bench/` runs all-reduces, switches and parts of the emulator on this machine, beside Gloo or simple_switch.
`validation/` holds predictions beside published and measured figures. `reproduce/` checks papers' claims by running
commands of ours. Options come in, rows go out. Begin reading with `bench/allreduce.py`.
"""
