"""A P4 switch: loads the BMv2 JSON that p4c writes, and forwards packets as simple_switch does.

`loader` turns the JSON into the typed program of `ir`, its expressions in `expr`. `state` holds all that a control
plane can see or change (`tables`, `action_profiles`, `arrays`, `meters`, `replication`, `digests`); `snapshot` saves
it. `interpreter` is the reference engine; `switch` moves packets through an engine; `stf` tests one.
"""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
