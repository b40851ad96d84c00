"""Passes: each a function of a job, a setting and the machine that returns the job with one thing changed. `PASSES` is
the list, in the order in which they are applied: first those that change what ranks compute, then those that change
only how gradients are all-reduced, which a search tries on the coarsened job.
"""

from emulator.whatif.passes.registry import COMMUNICATION, COMPUTE, PASSES, Pass, in_file, named

__all__ = ["COMMUNICATION", "COMPUTE", "PASSES", "Pass", "in_file", "named"]
