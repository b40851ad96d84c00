"""A network packet by packet, in virtual time: links with queues, an aggregation switch, and hosts whose packets are
made and summed by the very rules of `switchml/` (worker.py, pool.py). simpy keeps the clock, in whole nanoseconds.

`config` says what is built, `experiment` builds and runs it, `link` is one direction of a cable, `rank` and
`aggregator` drive the rules, `ring` is Gloo's all-reduce over a model of TCP to compare with, `bounds` the closed
forms that all of it has to agree with where they apply.
"""

from switchml import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
