"""Jobs that go through drawn faults in virtual time, every sum and every error checked: the
agents' core (host_agent/core.py), the aggregator (switchml/aggregator/software.py) and job control
(switchml/control/jobs.py) are the real ones; the network, the control connections, the clock and the programs that call
the agents are simulated.

A seed decides everything (`plan`), so a failing run can be repeated to the last packet (`world` keeps a hash of all
that happened). The idea is FoundationDB's: Zhou et al., "FoundationDB: A Distributed Unbundled Transactional Key
Value Store", SIGMOD'21, section 4.

`agent` and `control` are the real code's simulated surroundings, `program` is the user's script, `checks` knows what
may happen and what may not, `campaign` runs many seeds.
"""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
