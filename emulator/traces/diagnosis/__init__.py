"""Diagnosis of a traced job: why it is slow, and what to change.

`context.py` has the joined trace and its replays. Each kind of fault has a file of checks, listed in `checks.py`.
`causes.py` attributes time and waiting, `diff.py` compares two runs; `emulator/surface/report/diagnosis.py` presents
the results."""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
