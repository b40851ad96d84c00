"""Every error that this project raises on purpose.

SwitchMLError
 ├── ConfigError            an option or argument that makes no sense (also a ValueError)
 ├── PacketError            bytes that are not a packet of ours (also a ValueError)
 ├── PayloadError           bytes that are not a codec's payload (also a ValueError)
 ├── ProgramError           a P4 program (BMv2 JSON) that can't be loaded or run (also a ValueError)
 ├── ProgramAbort           a P4 program's assert failed while a packet passed; carries BMv2's `.exit_code`
 ├── TraceError             a file that is no trace of a job, or a broken one (also a ValueError)
 ├── GraphError             a training job's graph, or its costs, that make no sense (also a ValueError)
 ├── EmulationError         an emulated job that can't go on
 │    ├── Deadlock          ops wait for each other for ever: `.waiting`
 │    ├── OutOfMemory       a job that does not fit into its accelerators: `.needed_bytes`, `.parts`
 │    └── BudgetSpent       more events or seconds than were allowed: `.events`, `.now_s`
 ├── ControlError           a switch's control plane asked for what can't be done: `.operation`, `.code`
 ├── UnsupportedTensor      a dtype, device or layout that can't be all-reduced (also a TypeError)
 ├── SumOverflow            an integer sum that does not fit its type (also an OverflowError)
 ├── JoinError              the aggregator refused this rank, or could not be reached
 └── JobError               a job that had started can't go on (also a RuntimeError)
      ├── PeerLost          another rank died, left early or stopped answering: `.ranks`
      ├── AggregatorLost    the aggregator went away
      ├── RanksDisagree     the ranks did not call the same all-reduce
      └── CollectiveTimeout an all-reduce did not finish in the time it was given: `.ranks`

A message says what was wrong, what was expected, and where to look.
"""


class SwitchMLError(Exception):
    """Base of every error below."""


class ConfigError(SwitchMLError, ValueError):
    """An option or argument that makes no sense."""


class PacketError(SwitchMLError, ValueError):
    """Bytes that are not a packet of ours."""


class PayloadError(SwitchMLError, ValueError):
    """Bytes that are not what a codec makes of a vector."""


class ProgramError(SwitchMLError, ValueError):
    """A P4 program (BMv2 JSON) that can't be loaded or run; names the object and its line in the P4 source."""


class GraphError(SwitchMLError, ValueError):
    """A training job's graph, or its costs, that make no sense; names the ops and ranks concerned."""


class TraceError(SwitchMLError, ValueError):
    """A file that is no trace of a job, or a broken or incomplete one; names the file and the place in it."""


class EmulationError(SwitchMLError):
    """An emulated job that can't go on."""


class Deadlock(EmulationError):
    """Ops wait for each other for ever; `waiting` has a line for each meeting or op that something waits for."""

    def __init__(self, message: str, waiting: tuple[str, ...] = ()):
        super().__init__(message)
        self.waiting = tuple(waiting)


class OutOfMemory(EmulationError):
    """A job that does not fit into its accelerators' memory; `parts` has the bytes of weights, activations and so
    on."""

    def __init__(self, message: str, needed_bytes: float = 0.0, parts: dict[str, float] | None = None):
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.parts = dict(parts or {})


class BudgetSpent(EmulationError):
    """A replay took more events or wall-clock seconds than it was allowed; `now_s` is how far its own clock had
    come."""

    def __init__(self, message: str, events: int = 0, now_s: float = 0.0):
        super().__init__(message)
        self.events = events
        self.now_s = now_s


class ProgramAbort(SwitchMLError):
    """A P4 program's assert or assume failed, or log_msg was called wrongly: where BMv2 ends the process. `exit_code`
    is what BMv2's process then returns (-6: SIGABRT)."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


class ControlError(SwitchMLError):
    """A switch's control plane asked for what can't be done. `operation` and `code` are named as in BMv2's Thrift
    interface: exception Invalid{operation}Operation with the code {code}, for example "Table" and "TABLE_FULL"."""

    def __init__(self, operation: str, code: str, message: str = ""):
        super().__init__(message or code)
        self.operation = operation
        self.code = code


class UnsupportedTensor(SwitchMLError, TypeError):
    """A dtype, device or memory layout that can't be all-reduced."""


class SumOverflow(SwitchMLError, OverflowError):
    """Integer sums that do not fit their type; `misfits` counts them."""

    def __init__(self, message: str, misfits: int = 0):
        super().__init__(message)
        self.misfits = misfits


class JoinError(SwitchMLError):
    """The aggregator refused this rank, or could not be reached."""


class JobError(SwitchMLError, RuntimeError):
    """A job that had started can't go on."""


class PeerLost(JobError):
    """Another rank died, left early or stopped answering; `ranks` lists which."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()):
        super().__init__(message)
        self.ranks = tuple(ranks)


class AggregatorLost(JobError):
    """The aggregator went away."""


class RanksDisagree(JobError):
    """The ranks did not call the same all-reduce."""


class CollectiveTimeout(JobError, TimeoutError):
    """An all-reduce did not finish in the time it was given; `ranks` lists whom it waited for."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()):
        super().__init__(message)
        self.ranks = tuple(ranks)
