"""All environment variables of this project, as one table. docs/environment.md is generated from it:

python -m switchml.environment > docs/environment.md
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Variable:
    """One environment variable. `default`: behavior if it is unset."""

    name: str
    values: str
    default: str
    meaning: str


GROUPS: dict[str, tuple[Variable, ...]] = {
    "Jobs": (
        Variable(
            "SWITCHML_AGGREGATOR",
            "`HOST:PORT[,HOST:PORT…][,standby=HOST:PORT…]`",
            "with torch: rank 0 starts one",
            "control port of the aggregator to join; several share the job's traffic; standbys take over a job whose "
            "aggregator is lost ([reliability](reliability.md))",
        ),
        Variable(
            "SWITCHML_FAILOVER_TIMEOUT",
            "time, as in `30s`, or `0`",
            "`20s`",
            "how long ranks try to go on at a standby, or wait for a lost aggregator to be started again, before calls "
            "fail",
        ),
        Variable(
            "SWITCHML_DEADLINE",
            "time, as in `50ms`",
            "none",
            "how long sums that may be late wait for a rank ([reliability](reliability.md))",
        ),
        Variable("SWITCHML_SECRET", "text", "with torch: random; else none", "the job's secret; ranks must agree"),
        Variable(
            "SWITCHML_SECRET_FILE",
            "file",
            "none",
            "where SWITCHML_SECRET is unset: a file with the job's secret, which this user alone may read (mode 600)",
        ),
        Variable("SWITCHML_JOB", "text", "`torch` or torchrun's run id, and six digits", "the job's name (with torch)"),
        Variable(
            "SWITCHML_JOIN_TIMEOUT",
            "time, as in `2min`",
            "`30s`",
            "how long to wait for an aggregator that is not there yet",
        ),
        Variable("SWITCHML_TLS_CA", "PEM file", "no TLS", "authority that signed the aggregator's certificate"),
        Variable(
            "SWITCHML_AUTHENTICATE",
            "`0`, `1`",
            "`0`",
            "packets carry tags that nobody else can forge ([protocol](protocol.md), section 10)",
        ),
        Variable(
            "SWITCHML_TRANSPORT",
            "`auto`, `shm`, `udp`, `zmq`, `frames`, `raw`",
            "`auto`",
            "how packets travel; `auto`: shared memory where the aggregator offers it, else UDP",
        ),
        Variable(
            "SWITCHML_INTERFACE",
            "name",
            "the one that leads to the switch",
            "interface to a P4 switch, and of protocol v1",
        ),
        Variable(
            "SWITCHML_PROTOCOL",
            "`v2`, `v1`, as in `v1:timeout=100ms,port=4000`",
            "`v2`",
            "`v1`: for p4app-switchML's controller and switch ([p4app-switchML](p4app-switchml.md))",
        ),
        Variable(
            "SWITCHML_WIRE",
            "`auto`, `int32`, `int16`, `int8`, `exact`",
            "`auto`",
            "lanes of floats; `auto`: int32, and half precision in two bytes where the aggregator adds it up; "
            "`exact`: sums within one unit in the last place, in more rounds",
        ),
        Variable(
            "SWITCHML_SPARSE",
            "`off`, `on`, `auto`, as in `on:block=256`",
            "`off`",
            "skip blocks that are zero on every rank",
        ),
        Variable(
            "SWITCHML_COLLECTIVES",
            "`1`, `0`",
            "`1`",
            "`0`: of torch's collectives only sums and averages go through the aggregator; on all ranks alike "
            "([pytorch](pytorch.md))",
        ),
        Variable(
            "SWITCHML_HIERARCHY",
            "`none`, `node`",
            "`none`",
            "`node`: the ranks of a host sum in shared memory first ([hierarchy](hierarchy.md))",
        ),
    ),
    "Training scripts": (
        Variable(
            "SWITCHML_SETTINGS", "TOML file", "none", "settings that `trace optimize` found ([optimizer](optimizer.md))"
        ),
        Variable("SWITCHML_STEP_TIMES", "folder", "none", "each rank writes when its optimizer completed each step"),
    ),
    "Capturing (`switchml trace capture` sets these)": (
        Variable(
            "SWITCHML_COMMUNICATION_KERNELS",
            "TOML file",
            "the built-in table alone",
            "further kernels that communicate, for what reads traces ([formats](trace-formats.md))",
        ),
        Variable("SWITCHML_TRACE_DIR", "folder", "no capture", "where the traces go"),
        Variable("SWITCHML_TRACE_STEPS", "`SKIP:STOP`", "see `--help`", "first iteration captured, first that is not"),
        Variable("SWITCHML_TRACE_PACKETS", "number", "see `--help`", "packets that an agent records at most"),
        Variable("SWITCHML_TRACE_PAIRS", "number", "`0`", "pairs of iterations that measure what capturing costs"),
        Variable("SWITCHML_TRACE_GRAPH", "`0`, `1`", "`1`", "PyTorch's execution trace as well"),
        Variable("SWITCHML_TRACE_SHAPES", "`0`, `1`", "`0`", "shapes of all tensors"),
    ),
    "Emulated peers": (
        Variable(
            "SWITCHML_EMULATED_…",
            "see [peers](peers.md)",
            "",
            "each setting of the backend `switchml-emulated`, in capitals: `SWITCHML_EMULATED_WORLD=64`, "
            "`SWITCHML_EMULATED_REAL=0,1`, `SWITCHML_EMULATED_CLOCK=virtual`",
        ),
    ),
    "Faults, for tests": (
        Variable("SWITCHML_LOSS_RATE", "0 to 1", "`0`", "share of packets that an agent drops in each direction"),
        Variable("SWITCHML_REORDER_RATE", "0 to 1", "`0`", "share of packets that it delays"),
        Variable("SWITCHML_SEED", "number", "`0`", "decides which"),
    ),
    "This machine": (
        Variable(
            "SWITCHML_CACHE_DIR",
            "folder",
            "`$XDG_CACHE_HOME/switchml` or `~/.cache/switchml`",
            "compiled kernels, and the built documentation; where it is full, the processes of a run share a temporary "
            "folder",
        ),
        Variable(
            "SWITCHML_UI_TOKEN", "text of 16 characters or more", "a new one each time", "what opens `switchml ui`"
        ),
    ),
    "Set-up and tests": (
        Variable("SWITCHML_TORCH", "requirement", "the CPU build", "the torch that `scripts/run` and `test` install"),
        Variable("SWITCHML_DATA", "folder", "`../shared/data`", "measured data that tests read"),
        Variable("SWITCHML_TORCH_SUITE", "`1`", "off", "PyTorch's own tests on the backend"),
        Variable("SWITCHML_ATTACKS", "number", "`1`", "how many times as many random attacks the tests try"),
        Variable("SWITCHML_ATTACKS_SEED", "number", "`0`", "decides which"),
        Variable(
            "SWITCHML_PEER_PYTHONS",
            "paths with colons between",
            "none",
            "Pythons that have P4Runtime clients, for tests",
        ),
    ),
}


def names() -> set[str]:
    """The names of all variables; a name that ends in an ellipsis is a prefix."""
    return {variable.name for group in GROUPS.values() for variable in group}


def page() -> str:
    """The text of docs/environment.md."""
    lines = ["# Environment variables", "", "Options go before variables, and variables before defaults.", ""]
    for title, variables in GROUPS.items():
        lines += [f"## {title}", "", "| variable | values | default | meaning |", "|---|---|---|---|"]
        for each in variables:
            lines.append(f"| `{each.name}` | {each.values} | {each.default} | {each.meaning} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
