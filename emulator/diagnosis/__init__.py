"""Why a traced job is slow, and what to change.

`situation.py` has the joined trace, its replay, and replays with changes. Each kind of fault has a file of checks
(`stragglers.py`, `overlap.py`, `messages.py`, `host.py`, `loading.py`, `compression.py`, `wire.py`); `checks.py` lists
them and sorts what they find. `causes.py` says where time went and who waited for whom, `diff.py` how two runs differ,
and `page.py` shows all of it."""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
