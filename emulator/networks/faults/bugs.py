"""Bugs for mutation testing (`switchml simulate --plant`): each is planted in the code to check that seeds find it.

A bug names a function, a place in it, and the replacement code. No source is quoted: a place is found by the names and
operators in it. Planting raises an error if a function has no such place, or several, so that the table stays in sync
with the code.
"""

import ast
import io
import tokenize
from dataclasses import dataclass

from switchml.errors import ConfigError


@dataclass(frozen=True)
class CodePlace:
    """A place in a function: the "condition" or "statement" (`kind`) that contains all of these words, or the "value"
    assigned to the variable that they name."""

    kind: str
    words: tuple[str, ...]

    def nodes(self, function: ast.AST, source: str) -> list[ast.expr | ast.stmt]:
        """All matching AST nodes of a function."""
        if self.kind == "value":
            assigned = [pair for node in ast.walk(function) for pair in _assigned(node)]
            return [value for target, value in assigned if (ast.unparse(target),) == self.words]
        simple = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)
        found: list[ast.expr | ast.stmt] = []
        for node in ast.walk(function):
            if self.kind == "condition" and isinstance(node, ast.If):
                found.append(node.test)
            elif self.kind == "statement" and isinstance(node, simple):
                found.append(node)
        return [node for node in found if set(self.words) <= _words(node, source)]


