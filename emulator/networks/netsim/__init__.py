"""A packet-level network simulator in virtual time: links with queues, an aggregation switch, and hosts, running the
protocol rules of `switchml/` itself (worker.py, pool.py). The clock is simpy's, in whole nanoseconds.

`config` describes a network, `experiment` builds and runs it, `link` is one direction of a cable, `rank` and
`aggregator` drive the rules, `ring` is the baseline: Gloo's all-reduce over a model of TCP. `bounds` has the closed
forms that the simulation must agree with where they apply.
"""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
