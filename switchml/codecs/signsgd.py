"""signSGD with majority vote: one bit per element, in both directions."""

from dataclasses import dataclass

from switchml.codecs.signs import Voter


@dataclass(frozen=True)
class SignSgd(Voter):
    """1. Send the sign of each element (0 counts as +).
    2. The result is the majority's sign: +1, -1, or 0 if ranks are equally divided.

    The result is a direction rather than a gradient: the learning rate is the step of every parameter.

    J. Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018 (arXiv:1802.04434),
    algorithm 3.
    """

    name = "signsgd"
    number = 20
