"""Why a traced job is slow, and what to change.

`context.py` has the joined trace and its replays. Each kind of fault has a file of checks, which `checks.py` lists.
`causes.py` says where time went and who waited for whom, `diff.py` how two runs differ;
`emulator/surface/report/diagnosis.py` shows all of it."""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
