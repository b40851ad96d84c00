"""Deterministic simulation testing: jobs under random faults in virtual time, with every sum and every error checked.

The agents' core (host_agent/core.py), the aggregator (switchml/aggregator/software.py) and job control
(switchml/control/jobs.py) are the real code; the network, the control connections, the clock and the calling programs
are simulated. A seed determines everything (`plan`), so a failing run is reproducible to the last packet (`world`
computes a hash of all events). The idea is FoundationDB's: Zhou et al., "FoundationDB: A Distributed Unbundled
Transactional Key Value Store", SIGMOD'21, section 4.

`agent` and `control` simulate the environment of the real code, `program` is the user's script, `checks` and `late`
decide which outcomes are allowed, and `campaign` runs many seeds. Further kinds of seeds are in `failover_plan`,
`deadlines_plan` and `best_effort_plan`; `bugs` lists bugs for mutation testing.
"""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