def _assigned(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """(target, value) of each assignment in a statement."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return [(node.target, node.value)]
    if not isinstance(node, ast.Assign):
        return []
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def _words(node: ast.AST, source: str) -> set[str]:
    """Names, numbers and operators of a source fragment."""
    text = ast.get_source_segment(source, node) or ""
    return {token.string for token in tokenize.generate_tokens(io.StringIO(f"({text})").readline)}


def value_of(name: str) -> CodePlace:
    """The value assigned to a variable."""
    return CodePlace("value", (name,))


def condition(*words: str) -> CodePlace:
    """The condition of an `if` or `elif`."""
    return CodePlace("condition", words)


def statement(*words: str) -> CodePlace:
    """An assignment, call or return statement."""
    return CodePlace("statement", words)


@dataclass(frozen=True)
class Bug:
    """A bug: the code at a place in `function` (MODULE:NAME) is replaced by `wrong`."""

    function: str
    place: CodePlace
    wrong: str
    what: str

    @property
    def file(self) -> str:
        """File of the module, relative to the packages' folder."""
        return self.function.partition(":")[0].replace(".", "/") + ".py"

    def planted(self, source: str) -> str:
        """The module's source with the bug. Raises ConfigError if the function doesn't exist, or the place is missing
        or ambiguous."""
        name = self.function.partition(":")[2]
        scope: ast.AST = ast.parse(source)
        for part in name.split("."):
            inside = [each for each in ast.iter_child_nodes(scope) if getattr(each, "name", "") == part]
            if len(inside) != 1:
                raise ConfigError(f"{self.file} has {len(inside)} {part!r}, expected one: {self.function}")
            (scope,) = inside
        nodes = self.place.nodes(scope, source)
        if len(nodes) != 1:
            words = ", ".join(self.place.words)
            raise ConfigError(f"{self.function} has {len(nodes)} {self.place.kind}s with {words}, expected one")
        (node,) = nodes
        lines = source.encode().splitlines(keepends=True)  # columns count bytes
        assert node.end_lineno is not None
        before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
        after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
        return (before + self.wrong.encode() + after).decode()


BUGS: dict[str, Bug] = {
    "version-bit": Bug(
        "switchml.protocol.pool_v2:receive_v2",
        value_of("row"),
        "seq & (job.slots - 1)",
        "the aggregator ignores the version of a slot",
    ),
    "shadow-answer": Bug(
        "switchml.protocol.pool_v2:_answer",
        statement("return"),
        "return DROP",
        "the aggregator does not answer retransmissions of a complete round",
    ),
    "counted-twice": Bug(
        "switchml.protocol.pool_v2:receive_v2",
        statement("seen", "|="),
        "pass",
        "the aggregator adds a contribution that it has added already",
    ),
    "any-round": Bug(
        "switchml.protocol.results:receive",
        condition("distance", "or", "busy"),
        "not slot.busy",
        "a worker takes the result of any round of a slot for the one it waits for",
    ),
    "never-again": Bug(
        "switchml.protocol.timers:timeouts",
        condition("lost", "is_turn"),
        "lost",
        "a worker resends what later packets have overtaken, and has no timer",
    ),
    "early-end": Bug(
        "switchml.control.jobs:JobRegistry.leave",
        condition("present"),
        "True",
        "job control ends a job with the first rank that leaves",
    ),
    "deaf": Bug(
        "host_agent.core:Core.on_event", statement("lost"), "pass", "an agent does not act on the loss of a peer"
    ),
    "no-redo": Bug(
        "switchml.protocol.handover:resume",
        value_of("redo"),
        "ahead == 2",
        "who is ahead does not repeat its last round at another aggregator (--failover)",
    ),
    "first-report": Bug(
        "switchml.protocol.handover:agree",
        value_of("least"),
        "rounds[0].astype(np.uint8).tobytes()",
        "a job goes on from the rounds of its first rank, not the least (--failover)",
    ),
    "old-tag": Bug(
        "switchml.protocol.handover:_move_packets",
        statement("here", "job_tag"),
        "pass",
        "packets go to another aggregator with the tag and number of the former epoch (--failover)",
    ),
    "leaves-politely": Bug(
        "emulator.networks.faults.failover:Failover._go",
        statement("vanish"),
        "self._session.leave()",
        "a rank that moves says that it leaves, so the others do not follow (--failover)",
    ),
    "late-counted": Bug(
        "switchml.protocol.pool_v2:receive_v2",
        condition("distance", "seen"),
        "distance != 0 or (seen[row, word] & bit == 0 and slot.count == job.workers and not is_partial(pool, row))",
        "the aggregator adds what is late to a round that has ended without it (--deadlines)",
    ),
    "late-unsaid": Bug(
        "switchml.protocol.pool_v2:_answer",
        statement("FLAG_LATE"),
        "pass",
        "the aggregator does not tell a rank that a sum is without its gradient, which is lost (--deadlines)",
    ),
    "other-guess": Bug(
        "host_agent.core:Core._start",
        condition("late"),
        "False",
        "ranks guess exponents from the results that each happens to have (--deadlines)",
    ),
    "expiry-for-resend": Bug(
        "switchml.protocol.timers:timeouts",
        statement("expires", "identity"),
        "slot.expires, slot.deadline = now + me.identity.deadline, now + probe_timeout(me, queue, now)",
        "a worker that says that it has waited for too long does not resend what was lost (--deadlines)",
    ),
    "never-expires": Bug(
        "switchml.protocol.timers:timeouts",
        value_of("can_expire"),
        "False",
        "a worker waits for late ranks without end (--deadlines)",
    ),
    "sum-added-again": Bug(
        "switchml.protocol.best_effort:receive_partial",
        condition("seen", "ranks"),
        "False",
        "the aggregator behind adds a sum of the switch with a rank that it has already (--best-effort)",
    ),
    "rank-kept": Bug(
        "switchml.protocol.best_effort:take",
        statement("seen", ":"),
        "pass",
        "a slot of the switch keeps the ranks of the round before (--best-effort)",
    ),
    "resend-kept": Bug(
        "switchml.protocol.best_effort:take",
        condition("R_FLAG"),
        "False",
        "the switch keeps retransmissions, too (--best-effort)",
    ),
    "flags-lost": Bug(
        "switchml.protocol.best_effort:receive_partial",
        statement("flags", "|="),
        "pass",
        "the aggregator behind forgets what went wrong in a sum of the switch (--best-effort)",
    ),
    "slots-kept": Bug(
        "switchml.aggregator.best_effort:BestEffortDataplane.stop_job",
        statement("release_job"),
        "pass",
        "the switch keeps the slots of a job that is over (--best-effort)",
    ),
}
